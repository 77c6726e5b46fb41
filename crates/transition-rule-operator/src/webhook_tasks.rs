//! Book-keeping of webhook calls: the requests to send, the verdicts of the responses on the Pods,
//! and the tasks in progress. Pure; `shell::webhook_client` sends the requests.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use podops_api::{ids::PodName, transition_rule::WebhookStatus};

use self::rule_webhook::{PAUSE_MAX, RuleWebhook};
use crate::{
    plan::WebhookCall,
    rules::webhook_messages::{
        REQUEST_MAX, Request, Resource, RuleRef, Subject, WebhookError, WebhookState,
    },
    view::{Observed, Rule},
};

mod job;
mod rule_webhook;
mod timeouts;

pub use job::{Job, JobKind, task_url};
pub use rule_webhook::TaskState;
pub use timeouts::{poll_interval, request_timeout};

/// State of the webhook rules of a namespace.
#[derive(Debug, Default)]
pub struct WebhookTasks {
    rules: BTreeMap<RuleRef, RuleWebhook>,
    /// Approximate size of the requests that are queued or in progress, in bytes.
    queued: usize,
}

/// Maximum size of the requests of a namespace that are queued or in progress, in bytes; each has
/// up to [`REQUEST_MAX`], and a namespace may have thousands of webhook rules.
const QUEUED_MAX: usize = 4 * REQUEST_MAX;

/// State of the webhooks of one namespace, and the tasks that another process started.
#[derive(Clone, Debug, Default)]
pub struct Synced {
    /// Known verdicts, tasks and errors.
    pub state: WebhookState,
    /// Restored tasks, which must be polled.
    pub restored: Vec<Job>,
}

/// Result of starting one planned call.
#[derive(Clone, Debug)]
pub enum CallStart {
    /// The request must be sent.
    Queued(Box<Job>),
    /// The service is failing and may not be called yet: the call has failed at once.
    Failed,
}

impl WebhookTasks {
    /// Returns the known verdicts and tasks of a namespace, and removes those of Pods and rules
    /// that no longer wait. Tasks started by another process are restored from the rules' statuses.
    pub fn sync(&mut self, namespace: &str, observed: &Observed, now: Timestamp) -> Synced {
        self.rules
            .retain(|rule_ref, _| observed.webhook_rules().any(|defined| defined.is(rule_ref)));
        let mut synced = Synced::default();
        for defined in observed.webhook_rules() {
            let rule_ref = defined.rule_ref();
            let Some(spec) = &defined.rule.spec.webhook else { continue };
            let webhook = self.rules.entry(rule_ref.clone()).or_insert_with(|| {
                let webhook = RuleWebhook::restore(namespace, spec, defined, observed);
                synced.restored.extend(webhook.tasks.keys().map(|task| Job {
                    rule_ref: rule_ref.clone(),
                    namespace: namespace.to_owned(),
                    spec: spec.clone(),
                    kind: JobKind::Poll { task: *task },
                }));
                webhook
            });
            if webhook.spec != *spec {
                // Verdicts of a webhook with another spec do not apply.
                *webhook = RuleWebhook::new(namespace, spec);
            }
            webhook.retain(&waiting_subjects(observed, defined.rule), now);
            add_state(&mut synced.state, &rule_ref, webhook);
        }
        synced
    }

    /// Starts a planned call. Returns `None` if the rule no longer exists, its last request is
    /// still in progress, or too much is queued: the reconcile after the next response starts it.
    pub fn start(
        &mut self,
        call: &WebhookCall,
        observed: &Observed,
        now: Timestamp,
        new_trace_id: impl FnOnce() -> String,
    ) -> Option<CallStart> {
        let rule = observed.webhook_rules().find(|defined| defined.is(&call.rule_ref))?.rule;
        let spec = rule.spec.webhook.as_ref()?;
        let webhook = self.rules.get_mut(&call.rule_ref)?;
        if webhook.in_flight {
            return None;
        }
        if let Some(backoff) = webhook.backoff.clone().filter(|backoff| now < backoff.until) {
            webhook.fail(call.subjects.values(), &backoff.error, backoff.until);
            return Some(CallStart::Failed);
        }
        if self.queued > QUEUED_MAX - REQUEST_MAX {
            return None;
        }
        let mut resources = Vec::new();
        let mut subjects = BTreeMap::new();
        let mut size = 0;
        for (name, subject) in &call.subjects {
            let pod = observed.pods.iter().find(|pod| pod.name == *name);
            let object = pod.and_then(|pod| pod.object.as_deref());
            let Some(resource) = Resource::pod(name, &spec.parameters, object) else {
                let error = WebhookError::RequestTooLarge.to_string();
                webhook.fail(std::iter::once(subject), &error, now + PAUSE_MAX);
                continue;
            };
            if size + resource.size() > REQUEST_MAX {
                // The next request contains the rest, because the size of a request is limited.
                break;
            }
            size += resource.size();
            resources.push(resource);
            subjects.insert(name.clone(), subject.clone());
        }
        if subjects.is_empty() {
            return Some(CallStart::Failed);
        }
        webhook.begin_request(subjects.values());
        self.queued += size;
        let request = Request {
            trace_id: new_trace_id(),
            rule_name: call.rule_ref.rule.clone(),
            stage: rule.spec.stage,
            resources,
        };
        Some(CallStart::Queued(Box::new(Job {
            rule_ref: call.rule_ref.clone(),
            namespace: webhook.namespace.clone(),
            spec: spec.clone(),
            kind: JobKind::Call { request, subjects },
        })))
    }

    /// Records the response to a request about `subjects`. Returns the number of the task that it
    /// started, if any.
    pub fn record_response(
        &mut self,
        job: &Job,
        subjects: &BTreeMap<PodName, Subject>,
        response: Result<&[u8], &WebhookError>,
        now: Timestamp,
    ) -> Option<u64> {
        if let JobKind::Call { request, .. } = &job.kind {
            // This may be newer than the request: a namespace loses it with its last webhook rule.
            self.queued = self.queued.saturating_sub(request.size());
        }
        self.webhook(job)?.record_response(subjects, response, now)
    }

    /// Returns the service's ID of a task while a Pod waits for it and the webhook's spec is
    /// unchanged.
    #[must_use]
    pub fn task_id(&mut self, job: &Job, task: u64) -> Option<String> {
        self.webhook(job)?.tasks.get(&task).map(|task| task.info.task_id.clone())
    }

    /// Records the response to a poll of a task.
    pub fn record_progress(
        &mut self,
        job: &Job,
        task: u64,
        response: Result<&[u8], &WebhookError>,
        now: Timestamp,
    ) -> TaskState {
        self.webhook(job)
            .map_or(TaskState::Ended, |webhook| webhook.record_progress(task, response, now))
    }

    /// State of the job's rule, if its webhook's spec is unchanged.
    fn webhook(&mut self, job: &Job) -> Option<&mut RuleWebhook> {
        self.rules.get_mut(&job.rule_ref).filter(|webhook| webhook.spec == job.spec)
    }
}

/// Adds the verdicts, the error and the status of one rule to the state of its namespace.
fn add_state(state: &mut WebhookState, rule_ref: &RuleRef, webhook: &RuleWebhook) {
    for (subject, verdict) in &webhook.verdicts {
        state.verdicts.insert((rule_ref.clone(), subject.clone()), verdict.clone());
    }
    if let Some(backoff) = &webhook.backoff {
        state.errors.insert(rule_ref.clone(), backoff.error.clone());
    }
    let status = webhook.status();
    if status != WebhookStatus::default() {
        state.tasks.insert(rule_ref.clone(), status);
    }
}

/// Subjects that wait at a rule's stage.
fn waiting_subjects(observed: &Observed, rule: &Rule) -> BTreeSet<Subject> {
    let pods = observed.pods.iter().map(|pod| (pod, pod.pending_operations(rule.stage)));
    let waiting = pods.filter(|(_, operations)| !operations.is_empty());
    waiting.map(|(pod, operations)| Subject::of(pod, &operations)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use podops_api::transition_rule::{PodTransitionRule, RuleStage};
    use serde_json::json;

    use super::*;
    use crate::{
        rules::webhook_messages::WebhookVerdict,
        view::{PodView, RuleView},
    };

    /// A webhook rule that reads the annotations, and Pods with so many bytes of them.
    fn observed(sizes: &[usize]) -> Observed {
        let parameters = json!([{ "key": "a", "valueFrom": { "fieldRef": { "fieldPath": "metadata.annotations" } } }]);
        let webhook = json!({
            "clientConfig": { "url": "http://gate.invalid" }, "failurePolicy": "Fail",
            "parameters": parameters,
        });
        let rule: PodTransitionRule = serde_json::from_value(json!({
            "metadata": { "name": "gate", "uid": "gate", "generation": 1 },
            "spec": {
                "selector": { "matchLabels": {} }, "rules": [{ "name": "gate", "webhook": webhook }],
            },
        }))
        .unwrap();
        let pods = sizes.iter().enumerate().map(|(n, size)| {
            let name = Some(format!("web-{n}"));
            let annotations = json!({ "metadata": { "annotations": { "x": "x".repeat(*size) } } });
            PodView {
                object: Some(Arc::new(annotations)),
                ..PodView::read(&ObjectMeta { name, ..ObjectMeta::default() })
            }
        });
        Observed {
            rules: vec![RuleView::read(&rule, &BTreeSet::new()).unwrap()],
            pods: pods.collect(),
            ..Observed::default()
        }
    }

    const RULE: &str = "gate";

    fn rule_ref(rule: &str) -> RuleRef {
        RuleRef { uid: RULE.into(), rule: rule.to_owned() }
    }

    fn subject(pod: &PodName) -> Subject {
        Subject { uid: pod.as_str().into(), instances: String::new() }
    }

    /// Call of a rule about all Pods.
    fn call(rule: &str, observed: &Observed) -> WebhookCall {
        let subjects = observed.pods.iter().map(|pod| (pod.name.clone(), subject(&pod.name)));
        let rule_ref = rule_ref(rule);
        let subjects = subjects.collect();
        WebhookCall { rule_ref, stage: RuleStage::PreCheck, subjects }
    }

    #[test]
    fn the_requests_of_a_namespace_have_a_limited_size() {
        let mut observed = observed(&[900 << 10]);
        let defined = observed.rules[0].rules[0].clone();
        let names: Vec<String> = (0..8).map(|n| format!("rule-{n}")).collect();
        observed.rules[0].rules = names
            .iter()
            .map(|name| {
                let mut rule = defined.clone();
                rule.spec.name.clone_from(name);
                rule
            })
            .collect();
        let mut tasks = WebhookTasks::default();
        let now = Timestamp::UNIX_EPOCH;
        tasks.sync("shop", &observed, now);
        let start = |name: &str, tasks: &mut WebhookTasks| {
            tasks.start(&call(name, &observed), &observed, now, String::new)
        };
        let started: Vec<Option<CallStart>> =
            names.iter().map(|name| start(name, &mut tasks)).collect();
        assert_eq!(started.iter().flatten().count(), 4, "of 900 KiB each: {started:?}");
        let Some(CallStart::Queued(job)) = &started[0] else { panic!("{started:?}") };
        let JobKind::Call { subjects, .. } = &job.kind else { panic!("{job:?}") };
        tasks.record_response(job, subjects, Err(&WebhookError::Unreachable), now);
        assert!(matches!(start(&names[4], &mut tasks), Some(CallStart::Queued(_))));
        assert!(start(&names[5], &mut tasks).is_none(), "there is room for one");
    }

    #[test]
    fn large_parameters_are_split_into_requests_of_limited_size() {
        let observed = observed(&[2 << 20, 400 << 10, 400 << 10, 400 << 10, 2 << 20]);
        let mut tasks = WebhookTasks::default();
        tasks.sync("shop", &observed, Timestamp::UNIX_EPOCH);
        let call = call(RULE, &observed);
        let started = tasks.start(&call, &observed, Timestamp::UNIX_EPOCH, String::new);
        let Some(CallStart::Queued(job)) = started else { panic!("{started:?}") };
        let JobKind::Call { request, .. } = &job.kind else { panic!("{job:?}") };
        let sent: Vec<&str> =
            request.resources.iter().map(|resource| resource.name.as_str()).collect();
        assert_eq!(sent, ["web-1", "web-2"], "a third Pod exceeds 1 MiB");
        let verdicts = &tasks.rules[&rule_ref(RULE)].verdicts;
        let too_large = &verdicts[&subject(&"web-0".into())];
        let expected = WebhookError::RequestTooLarge.to_string();
        assert!(
            matches!(too_large, WebhookVerdict::Rejected { reason, .. } if *reason == expected),
            "{too_large:?}"
        );
        for next in ["web-3", "web-4"] {
            assert!(!verdicts.contains_key(&subject(&next.into())), "the next request has {next}");
        }
    }
}
