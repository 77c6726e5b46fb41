//! What a change costs: counted in the audit log and in the events that it caused.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context as _;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{ListParams, WatchEvent, WatchParams},
};
use tokio::task::JoinSet;

use crate::{audit::Request, cluster::TestCluster};

/// How long nothing must happen before everything counts as told.
const SILENCE: Duration = Duration::from_millis(500);

/// What a change cost.
pub struct Cost {
    /// How many Pods it was about.
    pub pods: usize,
    /// How long it took.
    pub took: Duration,
    /// Everybody's requests meanwhile.
    requests: Vec<Request>,
    /// The events of Pods meanwhile.
    pod_events: usize,
}

impl Cost {
    /// Measures a change.
    ///
    /// # Errors
    ///
    /// If the change fails, or cannot be followed.
    pub async fn of(
        cluster: &TestCluster,
        pods: usize,
        change: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<Self> {
        let events = PodEvents::follow(cluster).await?;
        let start = cluster.audit_log_end()?;
        let began = Instant::now();
        change.await?;
        let took = began.elapsed();
        let pod_events = events.count().await?;
        let (requests, _) = cluster.requests(start)?;
        Ok(Self { pods, took, requests, pod_events })
    }

    /// Requests of operators, renewals of Leases aside.
    pub fn operator_requests(&self) -> impl Iterator<Item = &Request> {
        self.requests.iter().filter(|r| r.is_work())
    }

    /// Requests of operators, for each Pod.
    #[must_use]
    pub fn requests_per_pod(&self) -> f64 {
        self.per_pod(self.operator_requests().count())
    }

    /// Writes of operators to Pods, for each Pod.
    #[must_use]
    pub fn pod_writes_per_pod(&self) -> f64 {
        self.per_pod(self.operator_requests().filter(|r| r.is_write() && r.resource() == "pods").count())
    }

    /// Writes of operators.
    #[must_use]
    pub fn writes(&self) -> usize {
        self.operator_requests().filter(|r| r.is_write()).count()
    }

    /// Writes of operators that were refused.
    #[must_use]
    pub fn rejected(&self) -> Vec<&Request> {
        self.operator_requests().filter(|r| r.is_rejected_write()).collect()
    }

    /// Writes to Pods, by anybody, that changed nothing: a write that changes something is an
    /// event, and one that changes nothing is none.
    #[must_use]
    pub fn no_op_writes(&self) -> usize {
        let is_done = |r: &&Request| r.is_write() && r.resource() == "pods" && r.code() < 400;
        self.requests.iter().filter(is_done).count().saturating_sub(self.pod_events)
    }

    /// The most writes of the status of objects of a kind in any second: of one object, provided
    /// only one changes.
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

/// Counts events of Pods while it is there.
struct PodEvents {
    count: Arc<AtomicUsize>,
    watch: JoinSet<anyhow::Result<()>>,
}

impl PodEvents {
    async fn follow(cluster: &TestCluster) -> anyhow::Result<Self> {
        let pods: Api<Pod> = Api::all(cluster.plane.admin.clone());
        let now = pods.list_metadata(&ListParams::default().limit(1)).await?;
        let mut version = now.metadata.resource_version.context("a list without a version")?;
        let count = Arc::new(AtomicUsize::new(0));
        let (counted, mut watch) = (count.clone(), JoinSet::new());
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
                            counted.fetch_add(1, Ordering::Relaxed);
                        }
                        WatchEvent::Bookmark(mark) => version = mark.metadata.resource_version,
                        WatchEvent::Error(error) => anyhow::bail!("watching Pods: {error:?}"),
                    }
                }
            }
        });
        Ok(Self { count, watch })
    }

    /// How many there were, once no more come.
    async fn count(mut self) -> anyhow::Result<usize> {
        loop {
            let before = self.count.load(Ordering::Relaxed);
            tokio::time::sleep(SILENCE).await;
            if let Some(ended) = self.watch.try_join_next() {
                ended??;
            }
            if self.count.load(Ordering::Relaxed) == before {
                return Ok(before);
            }
        }
    }
}

/// What an operator's process takes.
pub struct Process {
    pid: u32,
    /// Resident memory.
    pub resident_mebibytes: f64,
    /// The most resident memory that it ever had.
    pub peak_mebibytes: f64,
    /// Processor time, its own and the system's for it.
    pub cpu: Duration,
}

impl Process {
    /// Looks at an operator's process.
    ///
    /// # Errors
    ///
    /// If it does not run.
    pub fn of(cluster: &TestCluster, operator: &str) -> anyhow::Result<Self> {
        let pid = cluster.operator(operator)?.pid().context("the operator does not run")?;
        let process = procfs::process::Process::new(i32::try_from(pid)?)?;
        let (status, stat) = (process.status()?, process.stat()?);
        #[allow(clippy::cast_precision_loss, reason = "memory is small")]
        let mebibytes = |kibibytes: Option<u64>| kibibytes.unwrap_or_default() as f64 / 1024.0;
        let millis = (stat.utime + stat.stime) * 1000 / procfs::ticks_per_second();
        Ok(Self {
            pid,
            resident_mebibytes: mebibytes(status.vmrss),
            peak_mebibytes: mebibytes(status.vmhwm),
            cpu: Duration::from_millis(millis),
        })
    }

    /// Processor time since an earlier look.
    ///
    /// # Errors
    ///
    /// If it is another process by now, whose time says nothing.
    pub fn cpu_since(&self, before: &Self) -> anyhow::Result<Duration> {
        anyhow::ensure!(self.pid == before.pid, "the operator was restarted meanwhile");
        Ok(self.cpu.saturating_sub(before.cpu))
    }
}
