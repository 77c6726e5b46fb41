//! Waits for the plans of an Instance, by a watch.

use std::time::Duration;

use anyhow::{Context as _, bail};
use futures::{StreamExt as _, future::Either};
use kube::{ResourceExt as _, runtime::watcher};
use kubectl_kudo::{
    cli::Wait,
    failure::Failure,
    plans::{Baseline, Progress, progress},
};
use podops_api::kudo::Instance;
use tokio::time::{Instant, timeout_at};

use crate::{cluster::Cluster, output::print_line};

/// State that a command waits for.
pub(super) enum Until<'a> {
    /// The plans that became due after this baseline have run.
    Complete(&'a Baseline),
    /// As `Complete`, and the condition Ready is True.
    Ready(&'a Baseline),
    /// The Instance does not exist.
    Deleted,
}

/// Waits, and calls `show` with each observed state of the Instance. `seconds` of 0 means no
/// timeout.
///
/// # Errors
///
/// If a plan fails, the timeout expires, or the Instance is deleted unexpectedly.
pub(super) async fn wait(
    cluster: &Cluster,
    name: &str,
    until: Until<'_>,
    seconds: u64,
    mut show: impl FnMut(&Instance) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let deadline = (seconds > 0).then(|| Instant::now() + Duration::from_secs(seconds));
    let mut states = watcher::watch_object(cluster.watched_instances()?, name).boxed();
    let mut waits_for = "the Instance has not been read".to_owned();
    loop {
        let next = match deadline {
            Some(deadline) => Either::Left(timeout_at(deadline, states.next())),
            None => Either::Right(async { Ok(states.next().await) }),
        };
        let Ok(next) = next.await else {
            let instance = format!("{}/{name}", cluster.namespace);
            let message = format!("timeout waiting for instance {instance}; {waits_for}");
            return Err(Failure::TimedOut(message).into());
        };
        let state = next.context("the watch has ended")?;
        let Some(instance) = state.context("cannot watch the Instance")? else {
            if matches!(until, Until::Deleted) {
                return Ok(());
            }
            bail!("instance {}/{name} does not exist", cluster.namespace);
        };
        show(&instance)?;
        let (baseline, missing) = match until {
            Until::Deleted => {
                waits_for = deletion_state(&instance);
                continue;
            }
            Until::Complete(baseline) => (baseline, None),
            Until::Ready(baseline) => (baseline, unreadiness(&instance)),
        };
        match (progress(&instance, baseline), missing) {
            (Progress::Failed(message), _) => return Err(Failure::PlanFailed(message).into()),
            (Progress::Invalid(message), _) => bail!("{message}"),
            (Progress::Waiting(reason), _) | (Progress::Complete, Some(reason)) => {
                waits_for = reason;
            }
            (Progress::Complete, None) => return Ok(()),
        }
    }
}

/// With `--wait`, waits until the plans due for a changed Instance have run, and reports that the
/// Instance is ready.
///
/// # Errors
///
/// As [`wait`].
pub(super) async fn wait_until_ready(
    cluster: &Cluster,
    changed: &Instance,
    before: Baseline,
    waiting: Wait,
) -> anyhow::Result<()> {
    if !waiting.wait {
        return Ok(());
    }
    let baseline = before.for_change(changed);
    let name = changed.name_any();
    wait(cluster, &name, Until::Complete(&baseline), waiting.seconds(), |_| Ok(())).await?;
    print_line(&format!("instance {}/{name} ready", cluster.namespace))
}

/// Returns the reason that an Instance is not ready; `None` if the condition Ready is True.
fn unreadiness(instance: &Instance) -> Option<String> {
    let conditions = instance.status.iter().flat_map(|status| &status.conditions);
    let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
    match ready {
        Some(ready) if ready.status == "True" => None,
        Some(ready) => Some(format!("it is not ready: {}: {}", ready.reason, ready.message)),
        None => Some("it is not ready".to_owned()),
    }
}

fn deletion_state(instance: &Instance) -> String {
    let finalizers = instance.metadata.finalizers.clone().unwrap_or_default();
    format!("it has the finalizers {}", finalizers.join(", "))
}
