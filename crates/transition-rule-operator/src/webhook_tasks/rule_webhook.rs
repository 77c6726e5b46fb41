//! State of the webhook of one rule.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podops_api::{
    ids::{LifecycleTime, PodName, whole_second},
    transition_rule::{FailurePolicy, TaskInfo, TransitionRuleWebhook, WebhookStatus},
};
use podops_client::backoff;

use super::timeouts::task_timeout;
use crate::{
    rules::webhook_messages::{
        Outcome, REQUEST_IN_PROGRESS, Subject, TASK_IN_PROGRESS, WebhookError, WebhookVerdict,
        read_response, read_task_response,
    },
    view::{DefinedRule, Observed, PodView},
};

/// Time until the webhook is called again for a rejected Pod.
const RETRY_INTERVAL: SignedDuration = SignedDuration::from_secs(5);
/// Longest time between a rejection, or a failure, and the next call.
pub(super) const PAUSE_MAX: SignedDuration = SignedDuration::from_mins(10);
/// Time for which a finished task stays in the status.
const HISTORY_RETENTION: SignedDuration = SignedDuration::from_mins(10);
/// Maximum number of finished tasks in the status of one rule.
const HISTORY_MAX: usize = 10;

/// State of one webhook rule.
#[derive(Debug, Default)]
pub(super) struct RuleWebhook {
    pub(super) namespace: String,
    pub(super) spec: TransitionRuleWebhook,
    pub(super) verdicts: BTreeMap<Subject, WebhookVerdict>,
    /// Running tasks by a local number, because task IDs of a service may not be unique.
    pub(super) tasks: BTreeMap<u64, Task>,
    /// Number of the last task.
    last_task: u64,
    history: Vec<TaskInfo>,
    /// Consecutive failures.
    failures: u32,
    /// Backoff after a failure.
    pub(super) backoff: Option<Backoff>,
    /// True while a request is queued or in progress.
    pub(super) in_flight: bool,
}

/// Pause of calls to a failing service.
#[derive(Clone, Debug)]
pub(super) struct Backoff {
    /// Earliest time of the next call.
    pub(super) until: Timestamp,
    /// Last error.
    pub(super) error: String,
}

/// Task of a service, which decides on its Pods one after another.
#[derive(Clone, Debug)]
pub(super) struct Task {
    subjects: BTreeMap<PodName, Subject>,
    pub(super) info: TaskInfo,
}

/// State of a task after a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// The task must be polled again.
    Running,
    /// The task has ended, is late or no longer applies.
    Ended,
}

impl RuleWebhook {
    pub(super) fn new(namespace: &str, spec: &TransitionRuleWebhook) -> Self {
        Self { namespace: namespace.to_owned(), spec: spec.clone(), ..Self::default() }
    }

    /// Restores the running tasks of a rule from its status, as another process left them.
    ///
    /// The status contains only Pod names, so an operation that started after the task does not
    /// belong to it.
    pub(super) fn restore(
        namespace: &str,
        spec: &TransitionRuleWebhook,
        defined: DefinedRule<'_>,
        observed: &Observed,
    ) -> Self {
        let DefinedRule { owner, rule } = defined;
        let mut webhook = Self::new(namespace, spec);
        let state = owner.status.rule_states.iter().find(|state| state.name == rule.spec.name);
        let Some(status) = state.and_then(|state| state.webhook_status.as_ref()) else {
            return webhook;
        };
        webhook.history.clone_from(&status.history);
        if spec.client_config.poll.is_none() {
            return webhook;
        }
        for info in &status.task_states {
            let mut task_subjects = BTreeMap::new();
            for pod in &observed.pods {
                let Some(subject) = subject_of_task(pod, defined, info) else { continue };
                let verdict = if info.processing.contains(&pod.name) {
                    WebhookVerdict::Pending(TASK_IN_PROGRESS)
                } else if info.approved.contains(&pod.name) {
                    WebhookVerdict::Passed
                } else {
                    continue;
                };
                webhook.verdicts.insert(subject.clone(), verdict);
                task_subjects.insert(pod.name.clone(), subject);
            }
            webhook.add_task(Task { subjects: task_subjects, info: info.clone() });
        }
        webhook
    }

    /// Adds a running task and returns its number.
    fn add_task(&mut self, task: Task) -> u64 {
        self.last_task += 1;
        self.tasks.insert(self.last_task, task);
        self.last_task
    }

    /// Removes verdicts and tasks for which no Pod waits, and expired history.
    pub(super) fn retain(&mut self, waiting: &BTreeSet<Subject>, now: Timestamp) {
        self.verdicts.retain(|subject, _| waiting.contains(subject));
        self.limit_pauses(now);
        self.tasks.retain(|_, task| task.subjects.values().any(|s| waiting.contains(s)));
        self.history.retain(|task| {
            task.last_time.as_ref().is_some_and(|at| now.duration_since(at.0) < HISTORY_RETENTION)
        });
    }

    /// Shortens pauses that a clock which was set back would prolong.
    fn limit_pauses(&mut self, now: Timestamp) {
        let latest = now + PAUSE_MAX;
        if let Some(backoff) = &mut self.backoff {
            backoff.until = backoff.until.min(latest);
        }
        for verdict in self.verdicts.values_mut() {
            if let WebhookVerdict::Rejected { until, .. } = verdict {
                *until = (*until).min(latest);
            }
        }
    }

    /// Running and finished tasks, for the status.
    pub(super) fn status(&self) -> WebhookStatus {
        WebhookStatus {
            task_states: self.tasks.values().map(|task| task.info.clone()).collect(),
            history: self.history.clone(),
        }
    }

    /// Marks a request about these subjects as in progress.
    pub(super) fn begin_request<'a>(&mut self, subjects: impl Iterator<Item = &'a Subject>) {
        self.in_flight = true;
        self.wait(subjects, REQUEST_IN_PROGRESS);
    }

    fn wait<'a>(&mut self, subjects: impl Iterator<Item = &'a Subject>, reason: &'static str) {
        let pending = WebhookVerdict::Pending(reason);
        self.verdicts.extend(subjects.map(|subject| (subject.clone(), pending.clone())));
    }

    /// Applies the rule's failurePolicy to the subjects of a failed call.
    pub(super) fn fail<'a>(
        &mut self,
        subjects: impl Iterator<Item = &'a Subject>,
        error: &str,
        until: Timestamp,
    ) {
        match self.spec.failure_policy {
            FailurePolicy::Ignore => self.pass(subjects),
            FailurePolicy::Fail => self.reject(subjects, error, until),
        }
    }

    fn pass<'a>(&mut self, subjects: impl Iterator<Item = &'a Subject>) {
        self.verdicts.extend(subjects.map(|subject| (subject.clone(), WebhookVerdict::Passed)));
    }

    fn reject<'a>(
        &mut self,
        subjects: impl Iterator<Item = &'a Subject>,
        reason: &str,
        until: Timestamp,
    ) {
        for subject in subjects {
            let rejected = WebhookVerdict::Rejected { reason: reason.to_owned(), until };
            self.verdicts.insert(subject.clone(), rejected);
        }
    }

    /// Records the result of a request. Returns the number of the task that it started, if any.
    pub(super) fn record_response(
        &mut self,
        subjects: &BTreeMap<PodName, Subject>,
        response: Result<&[u8], &WebhookError>,
        now: Timestamp,
    ) -> Option<u64> {
        self.in_flight = false;
        let names: BTreeSet<PodName> = subjects.keys().cloned().collect();
        let outcome = response
            .map_err(Clone::clone)
            .and_then(|body| read_response(body, &names).ok_or(WebhookError::Invalid));
        match outcome {
            Err(error) => {
                self.failures = self.failures.saturating_add(1);
                let until = backoff_end(self.failures, now);
                let error = error.to_string();
                self.fail(subjects.values(), &error, until);
                self.backoff = Some(Backoff { until, error });
                None
            }
            Ok(outcome) => {
                (self.failures, self.backoff) = (0, None);
                self.apply(subjects, outcome, now)
            }
        }
    }

    /// Applies a response. Returns the number of the task that it started, if any.
    fn apply(
        &mut self,
        subjects: &BTreeMap<PodName, Subject>,
        outcome: Outcome,
        now: Timestamp,
    ) -> Option<u64> {
        let retry_at = now.checked_add(RETRY_INTERVAL).unwrap_or(now);
        let (Outcome::Decided { passed, .. } | Outcome::Task { passed, .. }) = &outcome;
        let split = Split::of(subjects, passed);
        self.pass(split.passed.values().copied());
        match outcome {
            Outcome::Decided { reason, .. } => {
                self.reject(split.others.values().copied(), &reason, retry_at);
                None
            }
            Outcome::Task { .. } if self.spec.client_config.poll.is_none() => {
                let reason = "webhook returned a task, but the rule has no clientConfig.poll";
                self.reject(split.others.values().copied(), reason, retry_at);
                None
            }
            Outcome::Task { id, message, .. } => {
                if split.others.is_empty() {
                    return None;
                }
                self.wait(split.others.values().copied(), TASK_IN_PROGRESS);
                let info = TaskInfo {
                    task_id: id,
                    processing: split.others.keys().map(ToString::to_string).collect(),
                    approved: split.passed.keys().map(ToString::to_string).collect(),
                    begin_time: Some(Time(whole_second(now))),
                    last_time: Some(Time(whole_second(now))),
                    message,
                };
                Some(self.add_task(Task { subjects: subjects.clone(), info }))
            }
        }
    }

    /// Records the result of a poll.
    pub(super) fn record_progress(
        &mut self,
        number: u64,
        response: Result<&[u8], &WebhookError>,
        now: Timestamp,
    ) -> TaskState {
        let Some(limit) = self.spec.client_config.poll.as_ref().map(task_timeout) else {
            return TaskState::Ended;
        };
        let Some(mut task) = self.tasks.remove(&number) else { return TaskState::Ended };
        let names: BTreeSet<PodName> = task.subjects.keys().cloned().collect();
        let progress = response
            .map_err(Clone::clone)
            .and_then(|body| read_task_response(body, &names).ok_or(WebhookError::Invalid));
        task.info.last_time = Some(Time(whole_second(now)));
        let started_at = task.info.begin_time.as_ref().map_or(now, |at| at.0);
        let is_late = now.duration_since(started_at) >= limit;
        let until = now.checked_add(RETRY_INTERVAL).unwrap_or(now);
        match progress {
            Ok(progress) => {
                task.approve(&progress.passed);
                task.info.message = progress.message;
                self.pass(Split::of(&task.subjects, &progress.passed).passed.into_values());
                if !progress.terminal && !is_late {
                    self.tasks.insert(number, task);
                    return TaskState::Running;
                }
                let reason = if progress.terminal {
                    "webhook stopped the task".to_owned()
                } else {
                    format!("webhook task not finished after {}s", limit.as_secs())
                };
                self.reject(task.undecided(), &reason, until);
            }
            Err(error) => {
                task.info.message = error.to_string();
                if !is_late {
                    self.tasks.insert(number, task);
                    return TaskState::Running;
                }
                // The last poll failed, so failurePolicy decides.
                self.fail(task.undecided(), &error.to_string(), until);
            }
        }
        self.add_history(task.info);
        TaskState::Ended
    }

    fn add_history(&mut self, finished: TaskInfo) {
        self.history.push(finished);
        if self.history.len() > HISTORY_MAX {
            self.history.remove(0);
        }
    }
}

impl Task {
    /// Moves these Pods from processing to approved.
    fn approve(&mut self, names: &BTreeSet<PodName>) {
        let (approved, left) = std::mem::take(&mut self.info.processing)
            .into_iter()
            .partition::<Vec<_>, _>(|name| names.contains(&PodName::from(name.as_str())));
        self.info.processing = left;
        self.info.approved.extend(approved);
    }

    /// Subjects that the task has not decided on.
    fn undecided(&self) -> impl Iterator<Item = &Subject> {
        let subjects = self.subjects.iter();
        subjects
            .filter(|(name, _)| self.info.processing.contains(&***name))
            .map(|(_, subject)| subject)
    }
}

/// Subjects by Pod name, split by a verdict.
struct Split<'a> {
    passed: BTreeMap<&'a PodName, &'a Subject>,
    others: BTreeMap<&'a PodName, &'a Subject>,
}

impl<'a> Split<'a> {
    fn of(subjects: &'a BTreeMap<PodName, Subject>, passed: &BTreeSet<PodName>) -> Self {
        let (passed, others) = subjects.iter().partition(|(name, _)| passed.contains(*name));
        Self { passed, others }
    }
}

/// Subject of a Pod in a restored task; `None` if the Pod does not wait or its operation started
/// after the task. Times in a status are whole seconds.
fn subject_of_task(pod: &PodView, defined: DefinedRule<'_>, info: &TaskInfo) -> Option<Subject> {
    let started_at = info.begin_time.as_ref().map_or(Timestamp::MIN, |at| at.0).as_second();
    let waiting = pod.pending_operations(defined.rule.stage);
    let all_older = waiting.iter().all(|operation| {
        LifecycleTime::parse(&operation.instance)
            .is_some_and(|time| time.0.as_second() <= started_at)
    });
    (!waiting.is_empty() && all_older).then(|| Subject::of(pod, &waiting))
}

/// End of the backoff after this number of consecutive failures.
fn backoff_end(failures: u32, now: Timestamp) -> Timestamp {
    let wait = SignedDuration::try_from(backoff::wait(backoff::Kind::Rejected, failures));
    wait.ok().and_then(|wait| now.checked_add(wait).ok()).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_set_back_prolongs_no_pause() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let subject = Subject { uid: "a".into(), instances: "t=1".to_owned() };
        let mut webhook = RuleWebhook::default();
        webhook.spec.failure_policy = FailurePolicy::Fail;
        webhook.record_response(
            &[("web".into(), subject.clone())].into(),
            Err(&WebhookError::Invalid),
            now,
        );
        let before = webhook.verdicts.clone();
        webhook.retain(&[subject.clone()].into(), now);
        assert_eq!(webhook.verdicts, before);
        let a_day_earlier = now - SignedDuration::from_hours(24);
        webhook.retain(&[subject.clone()].into(), a_day_earlier);
        let latest = a_day_earlier + PAUSE_MAX;
        assert!(webhook.backoff.is_some_and(|backoff| backoff.until <= latest));
        let verdict = &webhook.verdicts[&subject];
        assert!(matches!(verdict, WebhookVerdict::Rejected { until, .. } if *until <= latest));
    }
}
