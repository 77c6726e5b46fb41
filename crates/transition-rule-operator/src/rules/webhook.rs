//! Rules that ask a service: what is asked, and what an answer means. Pure; the asking itself is the
//! shell's.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use podops_api::transition_rule::{Parameter, RuleStage, TransitionRule, WebhookStatus};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Which rule asks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleRef {
    /// The UID of the PodTransitionRule.
    pub uid: String,
    /// The rule's name.
    pub rule: String,
}

/// Who is asked about: one Pod and the instances of its operations.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject {
    /// The Pod's UID.
    pub uid: String,
    /// What waits on it, as `<id>=<instance>` one after another.
    pub instances: String,
}

/// What a service said about a Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebhookVerdict {
    /// It may pass.
    Passed,
    /// It may not; to be asked again from this time on.
    Rejected(String, Timestamp),
    /// A question, or a task that the service named, is under way.
    Pending(String),
}

/// What services said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// About whom.
    pub said: BTreeMap<(RuleRef, Subject), WebhookVerdict>,
    /// The tasks that they work on.
    pub tasks: BTreeMap<RuleRef, WebhookStatus>,
    /// What is wrong with a service.
    pub validation_errors: BTreeMap<RuleRef, String>,
}

/// A question, as it goes over the wire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// Its own name.
    pub trace_id: String,
    /// The rule that asks.
    pub rule_name: String,
    /// The stage, if the rule names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<RuleStage>,
    /// The Pods that it is about.
    pub resources: Vec<Resource>,
}

/// A Pod in a question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Resource {
    /// Kuperator's constant.
    pub api_version: &'static str,
    /// Kuperator's constant.
    pub kind: &'static str,
    /// The Pod's name.
    pub name: String,
    /// What the rule says about it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
}

impl Resource {
    /// A Pod, with what a rule's parameters are of it.
    #[must_use]
    pub fn pod(name: &str, parameters: &[Parameter], object: Option<&Value>) -> Self {
        let values = parameters.iter().map(|parameter| {
            let key = parameter.key.clone().unwrap_or_default();
            (key, value(parameter, object).unwrap_or_default())
        });
        let name = name.to_owned();
        Self { api_version: "core/v1", kind: "Pod", name, parameters: values.collect() }
    }
}

/// Whether a rule can be asked about only with the whole Pod at hand.
#[must_use]
pub fn needs_object(rule: &TransitionRule) -> bool {
    let parameters = rule.webhook.iter().flat_map(|webhook| &webhook.parameters);
    parameters.into_iter().any(|parameter| parameter.value_from.is_some())
}

fn value(parameter: &Parameter, object: Option<&Value>) -> Option<String> {
    if let Some(value) = parameter.value.as_ref().filter(|value| !value.is_empty()) {
        return Some(value.clone());
    }
    let path = &parameter.value_from.as_ref()?.field_ref.as_ref()?.field_path;
    field(object?, path)
}

/// A field of an object: as in a Pod's downward API, or dot by dot.
fn field(object: &Value, path: &str) -> Option<String> {
    for map in ["labels", "annotations"] {
        let of = &object["metadata"][map];
        let Some(rest) = path.strip_prefix(&format!("metadata.{map}")) else { continue };
        if rest.is_empty() {
            let all = of.as_object().into_iter().flatten();
            let lines = all.map(|(key, value)| format!("{key}={value}"));
            return Some(lines.collect::<Vec<_>>().join("\n"));
        }
        let key = rest.strip_prefix("['").and_then(|rest| rest.strip_suffix("']"));
        if let Some(key) = key {
            return of.get(key)?.as_str().map(ToOwned::to_owned);
        }
    }
    let found = path.split('.').try_fold(object, |at, name| at.get(name))?;
    if let Value::String(text) = found {
        return Some(text.clone());
    }
    (!found.is_null()).then(|| found.to_string())
}

/// An answer to a question; one without `success` is none.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    success: bool,
    // Many a service sends null for nothing.
    message: Option<String>,
    finished_names: Option<BTreeSet<String>>,
    poll: Option<bool>,
    /// The earlier spelling of `poll`.
    #[serde(rename = "async")]
    asynchronous: Option<bool>,
    task_id: Option<String>,
    trace_id: Option<String>,
}

/// What a service's answer means for the Pods that were asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// These pass; the others do not, for this reason.
    Judged {
        /// Those that pass.
        passed: BTreeSet<String>,
        /// Why others do not.
        reason: String,
    },
    /// These pass now; the others when a task ends.
    Task {
        /// Those that pass.
        passed: BTreeSet<String>,
        /// The service's name for the task.
        id: String,
        /// What the service said.
        message: String,
    },
}

/// The longest text of a service's that statuses repeat.
const MESSAGE_MAX: usize = 256;

/// What a service said, fit to be repeated.
fn message(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MESSAGE_MAX).collect()
}

fn reason(said: &str) -> String {
    match message(said) {
        said if said.is_empty() => "its service says no".to_owned(),
        said => format!("its service says: {said}"),
    }
}

/// Reads an answer to a question about these Pods; `None` if it is none.
#[must_use]
pub fn read_answer(body: &[u8], requested: &BTreeSet<String>) -> Option<Outcome> {
    let answer: Answer = serde_json::from_slice(body).ok()?;
    let finished = answer.finished_names.unwrap_or_default();
    let finished = finished.intersection(requested).cloned().collect();
    let said = answer.message.unwrap_or_default();
    if !answer.success {
        return Some(Outcome::Judged { passed: finished, reason: reason(&said) });
    }
    if answer.poll != Some(true) && answer.asynchronous != Some(true) {
        return Some(Outcome::Judged { passed: requested.clone(), reason: String::new() });
    }
    let names = [answer.task_id, answer.trace_id].into_iter().flatten();
    let Some(id) = names.map(|name| message(&name)).find(|name| !name.is_empty()) else {
        let reason = "its service named no task".to_owned();
        return Some(Outcome::Judged { passed: BTreeSet::new(), reason });
    };
    Some(Outcome::Task { passed: finished, id, message: message(&said) })
}

/// How far a task has come.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Progress {
    success: bool,
    message: Option<String>,
    finished: Option<bool>,
    finished_names: Option<BTreeSet<String>>,
    stop: Option<bool>,
}

/// What a service's word about a task means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Pods that pass by now.
    pub passed: BTreeSet<String>,
    /// Whether the service works on it no longer.
    pub terminal: bool,
    /// What the service said.
    pub message: String,
}

/// Reads how far a task about these Pods has come; `None` if the answer is none.
#[must_use]
pub fn read_progress(body: &[u8], requested: &BTreeSet<String>) -> Option<Step> {
    let progress: Progress = serde_json::from_slice(body).ok()?;
    let all = progress.success && progress.finished == Some(true);
    let finished = progress.finished_names.unwrap_or_default();
    let passed =
        if all { requested.clone() } else { finished.intersection(requested).cloned().collect() };
    let said = progress.message.unwrap_or_default();
    Some(Step { passed, terminal: all || progress.stop == Some(true), message: message(&said) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[track_caller]
    #[allow(clippy::ref_option, reason = "a test reads better so")]
    fn check(answer: &Value, expected: &Option<Outcome>) {
        assert_eq!(read_answer(answer.to_string().as_bytes(), &names(&["a", "b"])), *expected);
    }

    #[test]
    fn kuperators_38_success_passes_all_and_failure_those_that_are_named() {
        let judged = |passed: &[&str], reason: &str| {
            Some(Outcome::Judged { passed: names(passed), reason: reason.to_owned() })
        };
        check(&json!({ "success": true }), &judged(&["a", "b"], ""));
        check(&json!({ "success": false }), &judged(&[], "its service says no"));
        let some = json!({ "success": false, "message": "later\n", "finishedNames": ["a", "x"] });
        check(&some, &judged(&["a"], "its service says: later"));
        let nothing = json!({ "success": false, "message": null, "finishedNames": null });
        check(&nothing, &judged(&[], "its service says no"));
    }

    #[test]
    fn kuperators_39_a_task_is_named_by_task_or_trace() {
        let task = |passed: &[&str], id: &str| {
            let (id, message) = (id.to_owned(), String::new());
            Some(Outcome::Task { passed: names(passed), id, message })
        };
        check(&json!({ "success": true, "async": true, "traceId": "t" }), &task(&[], "t"));
        let both = json!({ "success": true, "poll": true, "taskId": "1", "traceId": "t", "finishedNames": ["b"] });
        check(&both, &task(&["b"], "1"));
        let reason = "its service named no task".to_owned();
        check(
            &json!({ "success": true, "poll": true }),
            &Some(Outcome::Judged { passed: BTreeSet::new(), reason }),
        );
    }

    #[test]
    fn what_is_no_answer_is_none() {
        for body in ["", "<html>", "[]", "{}", r#"{"success":"yes"}"#, r#"{"finishedNames":["a"]}"#]
        {
            assert_eq!(read_answer(body.as_bytes(), &names(&["a"])), None, "{body}");
            assert_eq!(read_progress(body.as_bytes(), &names(&["a"])), None, "{body}");
        }
    }

    #[test]
    fn a_task_passes_pods_until_it_ends() {
        let step = |answer: Value| {
            let step = read_progress(answer.to_string().as_bytes(), &names(&["a", "b"])).unwrap();
            (step.passed.into_iter().collect::<Vec<_>>(), step.terminal)
        };
        let some = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            step(json!({ "success": false, "finishedNames": ["a"] })),
            (some(&["a"]), false)
        );
        assert_eq!(step(json!({ "success": true, "finished": true })), (some(&["a", "b"]), true));
        assert_eq!(step(json!({ "success": false, "finished": true })), (some(&[]), false));
        assert_eq!(step(json!({ "success": true, "stop": true })), (some(&[]), true));
    }

    #[test]
    fn parameters_are_values_or_fields_of_the_pod() {
        let object = json!({
            "metadata": { "name": "a", "labels": { "x/y": "1", "app": "web" } },
            "status": { "podIP": "1.0.0.1", "podIPs": [{ "ip": "1.0.0.1" }] },
        });
        let from = |path: &str| {
            let parameter =
                json!({ "key": "k", "valueFrom": { "fieldRef": { "fieldPath": path } } });
            let parameter: Parameter = serde_json::from_value(parameter).unwrap();
            Resource::pod("a", &[parameter], Some(&object)).parameters["k"].clone()
        };
        assert_eq!(from("status.podIP"), "1.0.0.1");
        assert_eq!(from("status.podIPs"), r#"[{"ip":"1.0.0.1"}]"#);
        assert_eq!(from("metadata.labels['x/y']"), "1");
        assert_eq!(from("metadata.labels"), "app=\"web\"\nx/y=\"1\"");
        assert_eq!(from("spec.nothing.there"), "");
        let fixed: Parameter = serde_json::from_value(json!({ "key": "k", "value": "v" })).unwrap();
        assert_eq!(Resource::pod("a", &[fixed], None).parameters["k"], "v");
    }
}
