//! Load that counts what fails: requests over old and new connections, some of them slow.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
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

/// How many clients there are, and how many of them ask for what takes long.
const CLIENTS: usize = 50;
const SLOW_CLIENTS: usize = 4;
/// How often a client asks: all together 2,300 times a second.
const PACE: Duration = Duration::from_millis(20);
/// How many requests go over one connection.
const KEPT: usize = 50;
/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(8);
/// How long one thing that is done to a set may take.
const PATIENCE: Duration = Duration::from_secs(180);
/// How many requests a second are load at all.
const RATE_MIN: f64 = 2000.0;
/// How many failures are remembered in words.
const TOLD_MAX: usize = 20;

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Requests that were answered.
    pub answered: u64,
    /// Requests that were not, or with an error, and connections that were not accepted.
    pub failed: u64,
    /// What some of the failures were, and when after the start.
    pub told: Vec<(Duration, String)>,
}

/// A set whose Pods are processes behind a load balancer, so many of them out at a time.
#[must_use]
pub fn server_set(name: &str, policy: &str, at_once: u32) -> Value {
    json!({
        "updateStrategy": {
            "podUpgradePolicy": policy, "rollingUpdate": { "maxUnavailable": at_once },
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

/// An update in place, another that makes new Pods, and a set that shrinks and grows, each with nothing
/// failed; of a set called `web` with ten Pods.
///
/// # Errors
///
/// If a request failed, or it takes too long.
pub async fn update_recreate_and_scale(cluster: &TestCluster, load: &Load) -> anyhow::Result<()> {
    load.assert_no_failed_requests("at rest")?;
    cluster.set_image("web", &format!("{}:2", server::IMAGE)).await?;
    cluster.wait_until_rolled_out("web", 10, PATIENCE).await?;
    load.assert_no_failed_requests("updated in place")?;
    let recreate = json!({ "updateStrategy": { "podUpgradePolicy": "Recreate" } });
    cluster.patch("web", recreate).await?;
    cluster.set_image("web", &format!("{}:3", server::IMAGE)).await?;
    cluster.wait_until_rolled_out("web", 10, PATIENCE).await?;
    load.assert_no_failed_requests("recreated")?;
    for replicas in [5, 10] {
        cluster.patch("web", json!({ "replicas": replicas })).await?;
        cluster.wait_until_rolled_out("web", replicas, PATIENCE).await?;
        load.assert_no_failed_requests(&format!("scaled to {replicas}"))?;
    }
    anyhow::ensure!(load.rate() >= RATE_MIN, "only {:.0} requests a second", load.rate());
    Ok(())
}

/// Whether an employer of the Pod's namespace holds it.
#[must_use]
pub fn has_protection_finalizer(pod: &Pod, kind: &str, employer: &str) -> bool {
    let namespace = pod.namespace().unwrap_or_default();
    pod.finalizers().contains(&lifecycle_finalizer(kind, &namespace, employer))
}

/// Has nobody look at the traffic of `web` any more, and updates it; tells how many requests failed.
///
/// # Errors
///
/// If it takes too long.
pub async fn update_without_consist(cluster: &TestCluster, load: &Load) -> anyhow::Result<u64> {
    let before = load.tally().failed;
    let free = Patch::Merge(json!({ "metadata": { "labels": { well_known::CONTROL: null } } }));
    cluster.api::<Service>().patch("web", &PatchParams::default(), &free).await?;
    let free = async || {
        let pods = cluster.pods_of("web").await?;
        Ok(!pods.iter().any(|pod| has_protection_finalizer(pod, SERVICE, "web")))
    };
    eventually(TIMEOUT, free).await.context("letting go of all")?;
    let in_place = json!({ "updateStrategy": { "podUpgradePolicy": "InPlaceIfPossible" } });
    cluster.patch("web", in_place).await?;
    cluster.set_image("web", &format!("{}:99", server::IMAGE)).await?;
    cluster.wait_until_rolled_out("web", 10, PATIENCE).await?;
    Ok(load.tally().failed - before)
}

/// Load on one address until this is dropped.
pub struct Load {
    tally: Arc<Mutex<Tally>>,
    _clients: JoinSet<()>,
    since: Instant,
}

impl Load {
    /// Starts asking.
    #[must_use]
    pub fn start(target: SocketAddr) -> Self {
        let (tally, mut clients) = (Arc::<Mutex<Tally>>::default(), JoinSet::new());
        let since = Instant::now();
        for client in 0..CLIENTS {
            let tally = tally.clone();
            let path = if client < SLOW_CLIENTS { format!("{SLOW}2") } else { "/".to_owned() };
            clients.spawn(async move {
                loop {
                    let asked = connection(target, &path, &tally).await;
                    if let Err(error) = asked {
                        let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
                        tally.failed += 1;
                        if tally.told.len() < TOLD_MAX {
                            tally.told.push((since.elapsed(), format!("{path}: {error:#}")));
                        }
                    }
                }
            });
        }
        Self { tally, _clients: clients, since }
    }

    /// What came of it so far.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Fails if a request failed; tells how many did not, after what.
    ///
    /// # Errors
    ///
    /// If one failed; the error is what was told.
    pub fn assert_no_failed_requests(&self, after: &str) -> anyhow::Result<()> {
        let Tally { answered, failed, told } = self.tally();
        eprintln!("{after}: {answered} answered, {failed} failed, {:.0}/s", self.rate());
        anyhow::ensure!(failed == 0, "{after}: {told:#?}");
        Ok(())
    }

    /// Requests a second so far.
    #[must_use]
    pub fn rate(&self) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "not that many")]
        let answered = self.tally().answered as f64;
        answered / self.since.elapsed().as_secs_f64()
    }
}

/// Asks over one connection, a while.
async fn connection(target: SocketAddr, path: &str, tally: &Mutex<Tally>) -> anyhow::Result<()> {
    let stream = TcpStream::connect(target).await.context("connecting")?;
    stream.set_nodelay(true)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let mut pace = tokio::time::interval(PACE);
    for _ in 0..KEPT {
        pace.tick().await;
        sender.ready().await.context("the connection ended")?;
        let request = Request::get(path).header("host", "web").body(Empty::<Bytes>::new())?;
        let answer = timeout(ANSWER, sender.send_request(request)).await.context("no answer")?;
        let answer = answer.context("asking")?;
        let status = answer.status();
        timeout(ANSWER, answer.into_body().collect()).await.context("no body")??;
        anyhow::ensure!(status.is_success(), "status {status}");
        tally.lock().unwrap_or_else(PoisonError::into_inner).answered += 1;
    }
    Ok(())
}
