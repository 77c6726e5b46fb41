//! Metrics and events of an employer's Pods that wait for their traffic.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use podops_api::well_known;
use podops_client::{
    event::ObjectEvent,
    write::{PODS, Target, Write},
};

use crate::{
    plan::{Plan, REPORT_AFTER, WaitingPod},
    reasons,
    view::Observed,
};

/// Numbers of Pods that wait for their traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitingCounts {
    /// Pods that wait for traffic to start.
    pub enable: i64,
    /// Pods that wait for traffic to end.
    pub drain: i64,
    /// Pods among `drain` that have waited for more than [`REPORT_AFTER`].
    pub stuck: i64,
}

/// Waiting Pods of all employers, by namespace; namespaces without any are not contained.
#[derive(Clone, Debug, Default)]
pub struct WaitingTotals(BTreeMap<String, WaitingCounts>);

impl WaitingTotals {
    /// Replaces an employer's contribution, and returns the total of its namespace.
    pub fn change(
        &mut self,
        namespace: &str,
        before: WaitingCounts,
        now: WaitingCounts,
    ) -> WaitingCounts {
        let total = self.0.entry(namespace.to_owned()).or_default();
        total.enable += now.enable - before.enable;
        total.drain += now.drain - before.drain;
        total.stuck += now.stuck - before.stuck;
        let total = *total;
        if total == WaitingCounts::default() {
            self.0.remove(namespace);
        }
        total
    }
}

impl WaitingCounts {
    /// Counts the waiting Pods of a plan.
    #[must_use]
    pub fn new(plan: &Plan, now: Timestamp) -> Self {
        let draining = plan.waiting.iter().filter(|pod| pod.draining);
        let stuck = plan.waiting.iter().filter(|pod| is_stuck(pod, now));
        let drain = count(draining.count());
        Self { enable: count(plan.waiting.len()) - drain, drain, stuck: count(stuck.count()) }
    }
}

fn count(pods: usize) -> i64 {
    i64::try_from(pods).unwrap_or(i64::MAX)
}

/// Returns whether a Pod has been draining for a long time.
fn is_stuck(pod: &WaitingPod, now: Timestamp) -> bool {
    pod.draining && pod.since.is_some_and(|since| now.duration_since(since) > REPORT_AFTER)
}

/// Returns the warnings about a backend's errors, about the first Pod that has been draining for a
/// long time, and about Pods that are not protected.
#[must_use]
pub fn warnings(observed: &Observed, plan: &Plan, now: Timestamp) -> Vec<ObjectEvent> {
    let mut warnings = Vec::new();
    if let Some(error) = &observed.observation.error {
        warnings.push(reasons::BACKEND_UNAVAILABLE.with(error.clone()));
    }
    if let Some(unfulfilled) = &observed.observation.unfulfilled {
        warnings.push(reasons::BACKEND_REJECTED.with(unfulfilled.clone()));
    }
    if let Some(waiting) = plan.waiting.iter().find(|pod| is_stuck(pod, now)) {
        let message = format!("Pod {}: {}", waiting.pod, waiting.reason);
        warnings.push(reasons::DRAIN_PENDING.with(message));
    }
    warnings.extend(not_protected(observed));
    warnings
}

/// Returns the warning about Pods that nothing can take out of service. It names the first one and
/// not their number, so that it stays the same while others come and go.
fn not_protected(observed: &Observed) -> Option<ObjectEvent> {
    let mut members = observed.members.iter();
    let pod = members.find(|pod| !pod.drainable && !pod.deleting && !pod.terminal)?;
    Some(reasons::TRAFFIC_NOT_PROTECTED.with(format!(
        "Pod {} has no readiness gate {}, so its operations do not wait for its traffic to end; \
         recreate it with the gate",
        pod.name,
        well_known::SERVICE_READY
    )))
}

/// How long a Pod waited until its traffic was observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficChange {
    /// Time from becoming Ready until traffic was observed.
    Enabled(SignedDuration),
    /// Time from leaving service until no traffic was observed.
    Drained(SignedDuration),
}

impl TrafficChange {
    /// Returns the change that a write of this plan concludes by adding or removing a Pod's
    /// finalizer, if it does, and if it is known since when the Pod waited.
    #[must_use]
    pub fn of_write(
        write: &Write,
        observed: &Observed,
        plan: &Plan,
        now: Timestamp,
    ) -> Option<Self> {
        let Target { resource, name, subresource, .. } = write.target();
        if *resource != PODS || subresource.is_some() {
            return None;
        }
        let mut changes = plan.pods.iter();
        let change = changes.find(|change| change.finalizers.is_some() && *change.name == *name)?;
        let member = observed.members.iter().find(|member| member.uid == change.uid)?;
        if !change.releases {
            return Some(Self::Enabled(now.duration_since(member.ready_since?)));
        }
        // A Pod may also be released without draining.
        let is_drained = observed.observation.off_since.contains_key(&change.uid);
        let since = member.unready_since.filter(|_| is_drained)?;
        Some(Self::Drained(now.duration_since(since)))
    }
}
