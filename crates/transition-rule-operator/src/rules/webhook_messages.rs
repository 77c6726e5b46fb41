//! Webhook rules: request and response bodies, and the verdicts of a response on the Pods. Pure;
//! `shell::webhook_client` sends the requests.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use podops_api::{
    ids::{PodName, Uid},
    transition_rule::{Parameter, RuleStage, TransitionRule, WebhookStatus},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

mod addresses;
mod error;

pub use addresses::AddressPolicy;
pub use error::{REQUEST_MAX, RESPONSE_MAX, WebhookError};

/// Reference to one rule of a PodTransitionRule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleRef {
    /// UID of the PodTransitionRule.
    pub uid: Uid,
    /// Name of the rule.
    pub rule: String,
}

/// Subject of a webhook verdict: one Pod and the instances of its operations.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject {
    /// UID of the Pod.
    pub uid: Uid,
    /// Waiting operations as `<id>=<instance>`, separated by commas.
    pub instances: String,
}

/// Reason of [`WebhookVerdict::Pending`] while a request is in progress.
pub const REQUEST_IN_PROGRESS: &str = "webhook request in progress";
/// Reason of [`WebhookVerdict::Pending`] while a task is in progress.
pub const TASK_IN_PROGRESS: &str = "webhook task in progress";

/// Verdict of a webhook on one subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebhookVerdict {
    /// The operations may pass.
    Passed,
    /// The operations may not pass.
    Rejected {
        /// Reason, for the status.
        reason: String,
        /// Time from which to call again.
        until: Timestamp,
    },
    /// A request or a task is in progress, described by this text.
    Pending(&'static str),
}

/// Known state of the webhooks of one namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebhookState {
    /// Verdicts by rule and subject.
    pub verdicts: BTreeMap<(RuleRef, Subject), WebhookVerdict>,
    /// Running and recently finished tasks by rule.
    pub tasks: BTreeMap<RuleRef, WebhookStatus>,
    /// Last error by rule, while calls to the webhook fail.
    pub errors: BTreeMap<RuleRef, String>,
}

/// Request body of a webhook call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// Random ID of the request.
    pub trace_id: String,
    /// Name of the rule.
    pub rule_name: String,
    /// Stage, if the rule specifies one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<RuleStage>,
    /// Pods to decide on.
    pub resources: Vec<Resource>,
}

impl Request {
    /// Approximate size of the Pods in the request, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.resources.iter().map(Resource::size).sum()
    }
}

/// Pod in a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Resource {
    /// Always `core/v1`, as in Kuperator.
    pub api_version: &'static str,
    /// Always `Pod`, as in Kuperator.
    pub kind: &'static str,
    /// Name of the Pod.
    pub name: String,
    /// Values of the rule's parameters for this Pod.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
}

impl Resource {
    /// Builds the entry of a Pod and resolves the parameters against its `object`; a missing field
    /// becomes an empty string. `None` if it exceeds [`REQUEST_MAX`]; no more than that is built.
    #[must_use]
    pub fn pod(name: &str, parameters: &[Parameter], object: Option<&Value>) -> Option<Self> {
        let api_version = "core/v1";
        let kind = "Pod";
        let name = name.to_owned();
        let mut entry = Self { api_version, kind, name, parameters: BTreeMap::new() };
        let mut size = entry.size();
        for parameter in parameters {
            let key = parameter.key.clone().unwrap_or_default();
            let value = value(parameter, object).unwrap_or_default();
            size += size_of_parameter(&key, &value);
            if size > REQUEST_MAX {
                return None;
            }
            entry.parameters.insert(key, value);
        }
        Some(entry)
    }

    /// Approximate size of the entry in a request, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        let parameters = self.parameters.iter().map(|(key, value)| size_of_parameter(key, value));
        self.name.len() + 64 + parameters.sum::<usize>()
    }
}

fn size_of_parameter(key: &str, value: &str) -> usize {
    key.len() + value.len() + 8
}

/// Returns true if the request needs the full Pod, because a parameter refers to one of its fields.
#[must_use]
pub fn needs_object(rule: &TransitionRule) -> bool {
    let parameters = rule.webhook.iter().flat_map(|webhook| &webhook.parameters);
    parameters.into_iter().any(|parameter| parameter.value_from.is_some())
}

/// Paths of the Pod's fields that the parameters of a rule's webhook refer to.
pub(super) fn pod_fields(rule: &TransitionRule) -> impl Iterator<Item = Vec<String>> {
    let parameters = rule.webhook.iter().flat_map(|webhook| &webhook.parameters);
    let references = parameters.filter_map(|p| p.value_from.as_ref()?.field_ref.as_ref());
    references.map(|reference| {
        let path = reference.field_path.as_str();
        for map in ["labels", "annotations"] {
            let Some(rest) = path.strip_prefix(&format!("metadata.{map}")) else { continue };
            let key = rest.strip_prefix("['").and_then(|rest| rest.strip_suffix("']"));
            if rest.is_empty() || key.is_some() {
                let map = ["metadata", map].into_iter().chain(key);
                return map.map(ToOwned::to_owned).collect();
            }
        }
        path.split('.').map(ToOwned::to_owned).collect()
    })
}

fn value(parameter: &Parameter, object: Option<&Value>) -> Option<String> {
    if let Some(value) = parameter.value.as_ref().filter(|value| !value.is_empty()) {
        return Some(value.clone());
    }
    let path = &parameter.value_from.as_ref()?.field_ref.as_ref()?.field_path;
    field(object?, path)
}

/// Returns the field at `path`: a path of the downward API, or field names separated by dots.
/// Values other than strings become JSON.
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

/// Response to a request. `success` is required.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Response {
    success: bool,
    // Options, because some services send null for missing values.
    message: Option<String>,
    finished_names: Option<BTreeSet<String>>,
    poll: Option<bool>,
    /// The earlier spelling of `poll`.
    #[serde(rename = "async")]
    asynchronous: Option<bool>,
    task_id: Option<String>,
    trace_id: Option<String>,
}

/// Meaning of a response for the requested Pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Final verdict on all Pods.
    Decided {
        /// Names of the Pods that pass.
        passed: BTreeSet<PodName>,
        /// Reason for which the others are rejected.
        reason: String,
    },
    /// The service started a task that decides on the Pods not passed yet.
    Task {
        /// Names of the Pods that pass at once.
        passed: BTreeSet<PodName>,
        /// ID that the service assigned to the task.
        id: String,
        /// Message of the service.
        message: String,
    },
}

/// Maximum number of characters of a service's text copied to a status.
const MESSAGE_MAX: usize = 256;

/// Sanitizes a service's text for a status: no control characters, limited length.
fn message(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MESSAGE_MAX).collect()
}

fn reason(text: &str) -> String {
    match message(text) {
        text if text.is_empty() => "rejected by the webhook".to_owned(),
        text => format!("rejected by the webhook: {text}"),
    }
}

/// Returns the requested Pods that a response names as finished.
fn finished(names: Option<BTreeSet<String>>, requested: &BTreeSet<PodName>) -> BTreeSet<PodName> {
    let names = names.into_iter().flatten().map(PodName::from);
    names.filter(|name| requested.contains(name)).collect()
}

/// Parses a response about the requested Pods. Returns `None` if it is invalid.
#[must_use]
pub fn read_response(body: &[u8], requested: &BTreeSet<PodName>) -> Option<Outcome> {
    let response: Response = serde_json::from_slice(body).ok()?;
    let finished = finished(response.finished_names, requested);
    let text = response.message.unwrap_or_default();
    if !response.success {
        return Some(Outcome::Decided { passed: finished, reason: reason(&text) });
    }
    if response.poll != Some(true) && response.asynchronous != Some(true) {
        return Some(Outcome::Decided { passed: requested.clone(), reason: String::new() });
    }
    let ids = [response.task_id, response.trace_id].into_iter().flatten();
    let Some(id) = ids.map(|id| message(&id)).find(|id| !id.is_empty()) else {
        let reason = "webhook response has poll set but no taskId".to_owned();
        return Some(Outcome::Decided { passed: BTreeSet::new(), reason });
    };
    Some(Outcome::Task { passed: finished, id, message: message(&text) })
}

/// Response to a poll of a task.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct TaskResponse {
    success: bool,
    message: Option<String>,
    finished: Option<bool>,
    finished_names: Option<BTreeSet<String>>,
    stop: Option<bool>,
}

/// Progress of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskProgress {
    /// Names of the Pods that pass now.
    pub passed: BTreeSet<PodName>,
    /// True if the task has ended.
    pub terminal: bool,
    /// Message of the service.
    pub message: String,
}

/// Parses the response about a task for the requested Pods. Returns `None` if it is invalid.
#[must_use]
pub fn read_task_response(body: &[u8], requested: &BTreeSet<PodName>) -> Option<TaskProgress> {
    let response: TaskResponse = serde_json::from_slice(body).ok()?;
    let all = response.success && response.finished == Some(true);
    let passed = if all { requested.clone() } else { finished(response.finished_names, requested) };
    let text = response.message.unwrap_or_default();
    Some(TaskProgress {
        passed,
        terminal: all || response.stop == Some(true),
        message: message(&text),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn names(names: &[&str]) -> BTreeSet<PodName> {
        names.iter().map(|name| (*name).into()).collect()
    }

    #[track_caller]
    #[allow(clippy::ref_option, reason = "a test reads better so")]
    fn check(response: &Value, expected: &Option<Outcome>) {
        assert_eq!(read_response(response.to_string().as_bytes(), &names(&["a", "b"])), *expected);
    }

    /// Kuperator's known defect 38 (docs/KUPERATOR.md#known-defects).
    #[test]
    fn success_passes_all_pods_and_failure_only_finished_names() {
        let decided = |passed: &[&str], reason: &str| {
            Some(Outcome::Decided { passed: names(passed), reason: reason.to_owned() })
        };
        check(&json!({ "success": true }), &decided(&["a", "b"], ""));
        check(&json!({ "success": false }), &decided(&[], "rejected by the webhook"));
        let some = json!({ "success": false, "message": "later\n", "finishedNames": ["a", "x"] });
        check(&some, &decided(&["a"], "rejected by the webhook: later"));
        let nothing = json!({ "success": false, "message": null, "finishedNames": null });
        check(&nothing, &decided(&[], "rejected by the webhook"));
    }

    /// Kuperator's known defect 39 (docs/KUPERATOR.md#known-defects).
    #[test]
    fn a_task_is_identified_by_task_id_or_trace_id() {
        let task = |passed: &[&str], id: &str| {
            let id = id.to_owned();
            let message = String::new();
            Some(Outcome::Task { passed: names(passed), id, message })
        };
        check(&json!({ "success": true, "async": true, "traceId": "t" }), &task(&[], "t"));
        let both = json!({ "success": true, "poll": true, "taskId": "1", "traceId": "t", "finishedNames": ["b"] });
        check(&both, &task(&["b"], "1"));
        let reason = "webhook response has poll set but no taskId".to_owned();
        check(
            &json!({ "success": true, "poll": true }),
            &Some(Outcome::Decided { passed: BTreeSet::new(), reason }),
        );
    }

    #[test]
    fn invalid_responses_are_rejected() {
        for body in ["", "<html>", "[]", "{}", r#"{"success":"yes"}"#, r#"{"finishedNames":["a"]}"#]
        {
            assert_eq!(read_response(body.as_bytes(), &names(&["a"])), None, "{body}");
            assert_eq!(read_task_response(body.as_bytes(), &names(&["a"])), None, "{body}");
        }
    }

    #[test]
    fn a_task_passes_pods_as_they_finish() {
        let progress = |response: Value| {
            let progress =
                read_task_response(response.to_string().as_bytes(), &names(&["a", "b"])).unwrap();
            (progress.passed.into_iter().collect::<Vec<_>>(), progress.terminal)
        };
        let some = |names: &[&str]| names.iter().map(|n| PodName::from(*n)).collect::<Vec<_>>();
        assert_eq!(
            progress(json!({ "success": false, "finishedNames": ["a"] })),
            (some(&["a"]), false)
        );
        assert_eq!(
            progress(json!({ "success": true, "finished": true })),
            (some(&["a", "b"]), true)
        );
        assert_eq!(progress(json!({ "success": false, "finished": true })), (some(&[]), false));
        assert_eq!(progress(json!({ "success": true, "stop": true })), (some(&[]), true));
    }

    #[test]
    fn parameters_resolve_to_values_or_pod_fields() {
        let object = json!({
            "metadata": { "name": "a", "labels": { "x/y": "1", "app": "web" } },
            "status": { "podIP": "1.0.0.1", "podIPs": [{ "ip": "1.0.0.1" }] },
        });
        let from = |path: &str| {
            let parameter =
                json!({ "key": "k", "valueFrom": { "fieldRef": { "fieldPath": path } } });
            let parameter: Parameter = serde_json::from_value(parameter).unwrap();
            Resource::pod("a", &[parameter], Some(&object)).unwrap().parameters["k"].clone()
        };
        assert_eq!(from("status.podIP"), "1.0.0.1");
        assert_eq!(from("status.podIPs"), r#"[{"ip":"1.0.0.1"}]"#);
        assert_eq!(from("metadata.labels['x/y']"), "1");
        assert_eq!(from("metadata.labels"), "app=\"web\"\nx/y=\"1\"");
        assert_eq!(from("spec.nothing.there"), "");
        let fixed: Parameter = serde_json::from_value(json!({ "key": "k", "value": "v" })).unwrap();
        assert_eq!(Resource::pod("a", &[fixed], None).unwrap().parameters["k"], "v");
    }
}
