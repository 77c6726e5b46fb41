//! Leader election by a Lease, for replicas that wait rather than work twice.
//!
//! It saves work; correctness does not rest on it, as a paused holder may come back and write.
//! Expiry is judged by this process's own clock since it last saw the Lease change, never by the
//! times written in it, so clocks need not agree.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{api::coordination::v1::Lease, apimachinery::pkg::apis::meta::v1::MicroTime};
use kube::{Api, Client, api::PostParams};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use super::{args::LeaseArgs, clock, metrics::Metrics, operator::Shutdown};

/// Whether this replica acts.
#[derive(Clone, Debug)]
pub struct Leadership(watch::Receiver<bool>);

impl Leadership {
    /// Always held: for tests, and where there is one replica.
    #[must_use]
    pub fn always() -> Self {
        Self(watch::channel(true).1)
    }

    /// Whether this replica may act now.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until this replica may act.
    pub async fn wait(mut self) {
        if self.0.wait_for(|is_leading| *is_leading).await.is_err() && !self.is_leader() {
            std::future::pending::<()>().await;
        }
    }
}

/// How long the parts of an election last.
#[derive(Clone, Copy, Debug)]
struct Timing {
    duration: Duration,
    renew_deadline: Duration,
}

/// What is known of the Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct LeaseObservation {
    holder: String,
    resource_version: Option<String>,
    /// When this process first saw this version.
    since: Option<Instant>,
}

/// What to do about the Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ElectionAction {
    /// Write one's own name, for the first time or again.
    Acquire,
    /// Leave it to its holder.
    Follow,
    /// It was held, and is no longer: end.
    StepDown,
}

/// Decides, from what was last seen and when this replica last renewed.
fn next(
    me: &str,
    sight: &LeaseObservation,
    renewed: Option<Instant>,
    now: Instant,
    timing: Timing,
) -> ElectionAction {
    let overdue = renewed.is_some_and(|at| now.duration_since(at) >= timing.renew_deadline);
    let taken_away = renewed.is_some() && !sight.holder.is_empty() && sight.holder != me;
    if overdue || taken_away {
        return ElectionAction::StepDown;
    }
    let expired = sight.since.is_some_and(|since| now.duration_since(since) >= timing.duration);
    if sight.holder.is_empty() || sight.holder == me || expired {
        ElectionAction::Acquire
    } else {
        ElectionAction::Follow
    }
}

/// Takes part in one election.
pub(super) struct Elector {
    me: String,
    name: &'static str,
    api: Api<Lease>,
    args: LeaseArgs,
    is_leading: Arc<watch::Sender<bool>>,
    metrics: Metrics,
}

/// An election's outcome as it will stand, and the task that decides it.
pub(super) fn elector(
    name: &'static str,
    args: &LeaseArgs,
    client: Client,
    metrics: &Metrics,
) -> (Leadership, Elector) {
    let (sender, receiver) = watch::channel(!args.leader_elect);
    metrics.leader.set(i64::from(!args.leader_elect));
    let elector = Elector {
        me: args.leader_elect_identity.clone().unwrap_or_else(identity),
        name,
        api: Api::namespaced(client, &args.leader_elect_resource_namespace),
        args: args.clone(),
        is_leading: Arc::new(sender),
        metrics: metrics.clone(),
    };
    (Leadership(receiver), elector)
}

/// The host's name and the process ID: no two processes share both.
fn identity() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}_{}", host.trim(), std::process::id())
}

impl Elector {
    /// Takes part until told to stop, then gives the Lease up.
    ///
    /// # Errors
    ///
    /// If the Lease was held and is lost.
    pub(super) async fn run(self, stop: Shutdown) -> anyhow::Result<()> {
        if !self.args.leader_elect {
            stop.wait().await;
            return Ok(());
        }
        let mut sight = LeaseObservation::default();
        let lost = tokio::select! {
            () = stop.wait() => false,
            () = self.contend(&mut sight) => true,
        };
        let was_leader = self.is_leading.send_replace(false);
        self.metrics.leader.set(0);
        if lost {
            anyhow::bail!("the Lease {} is lost", self.name);
        }
        if was_leader {
            self.release().await;
        }
        Ok(())
    }

    /// Contends for the Lease until it was held and is lost.
    async fn contend(&self, sight: &mut LeaseObservation) {
        let timing = Timing {
            duration: self.args.leader_elect_lease_duration,
            renew_deadline: self.args.leader_elect_renew_deadline,
        };
        let mut renewed: Option<Instant> = None;
        loop {
            // A read that hangs must not outlast the deadline for renewing.
            let seen =
                timeout(self.args.leader_elect_retry_period, self.api.get_opt(self.name)).await;
            let lease = match seen {
                Ok(Ok(lease)) => {
                    observe(sight, lease.as_ref());
                    Some(lease)
                }
                Ok(Err(error)) => {
                    tracing::warn!(%error, "Reading the Lease");
                    None
                }
                Err(_) => None,
            };
            match next(&self.me, sight, renewed, Instant::now(), timing) {
                ElectionAction::StepDown => return,
                ElectionAction::Follow => {}
                ElectionAction::Acquire => {
                    let asked = Instant::now();
                    if let Some(lease) = lease
                        && matches!(
                            timeout(self.args.leader_elect_retry_period, self.write(lease)).await,
                            Ok(true)
                        )
                    {
                        renewed = Some(asked);
                        if !self.is_leading.send_replace(true) {
                            tracing::info!(lease = self.name, identity = self.me, "Leading");
                            self.metrics.leader.set(1);
                        }
                    }
                }
            }
            sleep(self.args.leader_elect_retry_period).await;
        }
    }

    /// Writes one's own name, if nobody wrote since the Lease was read.
    async fn write(&self, seen: Option<Lease>) -> bool {
        let fresh = seen.is_none();
        let mut lease = seen.unwrap_or_default();
        lease.metadata.name = Some(self.name.to_owned());
        let spec = lease.spec.get_or_insert_default();
        let now = MicroTime(clock::now());
        if spec.holder_identity.as_deref() != Some(&self.me) {
            spec.acquire_time = Some(now.clone());
            spec.lease_transitions = Some(spec.lease_transitions.unwrap_or_default() + 1);
        }
        spec.holder_identity = Some(self.me.clone());
        spec.renew_time = Some(now);
        spec.lease_duration_seconds =
            i32::try_from(self.args.leader_elect_lease_duration.as_secs()).ok();
        let params = PostParams::default();
        let written = if fresh {
            self.api.create(&params, &lease).await
        } else {
            self.api.replace(self.name, &params, &lease).await
        };
        written.inspect_err(|error| tracing::debug!(%error, "Writing the Lease")).is_ok()
    }

    /// Empties the Lease, so that the next replica need not wait for it to expire.
    async fn release(&self) {
        let Ok(Ok(Some(mut lease))) =
            timeout(self.args.leader_elect_retry_period, self.api.get_opt(self.name)).await
        else {
            return tracing::warn!("Leaving the Lease to expire, as it cannot be read");
        };
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(&self.me) {
            return;
        }
        spec.holder_identity = Some(String::new());
        spec.renew_time = Some(MicroTime(Timestamp::UNIX_EPOCH));
        spec.lease_duration_seconds = Some(1);
        let params = PostParams::default();
        let write = self.api.replace(self.name, &params, &lease);
        if !matches!(timeout(self.args.leader_elect_retry_period, write).await, Ok(Ok(_))) {
            tracing::warn!("Leaving the Lease to expire");
        }
    }
}

/// Notes what the Lease says, and when it came to say so.
fn observe(sight: &mut LeaseObservation, lease: Option<&Lease>) {
    let resource_version = lease.and_then(|l| l.metadata.resource_version.clone());
    if resource_version == sight.resource_version && sight.since.is_some() {
        return;
    }
    let holder = lease.and_then(|l| l.spec.as_ref()).and_then(|s| s.holder_identity.clone());
    *sight = LeaseObservation {
        holder: holder.unwrap_or_default(),
        resource_version,
        since: Some(Instant::now()),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMING: Timing =
        Timing { duration: Duration::from_secs(15), renew_deadline: Duration::from_secs(10) };

    /// What `me` does, seconds after it saw `holder` write and (if ever) after it last renewed.
    fn check(holder: &str, seen: u64, renewed: Option<u64>, expected: ElectionAction) {
        let now = Instant::now() + Duration::from_secs(1000);
        let ago = |seconds| now.checked_sub(Duration::from_secs(seconds)).unwrap();
        let sight = LeaseObservation {
            holder: holder.to_owned(),
            resource_version: None,
            since: Some(ago(seen)),
        };
        assert_eq!(next("me", &sight, renewed.map(ago), now, TIMING), expected);
    }

    #[test]
    fn a_lease_that_nobody_holds_is_taken() {
        check("", 0, None, ElectionAction::Acquire);
    }

    #[test]
    fn a_live_holder_is_followed_and_a_silent_one_replaced() {
        check("other", 14, None, ElectionAction::Follow);
        check("other", 15, None, ElectionAction::Acquire);
    }

    #[test]
    fn a_holder_that_cannot_renew_steps_down_before_others_may_take_over() {
        check("me", 9, Some(9), ElectionAction::Acquire);
        check("me", 10, Some(10), ElectionAction::StepDown);
    }

    #[test]
    fn a_holder_that_was_replaced_steps_down() {
        check("other", 0, Some(1), ElectionAction::StepDown);
    }

    /// Answers the read and the creation of a Lease, and nothing after that.
    fn freezing() -> Client {
        let asked = std::sync::atomic::AtomicU32::new(0);
        let asked = Arc::new(asked);
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let turn = asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            async move {
                let (code, body) = match turn {
                    0 => (404, br#"{"kind":"Status","code":404,"reason":"NotFound"}"#.to_vec()),
                    1 => (201, request.into_body().collect_bytes().await?.to_vec()),
                    _ => std::future::pending().await,
                };
                let answer = http::Response::builder().status(code);
                Ok::<_, tower::BoxError>(answer.body(kube::client::Body::from(body))?)
            }
        });
        Client::new(service, "default")
    }

    /// What the known crates for this do not: their holder of a Lease never steps down.
    #[tokio::test(start_paused = true)]
    async fn a_holder_whose_server_freezes_steps_down_in_time() {
        let args = LeaseArgs {
            leader_elect: true,
            leader_elect_resource_namespace: "default".to_owned(),
            leader_elect_identity: Some("me".to_owned()),
            leader_elect_lease_duration: TIMING.duration,
            leader_elect_renew_deadline: TIMING.renew_deadline,
            leader_elect_retry_period: Duration::from_secs(2),
        };
        let metrics = Metrics::register(&prometheus::Registry::new()).unwrap();
        let (is_leading, elector) = elector("test", &args, freezing(), &metrics);
        let (_end, stop) = Shutdown::new();
        let election = elector.run(stop);
        tokio::pin!(election);
        tokio::select! {
            ended = &mut election => panic!("never held: {ended:?}"),
            () = is_leading.clone().wait() => {}
        }
        let began = Instant::now();
        let ended = timeout(TIMING.duration * 2, election).await.expect("it holds on");
        assert!(ended.is_err() && !is_leading.is_leader());
        let took = began.elapsed();
        assert!(took < TIMING.duration, "others may have taken the Lease by {took:?}");
    }
}
