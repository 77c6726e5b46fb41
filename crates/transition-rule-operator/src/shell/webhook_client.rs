//! Asks services for their word, beside the evaluation and never in it: answers are remembered, and
//! the next look finds them.

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
        Answers, Outcome, Request, Resource, RuleRef, Subject, WebhookVerdict, read_answer,
        read_progress,
    },
    view::{Observed, Rule, RuleView},
};

mod client;
pub(super) use client::is_authority;

/// How many requests of one namespace are under way at a time: one tenant's slow services do not
/// hold up another's.
const CONCURRENT: usize = 4;
/// How long a Pod that a service rejected waits to be asked about again.
const AGAIN: SignedDuration = SignedDuration::from_secs(5);
/// How long a task that ended is told of.
const TOLD: SignedDuration = SignedDuration::from_mins(10);

/// How many of those are.
const HISTORY_MAX: usize = 10;

/// What services said, and who asks them.
pub(super) struct Services {
    memory: Mutex<BTreeMap<RuleRef, Memory>>,
    questions: mpsc::UnboundedSender<Question>,
    /// Namespaces that are to be looked at again.
    wake: mpsc::UnboundedSender<String>,
    local: bool,
    metrics: Metrics,
}

/// What is remembered of one rule's service.
#[derive(Default)]
struct Memory {
    namespace: String,
    spec: TransitionRuleWebhook,
    said: BTreeMap<Subject, WebhookVerdict>,
    /// By our own number: a service may name two tasks alike.
    tasks: BTreeMap<u64, Task>,
    tasks_begun: u64,
    history: Vec<TaskInfo>,
    /// Failures one after another.
    failures: u32,
    /// Until when it is not asked again, and why.
    open: Option<(Timestamp, String)>,
    /// Whether a question is under way.
    busy: bool,
}

/// Pods that a service decides about one after another.
#[derive(Clone)]
struct Task {
    subjects: BTreeMap<String, Subject>,
    info: TaskInfo,
}

/// What is to be sent.
pub(super) struct Question {
    rule_ref: RuleRef,
    namespace: String,
    spec: TransitionRuleWebhook,
    kind: Kind,
}

enum Kind {
    WebhookCall { request: Request, subjects: BTreeMap<String, Subject> },
    Poll { task: u64 },
}

/// The far ends of what [`Services`] sends.
pub(super) struct Ends {
    /// What is to be asked.
    pub(super) questions: mpsc::UnboundedReceiver<Question>,
    /// Namespaces that are to be looked at again.
    pub(super) wake: mpsc::UnboundedReceiver<String>,
}

impl Services {
    /// Nobody has been asked; requests go to this machine and its link only if `local`.
    pub(super) fn new(local: bool, metrics: Metrics) -> (Arc<Self>, Ends) {
        let (questions, requested) = mpsc::unbounded();
        let (wake, woken) = mpsc::unbounded();
        let services = Self { memory: Mutex::default(), questions, wake, local, metrics };
        (Arc::new(services), Ends { questions: requested, wake: woken })
    }

    fn memory(&self) -> MutexGuard<'_, BTreeMap<RuleRef, Memory>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells what is known, and forgets who does not wait any more. Tasks that another process began
    /// are taken over from the rules' statuses.
    pub(super) fn answers(&self, namespace: &str, observed: &Observed, now: Timestamp) -> Answers {
        let mut memory = self.memory();
        memory.retain(|rule_ref, known| {
            let mut rules = webhooks(observed);
            known.namespace != namespace
                || rules.any(|(owner, rule)| {
                    owner.uid == rule_ref.uid && rule.spec.name == rule_ref.rule
                })
        });
        let mut answers = Answers::default();
        for (owner, rule) in webhooks(observed) {
            let rule_ref = RuleRef { uid: owner.uid.clone(), rule: rule.spec.name.clone() };
            let Some(spec) = &rule.spec.webhook else { continue };
            let known = memory.entry(rule_ref.clone()).or_insert_with(|| {
                let namespace = namespace.to_owned();
                let memory = Memory { namespace, ..adopt(owner, rule, spec, observed) };
                for task in memory.tasks.keys() {
                    self.send(question(
                        &rule_ref,
                        &memory.namespace,
                        spec,
                        Kind::Poll { task: *task },
                    ));
                }
                memory
            });
            if known.spec != *spec {
                // Whoever was asked was not the one who is to be asked.
                let namespace = namespace.to_owned();
                *known = Memory { namespace, spec: spec.clone(), ..Memory::default() };
            }
            let waiting = subjects(observed, rule);
            known.said.retain(|subject, _| waiting.contains(subject));
            known.tasks.retain(|_, task| task.subjects.values().any(|s| waiting.contains(s)));
            known.history.retain(|task| {
                task.last_time.as_ref().is_some_and(|at| now.duration_since(at.0) < TOLD)
            });
            for (subject, said) in &known.said {
                answers.said.insert((rule_ref.clone(), subject.clone()), said.clone());
            }
            if let Some((_, error)) = &known.open {
                answers.validation_errors.insert(rule_ref.clone(), error.clone());
            }
            let tasks = known.tasks.values().map(|task| task.info.clone()).collect();
            let status = WebhookStatus { task_states: tasks, history: known.history.clone() };
            if status != WebhookStatus::default() {
                answers.tasks.insert(rule_ref, status);
            }
        }
        answers
    }

    /// Forgets a namespace that has no rules.
    pub(super) fn forget(&self, namespace: &str) {
        self.memory().retain(|_, known| known.namespace != namespace);
    }

    /// Sends the questions of a plan, unless their services are known to fail.
    pub(super) fn webhook_client(
        &self,
        namespace: &str,
        observed: &Observed,
        asks: &[WebhookCall],
        now: Timestamp,
    ) {
        for webhook_client in asks {
            let rule = webhooks(observed).find(|(owner, rule)| {
                owner.uid == webhook_client.rule_ref.uid
                    && rule.spec.name == webhook_client.rule_ref.rule
            });
            let Some((_, rule)) = rule else { continue };
            let Some(spec) = &rule.spec.webhook else { continue };
            let mut memory = self.memory();
            let Some(known) = memory.get_mut(&webhook_client.rule_ref) else { continue };
            if known.busy {
                continue;
            }
            if let Some((until, error)) = known.open.clone().filter(|(until, _)| now < *until) {
                known.fail(webhook_client.subjects.values(), &error, until);
                self.wake(namespace);
                continue;
            }
            known.busy = true;
            for subject in webhook_client.subjects.values() {
                let pending = WebhookVerdict::Pending("its service is being asked".to_owned());
                known.said.insert(subject.clone(), pending);
            }
            let object = |name: &String| {
                observed
                    .pods
                    .iter()
                    .find(|pod| pod.name == *name)
                    .and_then(|pod| pod.object.clone())
            };
            let resources = webhook_client.subjects.keys();
            let resources = resources
                .map(|name| Resource::pod(name, &spec.parameters, object(name).as_deref()))
                .collect();
            let request = Request {
                trace_id: uuid::Uuid::new_v4().to_string(),
                rule_name: webhook_client.rule_ref.rule.clone(),
                stage: rule.spec.stage,
                resources,
            };
            let kind = Kind::WebhookCall { request, subjects: webhook_client.subjects.clone() };
            self.send(question(&webhook_client.rule_ref, namespace, spec, kind));
        }
    }

    fn send(&self, question: Question) {
        if self.questions.unbounded_send(question).is_err() {
            tracing::debug!("Nobody asks services any more");
        }
    }

    fn wake(&self, namespace: &str) {
        if self.wake.unbounded_send(namespace.to_owned()).is_err() {
            tracing::debug!("Nobody looks at namespaces any more");
        }
    }

    /// Asks whatever there is to ask, until it is time to end.
    pub(super) async fn run(
        self: Arc<Self>,
        mut requested: mpsc::UnboundedReceiver<Question>,
        stop: Shutdown,
    ) -> anyhow::Result<()> {
        let mut permits: BTreeMap<String, Arc<Semaphore>> = BTreeMap::new();
        let mut working = FuturesUnordered::new();
        let mut stop = std::pin::pin!(stop.wait());
        loop {
            tokio::select! {
                () = &mut stop => return Ok(()),
                Some(question) = requested.next() => {
                    permits.retain(|_, permit| Arc::strong_count(permit) > 1);
                    let permit = permits.entry(question.namespace.clone());
                    let permit = permit.or_insert_with(|| Arc::new(Semaphore::new(CONCURRENT)));
                    working.push(self.clone().answer(question, permit.clone()));
                }
                Some(()) = working.next() => {}
            }
        }
    }

    /// Sees one question through, and what comes of it: a task is polled to its end.
    async fn answer(self: Arc<Self>, question: Question, permits: Arc<Semaphore>) {
        let task = match &question.kind {
            Kind::WebhookCall { request, subjects } => {
                let answer = self.post(&question.spec, request, &permits).await;
                let task = self.note(&question, subjects, answer);
                self.wake(&question.namespace);
                task
            }
            Kind::Poll { task } => Some(*task),
        };
        if let Some(task) = task {
            self.poll(&question, task, &permits).await;
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
        let authority = config.ca_bundle.as_deref();
        self.call(&config.url, authority, Some(body), (spec, permits)).await
    }

    async fn call(
        &self,
        url: &str,
        authority: Option<&str>,
        body: Option<Vec<u8>>,
        (spec, permits): (&TransitionRuleWebhook, &Semaphore),
    ) -> Result<Bytes, WebhookError> {
        let within = u64::try_from(spec.timeout_seconds).unwrap_or(1).clamp(1, 30);
        let within = Duration::from_secs(within);
        let _permit = permits.acquire().await;
        let timer = self.metrics.asked_seconds.start_timer();
        let answer = send(Call { url, authority, body, within, local: self.local }).await;
        timer.observe_duration();
        let outcome = answer.as_ref().map_or_else(WebhookError::class, |_| "answered");
        self.metrics.requested.with_label_values(&[outcome]).inc();
        answer
    }

    /// Remembers an answer; names the task that it began.
    fn note(
        &self,
        question: &Question,
        subjects: &BTreeMap<String, Subject>,
        answer: Result<Bytes, WebhookError>,
    ) -> Option<u64> {
        let (mut memory, now) = (self.memory(), clock::now());
        let known = memory.get_mut(&question.rule_ref);
        let known = known.filter(|known| known.spec == question.spec)?;
        known.busy = false;
        let names: BTreeSet<String> = subjects.keys().cloned().collect();
        let outcome =
            answer.and_then(|body| read_answer(&body, &names).ok_or(WebhookError::Invalid));
        match outcome {
            Err(error) => {
                known.failures = known.failures.saturating_add(1);
                let wait = backoff::wait(backoff::Kind::Rejected, known.failures);
                let until =
                    SignedDuration::try_from(wait).ok().and_then(|w| now.checked_add(w).ok());
                let until = until.unwrap_or(now);
                known.open = Some((until, error.to_string()));
                known.fail(subjects.values(), &error.to_string(), until);
                None
            }
            Ok(outcome) => {
                (known.failures, known.open) = (0, None);
                known.take(subjects, outcome, now)
            }
        }
    }

    /// Asks how far a task has come, again and again, until it ends or nobody waits for it.
    async fn poll(&self, question: &Question, task: u64, permits: &Semaphore) {
        let Question { namespace, spec, .. } = question;
        let Some(poll) = &spec.client_config.poll else { return };
        let every = Duration::from_secs(u64::try_from(poll.interval_seconds).unwrap_or(5).max(1));
        let limit = SignedDuration::from_secs(poll.timeout_seconds.max(1));
        // Not long after its end, whatever the interval.
        let every = every.min(Duration::try_from(limit).unwrap_or(every));
        loop {
            sleep(every).await;
            let Some(name) = self.task_name(question, task) else { return };
            let answer = match address(&poll.url, &poll.raw_query_key, &name) {
                Some(url) => {
                    self.call(&url, poll.ca_bundle.as_deref(), None, (spec, permits)).await
                }
                None => Err(WebhookError::Address),
            };
            let goes_on = self.note_progress(question, task, answer, limit);
            self.wake(namespace);
            if !goes_on {
                return;
            }
        }
    }

    /// The service's name for a task, while anybody waits for it and the rule asks as it did.
    fn task_name(&self, question: &Question, task: u64) -> Option<String> {
        let memory = self.memory();
        let known = memory.get(&question.rule_ref).filter(|known| known.spec == question.spec)?;
        known.tasks.get(&task).map(|task| task.info.task_id.clone())
    }

    /// Remembers how far a task has come; tells whether it goes on.
    fn note_progress(
        &self,
        question: &Question,
        number: u64,
        answer: Result<Bytes, WebhookError>,
        limit: SignedDuration,
    ) -> bool {
        let now = clock::now();
        let mut memory = self.memory();
        let known = memory.get_mut(&question.rule_ref);
        let Some(known) = known.filter(|known| known.spec == question.spec) else { return false };
        let Some(mut task) = known.tasks.remove(&number) else { return false };
        let names: BTreeSet<String> = task.subjects.keys().cloned().collect();
        let step =
            answer.and_then(|body| read_progress(&body, &names).ok_or(WebhookError::Invalid));
        let begun = task.info.begin_time.as_ref().map_or(now, |at| at.0);
        let late = now.duration_since(begun) >= limit;
        task.info.last_time = Some(Time(whole_second(now)));
        let terminal = match &step {
            Ok(step) => {
                task.pass(&step.passed);
                task.info.message.clone_from(&step.message);
                for (_, subject) in task.subjects.iter().filter(|(n, _)| step.passed.contains(*n)) {
                    known.said.insert(subject.clone(), WebhookVerdict::Passed);
                }
                step.terminal
            }
            Err(error) => {
                task.info.message = error.to_string();
                false
            }
        };
        if !terminal && !late {
            known.tasks.insert(number, task);
            return true;
        }
        let left: Vec<Subject> = task
            .subjects
            .iter()
            .filter(|(name, _)| task.info.processing.contains(name))
            .map(|(_, subject)| subject.clone())
            .collect();
        let until = now.checked_add(AGAIN).unwrap_or(now);
        if let Err(error) = step {
            // It could not be asked to the end.
            known.fail(left.iter(), &error.to_string(), until);
        } else {
            let late = "its service's task took too long";
            let reason = if terminal { "its service stopped its task" } else { late };
            known.reject(left.iter(), reason, until);
        }
        known.history.push(task.info);
        if known.history.len() > HISTORY_MAX {
            known.history.remove(0);
        }
        false
    }
}

impl Memory {
    fn add_task(&mut self, task: Task) -> u64 {
        self.tasks_begun += 1;
        self.tasks.insert(self.tasks_begun, task);
        self.tasks_begun
    }

    /// What a failing service means for Pods is the rule's to say.
    fn fail<'a>(
        &mut self,
        subjects: impl Iterator<Item = &'a Subject>,
        error: &str,
        until: Timestamp,
    ) {
        match self.spec.failure_policy {
            FailurePolicy::Ignore => {
                self.said.extend(subjects.map(|subject| (subject.clone(), WebhookVerdict::Passed)));
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
        self.said.extend(subjects.map(|subject| (subject.clone(), rejected())));
    }

    fn take(
        &mut self,
        subjects: &BTreeMap<String, Subject>,
        outcome: Outcome,
        now: Timestamp,
    ) -> Option<u64> {
        let again = now.checked_add(AGAIN).unwrap_or(now);
        let (passed, task, reason) = match outcome {
            Outcome::Judged { passed, reason } => (passed, None, reason),
            Outcome::Task { passed, id, message } if self.spec.client_config.poll.is_some() => {
                (passed, Some((id, message)), String::new())
            }
            Outcome::Task { passed, .. } => {
                (passed, None, "its service began a task, and the rule has no poll".to_owned())
            }
        };
        let (pass, wait): (Vec<_>, Vec<_>) =
            subjects.iter().partition(|(name, _)| passed.contains(*name));
        self.said
            .extend(pass.iter().map(|(_, subject)| ((*subject).clone(), WebhookVerdict::Passed)));
        let Some((id, message)) = task.filter(|_| !wait.is_empty()) else {
            self.reject(wait.into_iter().map(|(_, subject)| subject), &reason, again);
            return None;
        };
        let pending = || WebhookVerdict::Pending("its service works on it".to_owned());
        self.said.extend(wait.iter().map(|(_, subject)| ((*subject).clone(), pending())));
        let info = TaskInfo {
            task_id: id,
            processing: wait.iter().map(|(name, _)| (*name).clone()).collect(),
            approved: pass.iter().map(|(name, _)| (*name).clone()).collect(),
            begin_time: Some(Time(whole_second(now))),
            last_time: Some(Time(whole_second(now))),
            message,
        };
        Some(self.add_task(Task { subjects: subjects.clone(), info }))
    }
}

impl Task {
    fn pass(&mut self, names: &BTreeSet<String>) {
        let (passed, left) = std::mem::take(&mut self.info.processing)
            .into_iter()
            .partition::<Vec<_>, _>(|name| names.contains(name));
        self.info.processing = left;
        self.info.approved.extend(passed);
    }
}

fn question(
    rule_ref: &RuleRef,
    namespace: &str,
    spec: &TransitionRuleWebhook,
    kind: Kind,
) -> Question {
    Question {
        rule_ref: rule_ref.clone(),
        namespace: namespace.to_owned(),
        spec: spec.clone(),
        kind,
    }
}

fn webhooks(observed: &Observed) -> impl Iterator<Item = (&RuleView, &Rule)> {
    let all =
        observed.rules.iter().flat_map(|owner| owner.rules.iter().map(move |rule| (owner, rule)));
    all.filter(|(_, rule)| rule.spec.webhook.is_some())
}

/// Everybody who waits at a rule's stage.
fn subjects(observed: &Observed, rule: &Rule) -> BTreeSet<Subject> {
    let waiting = observed.pods.iter().map(|pod| (pod, pod.waiting(rule.stage)));
    let waiting = waiting.filter(|(_, operations)| !operations.is_empty());
    waiting.map(|(pod, operations)| Subject::of(pod, &operations)).collect()
}

/// What another process left in a rule's status: tasks that are still to be polled.
///
/// A status names Pods; an operation that began after the task is another one.
fn adopt(
    owner: &RuleView,
    rule: &Rule,
    spec: &TransitionRuleWebhook,
    observed: &Observed,
) -> Memory {
    let mut memory = Memory { spec: spec.clone(), ..Memory::default() };
    let state = owner.status.rule_states.iter().find(|state| state.name == rule.spec.name);
    let Some(status) = state.and_then(|state| state.webhook_status.as_ref()) else { return memory };
    memory.history.clone_from(&status.history);
    if spec.client_config.poll.is_none() {
        return memory;
    }
    for info in &status.task_states {
        let begun = info.begin_time.as_ref().map_or(Timestamp::MIN, |at| at.0);
        let mut of_task = BTreeMap::new();
        for pod in &observed.pods {
            let waiting = pod.waiting(rule.stage);
            // Statuses tell whole seconds.
            let is_older = |at: Timestamp| at.as_second() <= begun.as_second();
            let old = waiting.iter().all(|o| lifecycle::time(&o.instance).is_some_and(is_older));
            if waiting.is_empty() || !old {
                continue;
            }
            let subject = Subject::of(pod, &waiting);
            if info.processing.contains(&pod.name) {
                memory.said.insert(
                    subject.clone(),
                    WebhookVerdict::Pending("its service works on it".to_owned()),
                );
                of_task.insert(pod.name.clone(), subject);
            } else if info.approved.contains(&pod.name) {
                memory.said.insert(subject.clone(), WebhookVerdict::Passed);
                of_task.insert(pod.name.clone(), subject);
            }
        }
        memory.add_task(Task { subjects: of_task, info: info.clone() });
    }
    memory
}

/// The address at which a task is asked about.
fn address(url: &str, key: &str, task: &str) -> Option<String> {
    let mut url = url::Url::parse(url).ok()?;
    url.query_pairs_mut().append_pair(if key.is_empty() { "task-id" } else { key }, task);
    Some(url.into())
}
