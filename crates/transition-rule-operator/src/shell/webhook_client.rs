//! Calls the services of webhook rules in the background, never inside a reconcile: verdicts are
//! kept in memory and used by the next reconcile.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc};

use futures::{StreamExt as _, channel::mpsc, stream::FuturesUnordered};
use hyper::body::Bytes;
use jiff::Timestamp;
use parking_lot::Mutex;
use podops_client::{allow_list::is_allowed, shell::clock};
use podops_runtime::{controller::run_off_thread, shutdown::Shutdown};
use tokio::{
    sync::{Mutex as AsyncMutex, Semaphore},
    task::JoinError,
    time::sleep,
};

use self::client::{Call, send};
use super::metrics::Metrics;
use crate::{
    plan::WebhookCall,
    rules::webhook_messages::{AddressPolicy, Request, WebhookError},
    view::Observed,
    webhook_tasks::{
        CallStart, Job, JobKind, TaskState, WebhookTasks, poll_interval, request_timeout, task_url,
    },
};

mod client;
pub(super) use client::is_ca_bundle;

/// Maximum number of concurrent requests per namespace, so that slow services of one tenant do not
/// delay those of another.
const MAX_CONCURRENT_REQUESTS: usize = 4;

/// Client of all webhook rules, and the verdicts that it received.
pub(super) struct WebhookClient {
    /// Book-keeping by namespace. Each has a lock of its own, because building the requests of one
    /// namespace may take seconds.
    namespaces: Mutex<BTreeMap<String, Arc<AsyncMutex<WebhookTasks>>>>,
    jobs: mpsc::UnboundedSender<Job>,
    /// Namespaces to reconcile because a verdict changed.
    wake: mpsc::UnboundedSender<String>,
    access: WebhookAccess,
    metrics: Metrics,
}

/// Hosts and addresses that webhook rules may call.
pub(super) struct WebhookAccess {
    /// Allowed hosts, as patterns `<namespace>/<host>`.
    pub(super) hosts: Vec<String>,
    /// Allowed addresses.
    pub(super) addresses: AddressPolicy,
}

/// Receiving ends of the channels of a [`WebhookClient`].
pub(super) struct Receivers {
    /// Jobs for [`WebhookClient::run`].
    pub(super) jobs: mpsc::UnboundedReceiver<Job>,
    /// Namespaces to reconcile because a verdict changed.
    pub(super) wake: mpsc::UnboundedReceiver<String>,
}

impl WebhookClient {
    /// Creates a client without verdicts.
    pub(super) fn new(access: WebhookAccess, metrics: Metrics) -> (Arc<Self>, Receivers) {
        let (jobs, job_receiver) = mpsc::unbounded();
        let (wake, wake_receiver) = mpsc::unbounded();
        let client = Self { namespaces: Mutex::default(), jobs, wake, access, metrics };
        (Arc::new(client), Receivers { jobs: job_receiver, wake: wake_receiver })
    }

    /// Adds the known verdicts and tasks to the observed state of a namespace, and queues polls of
    /// the tasks that another process started.
    ///
    /// # Errors
    ///
    /// [`JoinError`] if it panics.
    pub(super) async fn sync(
        &self,
        namespace: &str,
        mut observed: Observed,
        now: Timestamp,
    ) -> Result<Observed, JoinError> {
        if observed.webhook_rules().next().is_none() {
            self.forget(namespace);
            return Ok(observed);
        }
        let tasks = self.namespaces.lock().entry(namespace.to_owned()).or_default().clone();
        let of_namespace = namespace.to_owned();
        let synced = run_off_thread(move || {
            let synced = tasks.blocking_lock().sync(&of_namespace, &observed, now);
            observed.webhooks = synced.state;
            (observed, synced.restored)
        });
        let (observed, restored) = synced.await?;
        for job in restored {
            self.send(job);
        }
        Ok(observed)
    }

    /// Removes the state of a namespace without webhook rules.
    pub(super) fn forget(&self, namespace: &str) {
        self.namespaces.lock().remove(namespace);
    }

    /// Queues the calls of a plan. A call during the backoff of a failing service fails at once.
    /// Returns `observed`.
    ///
    /// # Errors
    ///
    /// [`JoinError`] if it panics.
    pub(super) async fn enqueue(
        &self,
        namespace: &str,
        observed: Observed,
        calls: Vec<WebhookCall>,
        now: Timestamp,
    ) -> Result<Observed, JoinError> {
        let Some(tasks) = self.tasks_of(namespace).filter(|_| !calls.is_empty()) else {
            return Ok(observed);
        };
        let started = run_off_thread(move || {
            let mut tasks = tasks.blocking_lock();
            let started =
                calls.iter().filter_map(|call| tasks.start(call, &observed, now, new_trace_id));
            let started: Vec<CallStart> = started.collect();
            (observed, started)
        });
        let (observed, started) = started.await?;
        for call in started {
            match call {
                CallStart::Queued(job) => self.send(*job),
                CallStart::Failed => self.wake(namespace),
            }
        }
        Ok(observed)
    }

    /// Book-keeping of a namespace; `None` if it has no webhook rules any more.
    fn tasks_of(&self, namespace: &str) -> Option<Arc<AsyncMutex<WebhookTasks>>> {
        self.namespaces.lock().get(namespace).cloned()
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
    ) -> Result<(), Infallible> {
        let mut permits: BTreeMap<String, Arc<Semaphore>> = BTreeMap::new();
        let mut working = FuturesUnordered::new();
        let mut stop = std::pin::pin!(stop.wait());
        loop {
            tokio::select! {
                () = &mut stop => return Ok(()),
                Some(job) = jobs.next() => {
                    permits.retain(|_, permit| Arc::strong_count(permit) > 1);
                    let permit = permits
                        .entry(job.namespace.clone())
                        .or_insert_with(|| Arc::new(Semaphore::new(MAX_CONCURRENT_REQUESTS)));
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
                let response = self.post(&job, request, &permits).await;
                let Some(tasks) = self.tasks_of(&job.namespace) else { return };
                let response = response.as_deref();
                let now = clock::now();
                let task = tasks.lock().await.record_response(&job, subjects, response, now);
                self.wake(&job.namespace);
                task
            }
            JobKind::Poll { task } => Some(*task),
        };
        if let Some(task) = task {
            // Without the request, which may be large: a task may run for a day.
            let job = Job { kind: JobKind::Poll { task }, ..job };
            self.poll(&job, task, &permits).await;
        }
    }

    async fn post(
        &self,
        job: &Job,
        request: &Request,
        permits: &Arc<Semaphore>,
    ) -> Result<Bytes, WebhookError> {
        let mut body = serde_json::to_vec(request).map_err(|_| WebhookError::Invalid)?;
        body.push(b'\n');
        let config = &job.spec.client_config;
        let call = Call {
            url: &config.url,
            ca_bundle: config.ca_bundle.as_deref(),
            body: Some(body),
            timeout_after: request_timeout(&job.spec),
            addresses: self.access.addresses,
        };
        self.call(&job.namespace, call, permits).await
    }

    async fn call(
        &self,
        namespace: &str,
        call: Call<'_>,
        permits: &Arc<Semaphore>,
    ) -> Result<Bytes, WebhookError> {
        if !is_allowed(&self.access.hosts, namespace, &call.host()?) {
            return Err(WebhookError::HostNotAllowed);
        }
        let Ok(permit) = permits.clone().acquire_owned().await else {
            return Err(WebhookError::Unreachable);
        };
        let timer = self.metrics.request_seconds.start_timer();
        let response = send(call, permit).await;
        timer.observe_duration();
        let result = response.as_ref().map_or_else(WebhookError::class, |_| "success");
        self.metrics.requests.with_label_values(&[result]).inc();
        response
    }

    /// Polls a task until it ends, times out or no Pod waits for it.
    async fn poll(&self, job: &Job, task: u64, permits: &Arc<Semaphore>) {
        let Some(poll) = &job.spec.client_config.poll else { return };
        loop {
            sleep(poll_interval(poll)).await;
            let Some(task_id) = self.task_id(job, task).await else { return };
            let response = match task_url(poll, &task_id) {
                Ok(url) => {
                    let call = Call {
                        url: &url,
                        ca_bundle: poll.ca_bundle.as_deref(),
                        body: None,
                        timeout_after: request_timeout(&job.spec),
                        addresses: self.access.addresses,
                    };
                    self.call(&job.namespace, call, permits).await
                }
                Err(error) => Err(error),
            };
            let Some(tasks) = self.tasks_of(&job.namespace) else { return };
            let response = response.as_deref();
            let now = clock::now();
            let state = tasks.lock().await.record_progress(job, task, response, now);
            self.wake(&job.namespace);
            if state == TaskState::Ended {
                return;
            }
        }
    }

    async fn task_id(&self, job: &Job, task: u64) -> Option<String> {
        self.tasks_of(&job.namespace)?.lock().await.task_id(job, task)
    }
}

fn new_trace_id() -> String {
    uuid::Uuid::new_v4().to_string()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prometheus::Registry;

    use super::*;

    #[tokio::test]
    async fn a_host_that_the_flag_does_not_name_is_not_called() {
        let hosts = vec!["shop/gate.invalid".to_owned()];
        let access = WebhookAccess { hosts, addresses: AddressPolicy::Any };
        let metrics = Metrics::register(&Registry::new()).unwrap();
        let (client, _receivers) = WebhookClient::new(access, metrics);
        let permits = Arc::new(Semaphore::new(1));
        let response = async |namespace, url| {
            let call = Call {
                url,
                ca_bundle: None,
                body: None,
                timeout_after: Duration::from_secs(5),
                addresses: AddressPolicy::Any,
            };
            client.call(namespace, call, &permits).await
        };
        let forbidden = Err(WebhookError::HostNotAllowed);
        assert_eq!(response("shop", "http://other.invalid/").await, forbidden);
        assert_eq!(response("tenant", "http://gate.invalid/").await, forbidden);
        assert_ne!(response("shop", "http://gate.invalid/").await, forbidden, "it is called");
    }
}
