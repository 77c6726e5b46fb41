//! HTTP load generator that counts failed requests: new and reused connections, some slow requests.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use http_body_util::{BodyExt as _, Empty};
use hyper::{Request, body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::{
    ResourceExt as _,
    api::{Patch, PatchParams},
};
use parking_lot::Mutex;
use podops_api::{
    consist::{SERVICE, lifecycle_finalizer},
    well_known,
};
use serde_json::{Value, json};
use tokio::{net::TcpStream, task::JoinSet, time::timeout};

use crate::{
    cluster::{TIMEOUT, TestCluster, eventually},
    server::{self, SLOW},
};

/// Number of concurrent clients.
const CLIENTS: usize = 50;
/// Number of those clients that send slow requests.
const SLOW_CLIENTS: usize = 4;
/// Interval between the requests of one client; all clients together send 2,300 requests a second.
const REQUEST_INTERVAL: Duration = Duration::from_millis(20);
/// Number of requests per connection.
const REQUESTS_PER_CONNECTION: usize = 50;
/// Timeout of one response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(8);
/// Timeout of one rollout.
const ROLLOUT_TIMEOUT: Duration = Duration::from_secs(180);
/// Minimum number of requests per second for a run to be meaningful, also beside other tests; the
/// benchmark requires more.
const RATE_MIN: f64 = 500.0;
/// Number of failures kept with their messages.
const FAILURES_MAX: usize = 20;

/// Results of the load since its start.
#[derive(Clone, Debug, Default)]
pub struct LoadStats {
    /// Number of requests with a successful response.
    pub succeeded: u64,
    /// Number of failed requests: no response, an error status, or a refused connection.
    pub failed: u64,
    /// First failures: time since the start, and message.
    pub failures: Vec<(Duration, String)>,
}

/// Spec of a CollaSet whose Pods run server processes, updated by `policy` with `max_unavailable`
/// Pods at a time; to be passed to [`TestCluster::create_and_wait`].
#[must_use]
pub fn server_set(name: &str, policy: &str, max_unavailable: u32) -> Value {
    json!({
        "updateStrategy": {
            "podUpgradePolicy": policy, "rollingUpdate": { "maxUnavailable": max_unavailable },
        },
        "template": {
            "metadata": { "labels": { "app": name } },
            "spec": {
                "terminationGracePeriodSeconds": 5,
                "containers": [{ "name": "web", "image": format!("{}:1", server::IMAGE) }],
            },
        },
    })
}

/// Updates the CollaSet `web` of ten Pods in place, recreates its Pods, and scales it in and out,
/// and checks after each step that no request failed.
///
/// # Errors
///
/// If a request failed, a rollout timed out, or the load was below the minimum rate.
pub async fn update_recreate_and_scale(cluster: &TestCluster, load: &Load) -> anyhow::Result<()> {
    load.assert_no_failed_requests("before any change")?;
    cluster.set_image("web", &format!("{}:2", server::IMAGE)).await?;
    cluster.wait_until_rolled_out("web", 10, ROLLOUT_TIMEOUT).await?;
    load.assert_no_failed_requests("updated in place")?;
    let recreate = json!({ "updateStrategy": { "podUpgradePolicy": "Recreate" } });
    cluster.patch("web", recreate).await?;
    cluster.set_image("web", &format!("{}:3", server::IMAGE)).await?;
    cluster.wait_until_rolled_out("web", 10, ROLLOUT_TIMEOUT).await?;
    load.assert_no_failed_requests("recreated")?;
    for replicas in [5, 10] {
        cluster.patch("web", json!({ "replicas": replicas })).await?;
        cluster.wait_until_rolled_out("web", replicas, ROLLOUT_TIMEOUT).await?;
        load.assert_no_failed_requests(&format!("scaled to {replicas}"))?;
    }
    load.assert_minimum_rate()?;
    Ok(())
}

/// Returns whether the Pod has the protection finalizer of an employer in its namespace.
#[must_use]
pub fn has_protection_finalizer(pod: &Pod, kind: &str, employer: &str) -> bool {
    let namespace = pod.namespace().unwrap_or_default();
    pod.finalizers().contains(&lifecycle_finalizer(kind, &namespace, employer))
}

/// Control run: removes the Service `web` from consist-operator's control, updates the CollaSet
/// `web` in place, and returns the number of requests that failed during the update.
///
/// # Errors
///
/// If the finalizers are not removed or the rollout does not complete in time.
pub async fn update_without_consist(cluster: &TestCluster, load: &Load) -> anyhow::Result<u64> {
    let before = load.stats().failed;
    let unmanage = Patch::Merge(json!({ "metadata": { "labels": { well_known::CONTROL: null } } }));
    // Admission policies may observe their parameters late.
    let unmanaged = async || {
        let patched =
            cluster.api::<Service>().patch("web", &PatchParams::default(), &unmanage).await;
        Ok(patched.is_ok())
    };
    eventually(TIMEOUT, unmanaged).await.context("removing the Service from control")?;
    let unprotected = async || {
        let pods = cluster.pods_of("web").await?;
        Ok(!pods.iter().any(|pod| has_protection_finalizer(pod, SERVICE, "web")))
    };
    eventually(TIMEOUT, unprotected).await.context("waiting for the finalizers to be removed")?;
    let in_place = json!({ "updateStrategy": { "podUpgradePolicy": "InPlaceIfPossible" } });
    cluster.patch("web", in_place).await?;
    cluster.set_image("web", &format!("{}:99", server::IMAGE)).await?;
    cluster.wait_until_rolled_out("web", 10, ROLLOUT_TIMEOUT).await?;
    Ok(load.stats().failed - before)
}

/// Generates load on one address until it is dropped.
pub struct Load {
    stats: Arc<Mutex<LoadStats>>,
    _clients: JoinSet<()>,
    started: Instant,
}

impl Load {
    /// Starts sending requests to `target`.
    #[must_use]
    pub fn start(target: SocketAddr) -> Self {
        let (stats, mut clients) = (Arc::<Mutex<LoadStats>>::default(), JoinSet::new());
        let started = Instant::now();
        for client in 0..CLIENTS {
            let stats = stats.clone();
            let path = if client < SLOW_CLIENTS { format!("{SLOW}2") } else { "/".to_owned() };
            clients.spawn(async move {
                loop {
                    if let Err(error) = run_connection(target, &path, &stats).await {
                        let mut stats = stats.lock();
                        stats.failed += 1;
                        if stats.failures.len() < FAILURES_MAX {
                            stats.failures.push((started.elapsed(), format!("{path}: {error:#}")));
                        }
                    }
                }
            });
        }
        Self { stats, _clients: clients, started }
    }

    /// Results so far.
    #[must_use]
    pub fn stats(&self) -> LoadStats {
        self.stats.lock().clone()
    }

    /// Prints the results so far and checks that no request failed.
    ///
    /// # Errors
    ///
    /// If a request failed; the error lists the first failures.
    pub fn assert_no_failed_requests(&self, after: &str) -> anyhow::Result<()> {
        let LoadStats { succeeded, failed, failures } = self.stats();
        eprintln!("{after}: {succeeded} succeeded, {failed} failed, {:.0}/s", self.rate());
        anyhow::ensure!(failed == 0, "{after}: {failed} requests failed: {failures:#?}");
        Ok(())
    }

    /// Checks that the run is meaningful.
    ///
    /// # Errors
    ///
    /// If there were too few requests per second.
    pub fn assert_minimum_rate(&self) -> anyhow::Result<()> {
        anyhow::ensure!(self.rate() >= RATE_MIN, "only {:.0} requests/s", self.rate());
        Ok(())
    }

    /// Average number of successful requests per second so far.
    #[must_use]
    pub fn rate(&self) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "not that many")]
        let succeeded = self.stats().succeeded as f64;
        succeeded / self.started.elapsed().as_secs_f64()
    }
}

/// Sends [`REQUESTS_PER_CONNECTION`] requests over one new connection.
async fn run_connection(
    target: SocketAddr,
    path: &str,
    stats: &Mutex<LoadStats>,
) -> anyhow::Result<()> {
    let stream = TcpStream::connect(target).await.context("connecting")?;
    stream.set_nodelay(true)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let mut interval = tokio::time::interval(REQUEST_INTERVAL);
    for _ in 0..REQUESTS_PER_CONNECTION {
        interval.tick().await;
        sender.ready().await.context("connection closed")?;
        let request = Request::get(path).header("host", "web").body(Empty::<Bytes>::new())?;
        let response = timeout(RESPONSE_TIMEOUT, sender.send_request(request)).await;
        let response = response.context("response timed out")?.context("request failed")?;
        let code = response.status();
        let body = timeout(RESPONSE_TIMEOUT, response.into_body().collect()).await;
        body.context("response body timed out")??;
        anyhow::ensure!(code.is_success(), "status {code}");
        stats.lock().succeeded += 1;
    }
    Ok(())
}
