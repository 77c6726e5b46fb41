//! Measures the cost of changes: API requests from the audit log, Pod watch events, and the memory
//! and CPU time of operator processes.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{ListParams, WatchEvent, WatchParams},
};
use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::{
    audit::Request,
    cluster::TestCluster,
    process::{Memory, cpu_time, memory},
};

/// Time without a Pod event after which all events are considered received.
const QUIET_PERIOD: Duration = Duration::from_millis(500);

/// Cost of one change.
pub struct Cost {
    /// Number of Pods changed.
    pub pods: usize,
    /// Duration of the change.
    pub duration: Duration,
    /// Requests of all clients during the change.
    requests: Vec<Request>,
    /// Watch events during the change, by Pod.
    pod_events: EventCounts,
}

/// Number of watch events by name of the Pod.
type EventCounts = BTreeMap<String, usize>;

impl Cost {
    /// Runs a change and measures its cost.
    ///
    /// # Errors
    ///
    /// If the change fails, or the audit log or the watch cannot be read.
    pub async fn of(
        cluster: &TestCluster,
        pods: usize,
        change: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<Self> {
        let change = Box::pin(change);
        let mut events = PodEvents::watch(cluster).await?;
        // A write of an earlier change whose event was before the watch may be logged after it.
        let earlier = events.settled().await?;
        let start = cluster.audit_log_end()?;
        let started = Instant::now();
        change.await?;
        let duration = started.elapsed();
        let mut pod_events = events.settled().await?;
        for (pod, count) in &mut pod_events {
            *count -= earlier.get(pod).copied().unwrap_or_default();
        }
        let (requests, _) = cluster.requests(start)?;
        Ok(Self { pods, duration, requests, pod_events })
    }

    /// Requests of operators, except for leader election.
    pub fn operator_requests(&self) -> impl Iterator<Item = &Request> {
        self.requests.iter().filter(|r| r.is_operator_request())
    }

    /// Number of operator requests per Pod.
    #[must_use]
    pub fn requests_per_pod(&self) -> f64 {
        self.per_pod(self.operator_requests().count())
    }

    /// Operator requests by operator, verb and resource, one per line, for the message of a failed
    /// test; for example `lifecycle-operator patch pods/status: 200`.
    #[must_use]
    pub fn requests_by_kind(&self) -> String {
        let mut counts = BTreeMap::<String, usize>::new();
        for request in self.operator_requests() {
            let operator = request.operator().unwrap_or_default();
            let kind = format!("{operator} {} {}", request.verb, request.path());
            *counts.entry(kind).or_default() += 1;
        }
        let lines: Vec<String> =
            counts.iter().map(|(kind, count)| format!("{kind}: {count}")).collect();
        lines.join("\n")
    }

    /// Number of operator writes to Pods, per Pod.
    #[must_use]
    pub fn pod_writes_per_pod(&self) -> f64 {
        self.per_pod(
            self.operator_requests().filter(|r| r.is_write() && r.resource() == "pods").count(),
        )
    }

    /// Number of operator writes.
    #[must_use]
    pub fn writes(&self) -> usize {
        self.operator_requests().filter(|r| r.is_write()).count()
    }

    /// Operator writes that failed, conflicts included.
    #[must_use]
    pub fn rejected(&self) -> Vec<&Request> {
        self.operator_requests().filter(|r| r.is_rejected_write()).collect()
    }

    /// Prints how many operator writes failed during a change, and checks that they are not more than
    /// `max`.
    ///
    /// # Errors
    ///
    /// If they are; the error is that of [`Self::ensure_none_rejected`].
    pub fn ensure_few_rejected(&self, change: &str, max: usize) -> anyhow::Result<()> {
        let rejected = self.rejected().len();
        let pods = self.pods;
        eprintln!("{pods} Pods {change}: {rejected} writes rejected");
        if rejected <= max {
            return Ok(());
        }
        self.ensure_none_rejected().with_context(|| format!("{pods} Pods {change}"))
    }

    /// Checks that no operator write failed.
    ///
    /// # Errors
    ///
    /// If one has; the error contains all writes to its object, because another client may have
    /// caused it.
    pub fn ensure_none_rejected(&self) -> anyhow::Result<()> {
        let rejected = self.rejected();
        let Some(first) = rejected.first() else { return Ok(()) };
        let to_object = |r: &&Request| {
            r.is_write() && (r.resource(), r.name()) == (first.resource(), first.name())
        };
        let writes = self.requests.iter().filter(to_object).map(|r| {
            format!("{} {} {} {} {}", r.at, r.user_agent, r.verb, r.subresource(), r.code())
        });
        let writes: Vec<String> = writes.collect();
        let count = rejected.len();
        let object = first.name();
        bail!("{count} writes were rejected, one of these to {object}: {writes:#?}")
    }

    /// Number of Pod writes, by any client, that changed nothing: for each Pod, its successful
    /// writes minus its watch events, because only a write that changes the object causes an event.
    #[must_use]
    pub fn no_op_writes(&self) -> usize {
        self.writes_and_events().map(|(writes, events)| writes.len().saturating_sub(events)).sum()
    }

    /// All writes to the Pods to which a write changed nothing.
    pub fn suspicious_writes(&self) -> impl Iterator<Item = &Request> {
        let suspicious = self.writes_and_events().filter(|(writes, events)| writes.len() > *events);
        suspicious.flat_map(|(writes, _)| writes)
    }

    /// Successful writes and number of watch events of each Pod that was written.
    fn writes_and_events(&self) -> impl Iterator<Item = (Vec<&Request>, usize)> {
        let is_pod_write = |r: &&Request| r.is_write() && r.resource() == "pods" && r.code() < 400;
        let mut writes = BTreeMap::<&str, Vec<&Request>>::new();
        for request in self.requests.iter().filter(is_pod_write) {
            writes.entry(request.name()).or_default().push(request);
        }
        writes.into_iter().map(|(pod, writes)| {
            let events = self.pod_events.get(pod).copied().unwrap_or_default();
            (writes, events)
        })
    }

    /// Maximum number of operator status writes to a resource within any second. Counts the writes
    /// of all its objects, so at most one object should be changing.
    #[must_use]
    pub fn max_status_writes_per_second(&self, plural: &str) -> usize {
        let is_status =
            |r: &&Request| r.is_write() && r.resource() == plural && r.subresource() == "status";
        let mut times: Vec<_> = self.operator_requests().filter(is_status).map(|r| r.at).collect();
        times.sort_unstable();
        let within = |first: usize| {
            let second = jiff::SignedDuration::from_secs(1);
            times[first..].iter().filter(|at| at.duration_since(times[first]) < second).count()
        };
        (0..times.len()).map(within).max().unwrap_or_default()
    }

    fn per_pod(&self, count: usize) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "counts are small")]
        let each = count as f64 / self.pods.max(1) as f64;
        each
    }
}

/// Counts Pod watch events until it is dropped.
struct PodEvents {
    counts: Arc<Mutex<EventCounts>>,
    watch: JoinSet<anyhow::Result<()>>,
}

impl PodEvents {
    async fn watch(cluster: &TestCluster) -> anyhow::Result<Self> {
        let pods: Api<Pod> = Api::all(cluster.plane.admin.clone());
        let now = pods.list_metadata(&ListParams::default().limit(1)).await?;
        let mut version =
            now.metadata.resource_version.context("list without a resourceVersion")?;
        let counts = Arc::new(Mutex::new(EventCounts::new()));
        let counted = counts.clone();
        let mut watch = JoinSet::new();
        watch.spawn(async move {
            loop {
                let events = pods.watch_metadata(&WatchParams::default(), &version).await?;
                let mut events = events.boxed();
                while let Some(event) = events.next().await {
                    match event? {
                        WatchEvent::Added(pod)
                        | WatchEvent::Modified(pod)
                        | WatchEvent::Deleted(pod) => {
                            version = pod.metadata.resource_version.unwrap_or_default();
                            let name = pod.metadata.name.unwrap_or_default();
                            *counted.lock().entry(name).or_default() += 1;
                        }
                        WatchEvent::Bookmark(mark) => version = mark.metadata.resource_version,
                        WatchEvent::Error(error) => anyhow::bail!("Pod watch failed: {error:?}"),
                    }
                }
            }
        });
        Ok(Self { counts, watch })
    }

    /// The events so far, once none arrived for [`QUIET_PERIOD`].
    async fn settled(&mut self) -> anyhow::Result<EventCounts> {
        loop {
            let before = self.counts.lock().clone();
            tokio::time::sleep(QUIET_PERIOD).await;
            if let Some(ended) = self.watch.try_join_next() {
                ended??;
            }
            if *self.counts.lock() == before {
                return Ok(before);
            }
        }
    }
}

/// Resource usage of an operator's process.
pub struct Process {
    pid: u32,
    /// Memory.
    pub memory: Memory,
    /// User and system CPU time.
    pub cpu: Duration,
}

impl Process {
    /// Reads the resource usage of an operator's process.
    ///
    /// # Errors
    ///
    /// If the operator is not running.
    pub fn of(cluster: &TestCluster, operator: &str) -> anyhow::Result<Self> {
        let pid = cluster.operator(operator)?.pid().context("operator is not running")?;
        Ok(Self { pid, memory: memory(pid)?, cpu: cpu_time(pid)? })
    }

    /// CPU time since an earlier reading.
    ///
    /// # Errors
    ///
    /// If the process was restarted since, because its CPU time cannot be compared.
    pub fn cpu_since(&self, before: &Self) -> anyhow::Result<Duration> {
        anyhow::ensure!(self.pid == before.pid, "operator was restarted during the measurement");
        Ok(self.cpu.saturating_sub(before.cpu))
    }
}
