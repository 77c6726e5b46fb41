//! Calls the services of webhook rules in the background, never inside a reconcile: verdicts are
//! kept in memory and used by the next reconcile.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{StreamExt as _, channel::mpsc, stream::FuturesUnordered};
use hyper::body::Bytes;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podops_api::{
    lifecycle,
    transition_rule::{FailurePolicy, TaskInfo, TransitionRuleWebhook, WebhookStatus},
};
use podops_runtime::{
    backoff,
    shell::{clock, operator::Shutdown},
};
use tokio::{sync::Semaphore, time::sleep};

use self::client::{Call, WebhookError, send};
use super::metrics::Metrics;
use crate::{
    plan::{WebhookCall, whole_second},
    rules::webhook::{
        Outcome, REQUEST_IN_PROGRESS, Request, Resource, RuleRef, Subject, TASK_IN_PROGRESS,
        WebhookState, WebhookVerdict, read_response, read_task_response,
    },
    view::{Observed, Rule, RuleView},
};

mod client;
pub(super) use client::is_ca_bundle;

/// Maximum number of concurrent requests per namespace, so that slow services of one tenant do not
/// delay those of another.
const MAX_CONCURRENT_REQUESTS: usize = 4;
/// Time until the webhook is called again for a rejected Pod.
const RETRY_INTERVAL: SignedDuration = SignedDuration::from_secs(5);
/// Time for which a finished task stays in the status.
const HISTORY_RETENTION: SignedDuration = SignedDuration::from_mins(10);
/// Maximum number of finished tasks in the status of one rule.
const HISTORY_MAX: usize = 10;

/// Client of all webhook rules, and the verdicts that it received.
pub(super) struct WebhookClient {
    rules: Mutex<BTreeMap<RuleRef, RuleWebhook>>,
    jobs: mpsc::UnboundedSender<Job>,
    /// Namespaces to reconcile because a verdict changed.
    wake: mpsc::UnboundedSender<String>,
    allow_private: bool,
    metrics: Metrics,
}

/// State of one webhook rule.
#[derive(Default)]
struct RuleWebhook {
    namespace: String,
    spec: TransitionRuleWebhook,
    verdicts: BTreeMap<Subject, WebhookVerdict>,
    /// Running tasks by a local number, because task IDs of a service may not be unique.
    tasks: BTreeMap<u64, Task>,
    /// Number of the last task.
    last_task: u64,
    history: Vec<TaskInfo>,
    /// Consecutive failures.
    failures: u32,
    /// Earliest time of the next call after a failure, and the error.
    retry_at: Option<(Timestamp, String)>,
    /// True while a request is queued or in progress.
    in_flight: bool,
}

/// Task of a service, which decides on its Pods one after another.
#[derive(Clone)]
struct Task {
    subjects: BTreeMap<String, Subject>,
    info: TaskInfo,
}

/// Queued request, or task to poll.
pub(super) struct Job {
    rule_ref: RuleRef,
    namespace: String,
    spec: TransitionRuleWebhook,
    kind: JobKind,
}

enum JobKind {
    Call { request: Request, subjects: BTreeMap<String, Subject> },
    Poll { task: u64 },
}

/// Receiving ends of the channels of a [`WebhookClient`].
pub(super) struct Receivers {
    /// Jobs for [`WebhookClient::run`].
    pub(super) jobs: mpsc::UnboundedReceiver<Job>,
    /// Namespaces to reconcile because a verdict changed.
    pub(super) wake: mpsc::UnboundedReceiver<String>,
}

impl WebhookClient {
    /// Creates a client without verdicts. Loopback, link-local and metadata addresses are called
    /// only if `allow_private`.
    pub(super) fn new(allow_private: bool, metrics: Metrics) -> (Arc<Self>, Receivers) {
        let (jobs, job_receiver) = mpsc::unbounded();
        let (wake, wake_receiver) = mpsc::unbounded();
        let client = Self { rules: Mutex::default(), jobs, wake, allow_private, metrics };
        (Arc::new(client), Receivers { jobs: job_receiver, wake: wake_receiver })
    }

    fn rules(&self) -> MutexGuard<'_, BTreeMap<RuleRef, RuleWebhook>> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the known verdicts and tasks of a namespace, and removes those of Pods and rules
    /// that no longer wait. Tasks started by another process are restored from the rules' statuses.
    pub(super) fn state(
        &self,
        namespace: &str,
        observed: &Observed,
        now: Timestamp,
    ) -> WebhookState {
        let mut rules = self.rules();
        rules.retain(|rule_ref, webhook| {
            let mut rules = webhooks(observed);
            webhook.namespace != namespace
                || rules.any(|(owner, rule)| {
                    owner.uid == rule_ref.uid && rule.spec.name == rule_ref.rule
                })
        });
        let mut state = WebhookState::default();
        for (owner, rule) in webhooks(observed) {
            let rule_ref = RuleRef { uid: owner.uid.clone(), rule: rule.spec.name.clone() };
            let Some(spec) = &rule.spec.webhook else { continue };
            let webhook = rules.entry(rule_ref.clone()).or_insert_with(|| {
                let namespace = namespace.to_owned();
                let webhook = RuleWebhook { namespace, ..restore(owner, rule, spec, observed) };
                for task in webhook.tasks.keys() {
                    self.send(job(
                        &rule_ref,
                        &webhook.namespace,
                        spec,
                        JobKind::Poll { task: *task },
                    ));
                }
                webhook
            });
            if webhook.spec != *spec {
                // Verdicts of a webhook with another spec do not apply.
                let namespace = namespace.to_owned();
                *webhook = RuleWebhook { namespace, spec: spec.clone(), ..RuleWebhook::default() };
            }
            let waiting = waiting_subjects(observed, rule);
            webhook.verdicts.retain(|subject, _| waiting.contains(subject));
            webhook.tasks.retain(|_, task| task.subjects.values().any(|s| waiting.contains(s)));
            webhook.history.retain(|task| {
                task.last_time
                    .as_ref()
                    .is_some_and(|at| now.duration_since(at.0) < HISTORY_RETENTION)
            });
            for (subject, verdict) in &webhook.verdicts {
                state.verdicts.insert((rule_ref.clone(), subject.clone()), verdict.clone());
            }
            if let Some((_, error)) = &webhook.retry_at {
                state.errors.insert(rule_ref.clone(), error.clone());
            }
            let tasks = webhook.tasks.values().map(|task| task.info.clone()).collect();
            let status = WebhookStatus { task_states: tasks, history: webhook.history.clone() };
            if status != WebhookStatus::default() {
                state.tasks.insert(rule_ref, status);
            }
        }
        state
    }

    /// Removes the state of a namespace without rules.
    pub(super) fn forget(&self, namespace: &str) {
        self.rules().retain(|_, webhook| webhook.namespace != namespace);
    }

    /// Queues the calls of a plan. A call during the backoff of a failing service fails at once.
    pub(super) fn enqueue(
        &self,
        namespace: &str,
        observed: &Observed,
        calls: &[WebhookCall],
        now: Timestamp,
    ) {
        for call in calls {
            let rule = webhooks(observed).find(|(owner, rule)| {
                owner.uid == call.rule_ref.uid && rule.spec.name == call.rule_ref.rule
            });
            let Some((_, rule)) = rule else { continue };
            let Some(spec) = &rule.spec.webhook else { continue };
            let mut rules = self.rules();
            let Some(webhook) = rules.get_mut(&call.rule_ref) else { continue };
            if webhook.in_flight {
                continue;
            }
            if let Some((until, error)) = webhook.retry_at.clone().filter(|(until, _)| now < *until)
            {
                webhook.fail(call.subjects.values(), &error, until);
                self.wake(namespace);
                continue;
            }
            webhook.in_flight = true;
            for subject in call.subjects.values() {
                let pending = WebhookVerdict::Pending(REQUEST_IN_PROGRESS.to_owned());
                webhook.verdicts.insert(subject.clone(), pending);
            }
            let object = |name: &String| {
                observed
                    .pods
                    .iter()
                    .find(|pod| pod.name == *name)
                    .and_then(|pod| pod.object.clone())
            };
            let resources = call.subjects.keys();
            let resources = resources
                .map(|name| Resource::pod(name, &spec.parameters, object(name).as_deref()))
                .collect();
            let request = Request {
                trace_id: uuid::Uuid::new_v4().to_string(),
                rule_name: call.rule_ref.rule.clone(),
                stage: rule.spec.stage,
                resources,
            };
            let kind = JobKind::Call { request, subjects: call.subjects.clone() };
            self.send(job(&call.rule_ref, namespace, spec, kind));
        }
    }

    fn send(&self, job: Job) {
        if self.jobs.unbounded_send(job).is_err() {
            tracing::debug!("webhook queue closed");
        }
    }

    fn wake(&self, namespace: &str) {
        if self.wake.unbounded_send(namespace.to_owned()).is_err() {
            tracing::debug!("trigger channel closed");
        }
    }

    /// Processes jobs until shutdown.
    pub(super) async fn run(
        self: Arc<Self>,
        mut jobs: mpsc::UnboundedReceiver<Job>,
        stop: Shutdown,
    ) -> anyhow::Result<()> {
        let mut permits: BTreeMap<String, Arc<Semaphore>> = BTreeMap::new();
        let mut working = FuturesUnordered::new();
        let mut stop = std::pin::pin!(stop.wait());
        loop {
            tokio::select! {
                () = &mut stop => return Ok(()),
                Some(job) = jobs.next() => {
                    permits.retain(|_, permit| Arc::strong_count(permit) > 1);
                    let permit = permits.entry(job.namespace.clone());
                    let permit =
                        permit.or_insert_with(|| Arc::new(Semaphore::new(MAX_CONCURRENT_REQUESTS)));
                    working.push(self.clone().process(job, permit.clone()));
                }
                Some(()) = working.next() => {}
            }
        }
    }

    /// Processes one job, and polls the task that it started, if any, until the task ends.
    async fn process(self: Arc<Self>, job: Job, permits: Arc<Semaphore>) {
        let task = match &job.kind {
            JobKind::Call { request, subjects } => {
                let response = self.post(&job.spec, request, &permits).await;
                let task = self.record_response(&job, subjects, response);
                self.wake(&job.namespace);
                task
            }
            JobKind::Poll { task } => Some(*task),
        };
        if let Some(task) = task {
            self.poll(&job, task, &permits).await;
        }
    }

    async fn post(
        &self,
        spec: &TransitionRuleWebhook,
        request: &Request,
        permits: &Semaphore,
    ) -> Result<Bytes, WebhookError> {
        let mut body = serde_json::to_vec(request).map_err(|_| WebhookError::Invalid)?;
        body.push(b'\n');
        let config = &spec.client_config;
        let ca_bundle = config.ca_bundle.as_deref();
        self.call(&config.url, ca_bundle, Some(body), (spec, permits)).await
    }

    async fn call(
        &self,
        url: &str,
        ca_bundle: Option<&str>,
        body: Option<Vec<u8>>,
        (spec, permits): (&TransitionRuleWebhook, &Semaphore),
    ) -> Result<Bytes, WebhookError> {
        let timeout_after = u64::try_from(spec.timeout_seconds).unwrap_or(1).clamp(1, 30);
        let timeout_after = Duration::from_secs(timeout_after);
        let _permit = permits.acquire().await;
        let timer = self.metrics.request_seconds.start_timer();
        let response =
            send(Call { url, ca_bundle, body, timeout_after, allow_private: self.allow_private })
                .await;
        timer.observe_duration();
        let outcome = response.as_ref().map_or_else(WebhookError::class, |_| "answered");
        self.metrics.requests.with_label_values(&[outcome]).inc();
        response
    }

    /// Records the result of a request. Returns the number of the task that it started, if any.
    fn record_response(
        &self,
        job: &Job,
        subjects: &BTreeMap<String, Subject>,
        response: Result<Bytes, WebhookError>,
    ) -> Option<u64> {
        let (mut rules, now) = (self.rules(), clock::now());
        let webhook = rules.get_mut(&job.rule_ref);
        let webhook = webhook.filter(|webhook| webhook.spec == job.spec)?;
        webhook.in_flight = false;
        let names: BTreeSet<String> = subjects.keys().cloned().collect();
        let outcome =
            response.and_then(|body| read_response(&body, &names).ok_or(WebhookError::Invalid));
        match outcome {
            Err(error) => {
                webhook.failures = webhook.failures.saturating_add(1);
                let wait = backoff::wait(backoff::Kind::Rejected, webhook.failures);
                let until =
                    SignedDuration::try_from(wait).ok().and_then(|w| now.checked_add(w).ok());
                let until = until.unwrap_or(now);
                webhook.retry_at = Some((until, error.to_string()));
                webhook.fail(subjects.values(), &error.to_string(), until);
                None
            }
            Ok(outcome) => {
                (webhook.failures, webhook.retry_at) = (0, None);
                webhook.apply(subjects, outcome, now)
            }
        }
    }

    /// Polls a task until it ends, times out or no Pod waits for it.
    async fn poll(&self, job: &Job, task: u64, permits: &Semaphore) {
        let Job { namespace, spec, .. } = job;
        let Some(poll) = &spec.client_config.poll else { return };
        let interval =
            Duration::from_secs(u64::try_from(poll.interval_seconds).unwrap_or(5).max(1));
        let limit = SignedDuration::from_secs(poll.timeout_seconds.max(1));
        // With a longer interval, the timeout would be detected late.
        let interval = interval.min(Duration::try_from(limit).unwrap_or(interval));
        loop {
            sleep(interval).await;
            let Some(task_id) = self.task_id(job, task) else { return };
            let response = match task_url(&poll.url, &poll.raw_query_key, &task_id) {
                Some(url) => {
                    self.call(&url, poll.ca_bundle.as_deref(), None, (spec, permits)).await
                }
                None => Err(WebhookError::Address),
            };
            let is_running = self.record_progress(job, task, response, limit);
            self.wake(namespace);
            if !is_running {
                return;
            }
        }
    }

    /// Returns the task's ID while a Pod waits for it and the webhook's spec is unchanged.
    fn task_id(&self, job: &Job, task: u64) -> Option<String> {
        let rules = self.rules();
        let webhook = rules.get(&job.rule_ref).filter(|webhook| webhook.spec == job.spec)?;
        webhook.tasks.get(&task).map(|task| task.info.task_id.clone())
    }

    /// Records the result of a poll. Returns true if the task is still running.
    fn record_progress(
        &self,
        job: &Job,
        number: u64,
        response: Result<Bytes, WebhookError>,
        limit: SignedDuration,
    ) -> bool {
        let now = clock::now();
        let mut rules = self.rules();
        let webhook = rules.get_mut(&job.rule_ref);
        let Some(webhook) = webhook.filter(|webhook| webhook.spec == job.spec) else {
            return false;
        };
        let Some(mut task) = webhook.tasks.remove(&number) else { return false };
        let names: BTreeSet<String> = task.subjects.keys().cloned().collect();
        let progress = response
            .and_then(|body| read_task_response(&body, &names).ok_or(WebhookError::Invalid));
        let started_at = task.info.begin_time.as_ref().map_or(now, |at| at.0);
        let is_late = now.duration_since(started_at) >= limit;
        task.info.last_time = Some(Time(whole_second(now)));
        let terminal = match &progress {
            Ok(progress) => {
                task.pass(&progress.passed);
                task.info.message.clone_from(&progress.message);
                for (_, subject) in
                    task.subjects.iter().filter(|(n, _)| progress.passed.contains(*n))
                {
                    webhook.verdicts.insert(subject.clone(), WebhookVerdict::Passed);
                }
                progress.terminal
            }
            Err(error) => {
                task.info.message = error.to_string();
                false
            }
        };
        if !terminal && !is_late {
            webhook.tasks.insert(number, task);
            return true;
        }
        let undecided: Vec<Subject> = task
            .subjects
            .iter()
            .filter(|(name, _)| task.info.processing.contains(name))
            .map(|(_, subject)| subject.clone())
            .collect();
        let until = now.checked_add(RETRY_INTERVAL).unwrap_or(now);
        if let Err(error) = progress {
            // The last poll failed, so failurePolicy decides.
            webhook.fail(undecided.iter(), &error.to_string(), until);
        } else {
            let late = || format!("webhook task not finished after {}s", limit.as_secs());
            let reason = if terminal { "webhook stopped the task".to_owned() } else { late() };
            webhook.reject(undecided.iter(), &reason, until);
        }
        webhook.history.push(task.info);
        if webhook.history.len() > HISTORY_MAX {
            webhook.history.remove(0);
        }
        false
    }
}

impl RuleWebhook {
    /// Adds a running task and returns its number.
    fn add_task(&mut self, task: Task) -> u64 {
        self.last_task += 1;
        self.tasks.insert(self.last_task, task);
        self.last_task
    }

    /// Applies the rule's failurePolicy to the subjects of a failed call.
    fn fail<'a>(
        &mut self,
        subjects: impl Iterator<Item = &'a Subject>,
        error: &str,
        until: Timestamp,
    ) {
        match self.spec.failure_policy {
            FailurePolicy::Ignore => {
                self.verdicts
                    .extend(subjects.map(|subject| (subject.clone(), WebhookVerdict::Passed)));
            }
            FailurePolicy::Fail => self.reject(subjects, error, until),
        }
    }

    fn reject<'a>(
        &mut self,
        subjects: impl Iterator<Item = &'a Subject>,
        reason: &str,
        until: Timestamp,
    ) {
        let rejected = || WebhookVerdict::Rejected(reason.to_owned(), until);
        self.verdicts.extend(subjects.map(|subject| (subject.clone(), rejected())));
    }

    /// Applies a response. Returns the number of the task that it started, if any.
    fn apply(
        &mut self,
        subjects: &BTreeMap<String, Subject>,
        outcome: Outcome,
        now: Timestamp,
    ) -> Option<u64> {
        let retry_at = now.checked_add(RETRY_INTERVAL).unwrap_or(now);
        let (passed, task, reason) = match outcome {
            Outcome::Decided { passed, reason } => (passed, None, reason),
            Outcome::Task { passed, id, message } if self.spec.client_config.poll.is_some() => {
                (passed, Some((id, message)), String::new())
            }
            Outcome::Task { passed, .. } => (
                passed,
                None,
                "webhook returned a task, but the rule has no clientConfig.poll".to_owned(),
            ),
        };
        let (pass, waiting): (Vec<_>, Vec<_>) =
            subjects.iter().partition(|(name, _)| passed.contains(*name));
        self.verdicts
            .extend(pass.iter().map(|(_, subject)| ((*subject).clone(), WebhookVerdict::Passed)));
        let Some((id, message)) = task.filter(|_| !waiting.is_empty()) else {
            self.reject(waiting.into_iter().map(|(_, subject)| subject), &reason, retry_at);
            return None;
        };
        let pending = || WebhookVerdict::Pending(TASK_IN_PROGRESS.to_owned());
        self.verdicts.extend(waiting.iter().map(|(_, subject)| ((*subject).clone(), pending())));
        let info = TaskInfo {
            task_id: id,
            processing: waiting.iter().map(|(name, _)| (*name).clone()).collect(),
            approved: pass.iter().map(|(name, _)| (*name).clone()).collect(),
            begin_time: Some(Time(whole_second(now))),
            last_time: Some(Time(whole_second(now))),
            message,
        };
        Some(self.add_task(Task { subjects: subjects.clone(), info }))
    }
}

impl Task {
    /// Moves these Pods from processing to approved.
    fn pass(&mut self, names: &BTreeSet<String>) {
        let (passed, left) = std::mem::take(&mut self.info.processing)
            .into_iter()
            .partition::<Vec<_>, _>(|name| names.contains(name));
        self.info.processing = left;
        self.info.approved.extend(passed);
    }
}

fn job(rule_ref: &RuleRef, namespace: &str, spec: &TransitionRuleWebhook, kind: JobKind) -> Job {
    Job { rule_ref: rule_ref.clone(), namespace: namespace.to_owned(), spec: spec.clone(), kind }
}

fn webhooks(observed: &Observed) -> impl Iterator<Item = (&RuleView, &Rule)> {
    let all =
        observed.rules.iter().flat_map(|owner| owner.rules.iter().map(move |rule| (owner, rule)));
    all.filter(|(_, rule)| rule.spec.webhook.is_some())
}

/// Subjects that wait at a rule's stage.
fn waiting_subjects(observed: &Observed, rule: &Rule) -> BTreeSet<Subject> {
    let waiting = observed.pods.iter().map(|pod| (pod, pod.pending_operations(rule.stage)));
    let waiting = waiting.filter(|(_, operations)| !operations.is_empty());
    waiting.map(|(pod, operations)| Subject::of(pod, &operations)).collect()
}

/// Restores the running tasks of a rule from its status, as another process left them.
///
/// The status contains only Pod names, so an operation that started after the task does not belong
/// to it.
fn restore(
    owner: &RuleView,
    rule: &Rule,
    spec: &TransitionRuleWebhook,
    observed: &Observed,
) -> RuleWebhook {
    let mut webhook = RuleWebhook { spec: spec.clone(), ..RuleWebhook::default() };
    let state = owner.status.rule_states.iter().find(|state| state.name == rule.spec.name);
    let Some(status) = state.and_then(|state| state.webhook_status.as_ref()) else {
        return webhook;
    };
    webhook.history.clone_from(&status.history);
    if spec.client_config.poll.is_none() {
        return webhook;
    }
    for info in &status.task_states {
        let started_at = info.begin_time.as_ref().map_or(Timestamp::MIN, |at| at.0);
        let mut task_subjects = BTreeMap::new();
        for pod in &observed.pods {
            let waiting = pod.pending_operations(rule.stage);
            // Times in a status are whole seconds.
            let is_older = |at: Timestamp| at.as_second() <= started_at.as_second();
            let all_older =
                waiting.iter().all(|o| lifecycle::time(&o.instance).is_some_and(is_older));
            if waiting.is_empty() || !all_older {
                continue;
            }
            let subject = Subject::of(pod, &waiting);
            if info.processing.contains(&pod.name) {
                webhook
                    .verdicts
                    .insert(subject.clone(), WebhookVerdict::Pending(TASK_IN_PROGRESS.to_owned()));
                task_subjects.insert(pod.name.clone(), subject);
            } else if info.approved.contains(&pod.name) {
                webhook.verdicts.insert(subject.clone(), WebhookVerdict::Passed);
                task_subjects.insert(pod.name.clone(), subject);
            }
        }
        webhook.add_task(Task { subjects: task_subjects, info: info.clone() });
    }
    webhook
}

/// URL to poll a task.
fn task_url(url: &str, key: &str, task: &str) -> Option<String> {
    let mut url = url::Url::parse(url).ok()?;
    url.query_pairs_mut().append_pair(if key.is_empty() { "task-id" } else { key }, task);
    Some(url.into())
}
