//! Leader election with a Lease, so that only one replica reconciles.
//!
//! The Lease avoids duplicate work. Correctness does not depend on it, because a paused leader may
//! resume and write. Expiry is measured with the local clock since the last observed change of the
//! Lease, never with the times stored in it, so clocks need not be synchronized.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{api::coordination::v1::Lease, apimachinery::pkg::apis::meta::v1::MicroTime};
use kube::{Api, Client, api::PostParams};
use podops_client::shell::clock;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use crate::{args::LeaseArgs, metrics::Metrics, shutdown::Shutdown};

/// Leadership of this replica.
#[derive(Clone, Debug)]
pub struct Leadership(watch::Receiver<bool>);

impl Leadership {
    /// Permanent leadership: for tests and single replicas.
    #[must_use]
    pub fn always() -> Self {
        Self(watch::channel(true).1)
    }

    /// Another replica is the leader, for good.
    #[cfg(test)]
    pub(crate) fn never() -> Self {
        Self(watch::channel(false).1)
    }

    /// Returns whether this replica is the leader.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until this replica is the leader.
    pub async fn wait(mut self) {
        if self.0.wait_for(|is_leading| *is_leading).await.is_err() && !self.is_leader() {
            std::future::pending::<()>().await;
        }
    }
}

/// Durations of leader election; see [`LeaseArgs`].
#[derive(Clone, Copy, Debug)]
struct Timing {
    duration: Duration,
    renew_deadline: Duration,
}

/// Last observed state of the Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct LeaseObservation {
    holder: String,
    resource_version: Option<String>,
    /// The highest resourceVersion of the Lease so far, also of a deleted one.
    newest: u64,
    /// True if the Lease has had a newer version: the API server's state was restored.
    is_restored: bool,
    /// Time at which this process first observed this version.
    since: Option<Instant>,
}

/// Next action of leader election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ElectionAction {
    /// Acquire or renew the Lease.
    Acquire,
    /// Another replica is the leader.
    Follow,
    /// Leadership is lost: stop.
    StepDown,
}

/// Decides the next action from the observed Lease and the time of this replica's last renewal.
fn next(
    identity: &str,
    observed: &LeaseObservation,
    renewed: Option<Instant>,
    now: Instant,
    timing: Timing,
) -> ElectionAction {
    let overdue = renewed.is_some_and(|at| now.duration_since(at) >= timing.renew_deadline);
    let replaced = renewed.is_some() && !observed.holder.is_empty() && observed.holder != identity;
    if overdue || replaced {
        return ElectionAction::StepDown;
    }
    let expired = observed.since.is_some_and(|since| now.duration_since(since) >= timing.duration);
    if observed.holder.is_empty() || observed.holder == identity || expired {
        ElectionAction::Acquire
    } else {
        ElectionAction::Follow
    }
}

/// Participant in one leader election.
pub(crate) struct Elector {
    identity: String,
    name: &'static str,
    api: Api<Lease>,
    args: LeaseArgs,
    is_leading: Arc<watch::Sender<bool>>,
    metrics: Metrics,
}

/// Creates the leadership of this replica and the elector that determines it.
pub(crate) fn elector(
    name: &'static str,
    args: &LeaseArgs,
    client: Client,
    metrics: &Metrics,
) -> (Leadership, Elector) {
    let (sender, receiver) = watch::channel(!args.leader_elect);
    metrics.leader.set(i64::from(!args.leader_elect));
    let elector = Elector {
        identity: args.leader_elect_identity.clone().unwrap_or_else(default_identity),
        name,
        api: Api::namespaced(client, &args.leader_elect_resource_namespace),
        args: args.clone(),
        is_leading: Arc::new(sender),
        metrics: metrics.clone(),
    };
    (Leadership(receiver), elector)
}

/// Returns hostname and process ID, which together are unique.
fn default_identity() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}_{}", host.trim(), std::process::id())
}

/// Reason for which this replica stops.
#[derive(Debug, thiserror::Error)]
pub enum LeadershipLost {
    /// The replica was the leader and failed to renew its Lease in time.
    #[error("leadership lost: Lease {lease}")]
    NotRenewed {
        /// Name of the Lease.
        lease: &'static str,
    },
    /// The caches of this replica may be newer than the API server's state, and watches that follow
    /// them receive nothing until it has reached their version again.
    #[error(
        "Lease {lease} is older than before: the API server's state was restored from a backup"
    )]
    Restored {
        /// Name of the Lease.
        lease: &'static str,
    },
}

impl Elector {
    /// Runs leader election until shutdown, then releases the Lease.
    ///
    /// # Errors
    ///
    /// [`LeadershipLost`], also if this replica was not the leader.
    pub(crate) async fn run(self, stop: Shutdown) -> Result<(), LeadershipLost> {
        if !self.args.leader_elect {
            stop.wait().await;
            return Ok(());
        }
        let lost = tokio::select! {
            () = stop.wait() => None,
            lost = self.contend() => Some(lost),
        };
        let was_leader = self.is_leading.send_replace(false);
        self.metrics.leader.set(0);
        if let Some(lost) = lost {
            return Err(lost);
        }
        if was_leader {
            self.release().await;
        }
        Ok(())
    }

    /// Contends for the Lease until leadership is acquired and lost, or the Lease was restored.
    async fn contend(&self) -> LeadershipLost {
        let lease = self.name;
        let timing = Timing {
            duration: self.args.leader_elect_lease_duration,
            renew_deadline: self.args.leader_elect_renew_deadline,
        };
        let mut observed = LeaseObservation::default();
        let mut renewed: Option<Instant> = None;
        loop {
            // A read that hangs must not exceed the renew deadline.
            let read =
                timeout(self.args.leader_elect_retry_period, self.api.get_opt(self.name)).await;
            let found = match read {
                Ok(Ok(found)) => {
                    observe(&mut observed, found.as_ref());
                    Some(found)
                }
                Ok(Err(error)) => {
                    tracing::warn!(%error, "Failed to read the Lease; retrying");
                    None
                }
                Err(_) => None,
            };
            if observed.is_restored {
                return LeadershipLost::Restored { lease };
            }
            match next(&self.identity, &observed, renewed, Instant::now(), timing) {
                ElectionAction::StepDown => return LeadershipLost::NotRenewed { lease },
                ElectionAction::Follow => {}
                ElectionAction::Acquire => {
                    let started = Instant::now();
                    if let Some(found) = found
                        && matches!(
                            timeout(self.args.leader_elect_retry_period, self.write(found)).await,
                            Ok(true)
                        )
                    {
                        renewed = Some(started);
                        if !self.is_leading.send_replace(true) {
                            tracing::info!(lease, identity = self.identity, "Became leader");
                            self.metrics.leader.set(1);
                        }
                    }
                }
            }
            sleep(self.args.leader_elect_retry_period).await;
        }
    }

    /// Acquires or renews the Lease, conditional on the version that was read; returns whether it
    /// succeeded.
    async fn write(&self, read: Option<Lease>) -> bool {
        let is_new = read.is_none();
        let mut lease = read.unwrap_or_default();
        lease.metadata.name = Some(self.name.to_owned());
        let spec = lease.spec.get_or_insert_default();
        let now = MicroTime(clock::now());
        if spec.holder_identity.as_deref() != Some(&self.identity) {
            spec.acquire_time = Some(now.clone());
            spec.lease_transitions = Some(spec.lease_transitions.unwrap_or_default() + 1);
        }
        spec.holder_identity = Some(self.identity.clone());
        spec.renew_time = Some(now);
        spec.lease_duration_seconds =
            i32::try_from(self.args.leader_elect_lease_duration.as_secs()).ok();
        let params = PostParams::default();
        let written = if is_new {
            self.api.create(&params, &lease).await
        } else {
            self.api.replace(self.name, &params, &lease).await
        };
        written.inspect_err(|error| tracing::debug!(%error, "Failed to write the Lease")).is_ok()
    }

    /// Clears the holder of the Lease, so that the next leader need not wait for its expiry.
    async fn release(&self) {
        let Ok(Ok(Some(mut lease))) =
            timeout(self.args.leader_elect_retry_period, self.api.get_opt(self.name)).await
        else {
            return tracing::warn!("Failed to release the Lease: cannot read it; it will expire");
        };
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(&self.identity) {
            return;
        }
        spec.holder_identity = Some(String::new());
        spec.renew_time = Some(MicroTime(Timestamp::UNIX_EPOCH));
        spec.lease_duration_seconds = Some(1);
        let params = PostParams::default();
        let write = self.api.replace(self.name, &params, &lease);
        if !matches!(timeout(self.args.leader_elect_retry_period, write).await, Ok(Ok(_))) {
            tracing::warn!("Failed to release the Lease; it will expire");
        }
    }
}

/// Records the observed Lease, and the time if its version has changed.
fn observe(observed: &mut LeaseObservation, lease: Option<&Lease>) {
    let resource_version = lease.and_then(|l| l.metadata.resource_version.clone());
    if resource_version == observed.resource_version && observed.since.is_some() {
        return;
    }
    let holder = lease.and_then(|l| l.spec.as_ref()).and_then(|s| s.holder_identity.clone());
    let version = resource_version.as_deref().and_then(|version| version.parse().ok());
    *observed = LeaseObservation {
        holder: holder.unwrap_or_default(),
        resource_version,
        newest: observed.newest.max(version.unwrap_or_default()),
        is_restored: version.is_some_and(|version| version < observed.newest),
        since: Some(Instant::now()),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMING: Timing =
        Timing { duration: Duration::from_secs(15), renew_deadline: Duration::from_secs(10) };

    /// Checks the action of `me`, given the seconds since `holder` last changed the Lease and since
    /// `me` last renewed it.
    fn check(holder: &str, changed: u64, renewed: Option<u64>, expected: ElectionAction) {
        let now = Instant::now() + Duration::from_secs(1000);
        let ago = |seconds| now.checked_sub(Duration::from_secs(seconds)).unwrap();
        let observed = LeaseObservation {
            holder: holder.to_owned(),
            since: Some(ago(changed)),
            ..LeaseObservation::default()
        };
        assert_eq!(next("me", &observed, renewed.map(ago), now, TIMING), expected);
    }

    #[test]
    fn a_lease_without_a_holder_is_acquired() {
        check("", 0, None, ElectionAction::Acquire);
    }

    #[test]
    fn a_lease_is_acquired_only_after_it_expired() {
        check("other", 14, None, ElectionAction::Follow);
        check("other", 15, None, ElectionAction::Acquire);
    }

    #[test]
    fn a_leader_steps_down_at_the_renew_deadline() {
        check("me", 9, Some(9), ElectionAction::Acquire);
        check("me", 10, Some(10), ElectionAction::StepDown);
    }

    #[test]
    fn a_replaced_leader_steps_down() {
        check("other", 0, Some(1), ElectionAction::StepDown);
    }

    #[test]
    fn an_earlier_version_of_the_lease_was_restored() {
        let lease = |version: &str| {
            let mut lease = Lease::default();
            lease.metadata.resource_version = Some(version.to_owned());
            lease
        };
        let mut observed = LeaseObservation::default();
        for (read, is_restored) in [
            (Some("7"), false),
            (Some("12"), false),
            (Some("12"), false),
            (None, false),
            (Some("13"), false),
            (None, false),
            (Some("12"), true),
        ] {
            observe(&mut observed, read.map(lease).as_ref());
            assert_eq!(observed.is_restored, is_restored, "{read:?}");
        }
    }

    /// Returns a client whose API server responds to the read and the creation of a Lease, and then
    /// hangs.
    fn client_of_a_hanging_server() -> Client {
        let requests = std::sync::atomic::AtomicU32::new(0);
        let requests = Arc::new(requests);
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let number = requests.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            async move {
                let (code, body) = match number {
                    0 => (404, br#"{"kind":"Status","code":404,"reason":"NotFound"}"#.to_vec()),
                    1 => (201, request.into_body().collect_bytes().await?.to_vec()),
                    _ => std::future::pending().await,
                };
                let response = http::Response::builder().status(code);
                Ok::<_, tower::BoxError>(response.body(kube::client::Body::from(body))?)
            }
        });
        Client::new(service, "default")
    }

    /// Existing leader election crates do not pass this: their leader never steps down.
    #[tokio::test(start_paused = true)]
    async fn a_leader_steps_down_in_time_if_the_api_server_hangs() {
        let args = LeaseArgs {
            leader_elect: true,
            leader_elect_resource_namespace: "default".to_owned(),
            leader_elect_identity: Some("me".to_owned()),
            leader_elect_lease_duration: TIMING.duration,
            leader_elect_renew_deadline: TIMING.renew_deadline,
            leader_elect_retry_period: Duration::from_secs(2),
        };
        let metrics = Metrics::register(&prometheus::Registry::new(), "test").unwrap();
        let (leadership, elector) = elector("test", &args, client_of_a_hanging_server(), &metrics);
        let (_end, stop) = Shutdown::new();
        let election = elector.run(stop);
        tokio::pin!(election);
        tokio::select! {
            ended = &mut election => panic!("never became leader: {ended:?}"),
            () = leadership.clone().wait() => {}
        }
        let started = Instant::now();
        let ended = timeout(TIMING.duration * 2, election).await.expect("the leader steps down");
        assert!(ended.is_err() && !leadership.is_leader());
        let took = started.elapsed();
        assert!(
            took < TIMING.duration,
            "stepped down after {took:?}; the Lease may have a new holder"
        );
    }
}
