//! Decides the finalizers, conditions and available conditions of an employer's Pods. Pure:
//! observed state and the time in, a [`Plan`] out.
//!
//! A protection finalizer on a Pod stands for observed traffic. It is added when the Pod should
//! receive traffic and the backend was observed to route it, and removed when the Pod should
//! receive none and the backend was observed to route none; an acknowledged request is never
//! enough.

use jiff::{SignedDuration, Timestamp};
use podops_api::{
    availability::AvailableConditions,
    consist,
    ids::{PodName, ResourceVersion, Uid},
};

use crate::{
    desired::desired_traffic,
    policy::DrainStatus,
    reasons,
    traffic::{DesiredTraffic, Traffic},
    view::{EmployerState, MemberView, Observed},
};

/// Changes to an employer and its Pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// New finalizers of the employer, if they change.
    pub finalizers: Option<Vec<String>>,
    /// True if the employer's annotation must be set to its protection finalizer.
    pub report_finalizer: bool,
    /// Changes of Pods' finalizers and annotations.
    pub pods: Vec<PodChange>,
    /// Pods that wait for their traffic to start or to end.
    pub waiting: Vec<WaitingPod>,
    /// Changes of Pods' conditions.
    pub conditions: Vec<ConditionChange>,
    /// Time after which to reconcile again without a trigger.
    pub requeue_after: Option<SignedDuration>,
}

impl Plan {
    /// Returns whether the plan writes the employer's finalizers, and the clean finalizer is not
    /// one of them.
    #[must_use]
    pub fn removes_clean_finalizer(&self) -> bool {
        self.finalizers
            .as_ref()
            .is_some_and(|left| !left.iter().any(|f| f == consist::CLEAN_FINALIZER))
    }
}

/// Change of one Pod's finalizers and annotations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodChange {
    /// Name of the Pod.
    pub name: PodName,
    /// UID of the Pod.
    pub uid: Uid,
    /// Observed resourceVersion.
    pub resource_version: ResourceVersion,
    /// True if `metadata.annotations` exists.
    pub has_annotations: bool,
    /// Observed and new finalizers, if they change.
    pub finalizers: Option<(Vec<String>, Vec<String>)>,
    /// True if the change removes the protection finalizer.
    pub releases: bool,
    /// Observed and new text of the available conditions, if it changes.
    pub available_conditions: Option<(Option<String>, String)>,
}

/// A Pod that waits for its traffic to start or to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingPod {
    /// Name of the Pod.
    pub pod: PodName,
    /// UID of the Pod.
    pub uid: Uid,
    /// Message that states the cause of the wait.
    pub reason: String,
    /// True if the Pod is draining, false if it waits for traffic.
    pub draining: bool,
    /// Time since which it waits, if its conditions report it.
    pub since: Option<Timestamp>,
}

/// Change of a Pod's condition about its employer's traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionChange {
    /// Name of the Pod.
    pub pod: PodName,
    /// UID of the Pod.
    pub uid: Uid,
    /// Type of the condition: the protection finalizer that it explains.
    pub type_: String,
    /// Reason and message of the condition; `None` deletes it.
    pub content: Option<(&'static str, String)>,
}

/// Time for which a Pod waits on an unavailable backend before a condition reports it. A write for
/// every short failure of a backend would cost more than it is worth.
const UNAVAILABLE_REPORT_AFTER: SignedDuration = SignedDuration::from_secs(10);
/// Time for which a Pod waits for another reason before a condition or an event reports it.
pub const REPORT_AFTER: SignedDuration = SignedDuration::from_secs(30);
/// Minimum interval between two changes of one condition's text.
const CONDITION_MIN_INTERVAL: SignedDuration = SignedDuration::from_secs(60);

/// Plans the next writes for an employer and its Pods.
#[must_use]
pub fn plan(observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let active = observed.employer.state == EmployerState::Active;
    let has_clean_finalizer = observed.employer.has_clean_finalizer();
    let finalizer = observed.employer.finalizer();
    plan.report_finalizer =
        active && observed.employer.reported_finalizer.as_ref() != Some(&finalizer);
    // An employer that can be deleted without notice would leave finalizers on Pods that no
    // controller removes.
    if active && !has_clean_finalizer {
        plan.finalizers = Some(employer_finalizers(observed, true));
        return plan;
    }
    for member in &observed.members {
        let waiting = plan.waiting.len();
        plan_member(observed, &finalizer, member, now, &mut plan);
        let waiting = plan.waiting.get(waiting);
        plan.conditions.extend(plan_condition(observed, &finalizer, member, waiting, now));
    }
    let released = !active && plan.pods.is_empty() && plan.waiting.is_empty();
    let finalizers = employer_finalizers(observed, !released && has_clean_finalizer);
    if finalizers != observed.employer.finalizers {
        plan.finalizers = Some(finalizers);
    }
    plan
}

/// Returns the employer's finalizers with or without the clean finalizer, and always without that
/// of earlier versions.
fn employer_finalizers(observed: &Observed, with_clean_finalizer: bool) -> Vec<String> {
    let old = format!("{}{}", consist::OLD_CLEAN_FINALIZER, observed.employer.name);
    let others = observed
        .employer
        .finalizers
        .iter()
        .filter(|finalizer| **finalizer != consist::CLEAN_FINALIZER && **finalizer != old)
        .cloned();
    let own = with_clean_finalizer.then(|| consist::CLEAN_FINALIZER.to_owned());
    others.chain(own).collect()
}

fn plan_member(
    observed: &Observed,
    finalizer: &String,
    member: &MemberView,
    now: Timestamp,
    plan: &mut Plan,
) {
    let has_finalizer = member.has_finalizer(finalizer);
    let desired = desired_traffic(observed.employer.state, member);
    let mut change = PodChange {
        name: member.name.clone(),
        uid: member.uid.clone(),
        resource_version: member.resource_version.clone(),
        has_annotations: member.has_annotations,
        finalizers: None,
        releases: false,
        available_conditions: None,
    };
    match decide(observed, member, desired, has_finalizer, now) {
        Decision::Keep => {}
        Decision::AddFinalizer => {
            let mut with = member.finalizers.clone();
            with.push(finalizer.clone());
            change.finalizers = Some((member.finalizers.clone(), with));
        }
        Decision::Release => {
            let others = member.finalizers.iter().filter(|f| *f != finalizer).cloned();
            change.finalizers = Some((member.finalizers.clone(), others.collect()));
            change.releases = true;
        }
        Decision::Wait { reason, until } => {
            plan.waiting.push(waiting_pod(member, reason, desired));
            let left = until.map(|until| until.duration_since(now));
            plan.requeue_after = [plan.requeue_after, left].into_iter().flatten().min();
        }
    }
    change.available_conditions =
        available_conditions(observed, finalizer, member, has_finalizer && !change.releases);
    if change.finalizers.is_some() || change.available_conditions.is_some() {
        plan.pods.push(change);
    }
}

fn waiting_pod(member: &MemberView, reason: String, desired: DesiredTraffic) -> WaitingPod {
    WaitingPod {
        pod: member.name.clone(),
        uid: member.uid.clone(),
        reason,
        draining: desired == DesiredTraffic::Off,
        since: match desired {
            DesiredTraffic::Off => member.unready_since,
            DesiredTraffic::Serve => member.ready_since,
        },
    }
}

/// Returns the change of a Pod's condition about this employer's traffic, if it is due.
fn plan_condition(
    observed: &Observed,
    finalizer: &str,
    member: &MemberView,
    waiting: Option<&WaitingPod>,
    now: Timestamp,
) -> Option<ConditionChange> {
    let error = observed.observation.error.as_ref();
    let after = if error.is_some() { UNAVAILABLE_REPORT_AFTER } else { REPORT_AFTER };
    let overdue =
        waiting.filter(|w| w.since.is_some_and(|since| now.duration_since(since) > after));
    let content = overdue.map(|waiting| {
        let reason = match (error, waiting.draining) {
            (Some(_), _) => reasons::POD_BACKEND_UNAVAILABLE.name,
            (None, true) => reasons::POD_DRAIN_PENDING.name,
            (None, false) => reasons::POD_NOT_RECEIVING_TRAFFIC.name,
        };
        (reason, format!("{}: {}", observed.employer.key(), waiting.reason))
    });
    let changes = match (&content, &member.reported) {
        (None, None) => false,
        // Keep the condition while the Pod still waits for another reason. Do not delete it from a
        // Pod that is about to be deleted.
        (None, Some(_)) => waiting.is_none() && !member.deleting,
        (Some(_), None) => true,
        (Some((reason, message)), Some(reported)) => {
            // Limits the writes for a reason that changes often.
            let due = reported.at.is_none_or(|at| now.duration_since(at) > CONDITION_MIN_INTERVAL);
            due && (reported.reason != *reason || reported.message != *message)
        }
    };
    changes.then(|| ConditionChange {
        pod: member.name.clone(),
        uid: member.uid.clone(),
        type_: finalizer.to_owned(),
        content,
    })
}

/// Decision about the protection finalizer of one Pod.
enum Decision {
    Keep,
    AddFinalizer,
    Release,
    Wait {
        /// Cause of the wait.
        reason: String,
        /// Time at which the wait ends without a further observation, if there is one.
        until: Option<Timestamp>,
    },
}

impl Decision {
    /// Waits for a further observation.
    fn wait(reason: impl Into<String>) -> Self {
        Self::Wait { reason: reason.into(), until: None }
    }
}

fn decide(
    observed: &Observed,
    member: &MemberView,
    desired: DesiredTraffic,
    has_finalizer: bool,
    now: Timestamp,
) -> Decision {
    let observation = &observed.observation;
    let traffic = observation.traffic.get(&member.uid).copied();
    let flows = matches!(traffic, Some(Traffic::Serving))
        || matches!(traffic, Some(Traffic::Draining(in_flight)) if in_flight.has_requests());
    match (desired, has_finalizer) {
        (DesiredTraffic::Serve, true) => Decision::Keep,
        // The Pod was registered and left service before its traffic was observed: protect it, too.
        // A Pod that is being deleted accepts no new finalizers.
        (DesiredTraffic::Off, false)
            if (flows
                || observation.error.is_some()
                    && observation.possibly_serving.contains(&member.uid))
                && is_active_member(observed, member)
                && !member.addresses.is_empty()
                && !is_past_deadline(observed, member, now) =>
        {
            Decision::AddFinalizer
        }
        (DesiredTraffic::Off, false) => Decision::Keep,
        (DesiredTraffic::Serve, false) => match (&observation.error, traffic) {
            (_, Some(Traffic::Serving)) => Decision::AddFinalizer,
            (Some(error), _) => Decision::wait(error),
            (_, Some(Traffic::Unhealthy)) => Decision::wait("backend reports this Pod unhealthy"),
            _ => Decision::wait(
                observation
                    .unfulfilled
                    .as_deref()
                    .unwrap_or("backend does not route traffic to this Pod yet"),
            ),
        },
        (DesiredTraffic::Off, true) if observed.employer.state == EmployerState::Unmanaged => {
            Decision::Release
        }
        // A Pod without an address, or a terminal one, receives no traffic.
        (DesiredTraffic::Off, true) if member.addresses.is_empty() || member.terminal => {
            Decision::Release
        }
        // Only its deletion ends the traffic of such a Pod.
        (DesiredTraffic::Off, true) if !member.drainable && !member.deleting => Decision::Release,
        (DesiredTraffic::Off, true) => drain(observed, member, traffic, now),
    }
}

/// Decides whether a Pod that should receive no traffic is drained.
fn drain(
    observed: &Observed,
    member: &MemberView,
    traffic: Option<Traffic>,
    now: Timestamp,
) -> Decision {
    let observation = &observed.observation;
    let policy = &observed.employer.drain;
    // An instance of the backend that did not answer may still route traffic to the Pod.
    let known = traffic.filter(|_| observation.error.is_none());
    let off_since = observation.off_since.get(&member.uid).copied();
    match policy.status(known, off_since, member.unready_since, now) {
        DrainStatus::Drained => Decision::Release,
        DrainStatus::Pending { reason, until } => {
            let cause = observation.error.as_ref().unwrap_or(&reason);
            let deadline = policy.deadline_suffix(member.unready_since);
            Decision::Wait { reason: format!("{cause}{deadline}"), until }
        }
    }
}

/// Returns whether the employer's drain policy releases the Pod regardless of its traffic.
fn is_past_deadline(observed: &Observed, member: &MemberView, now: Timestamp) -> bool {
    let policy = &observed.employer.drain;
    policy.status(None, None, member.unready_since, now) == DrainStatus::Drained
}

/// Returns whether the Pod belongs to an active employer and is neither deleted nor terminal. Only
/// such Pods are expected to have the finalizer.
fn is_active_member(observed: &Observed, member: &MemberView) -> bool {
    let active = observed.employer.state == EmployerState::Active;
    active && member.selected && !member.deleting && !member.terminal
}

/// Returns the observed and the new text of the Pod's available conditions, if the employer's entry
/// must be added or removed. The entry stays while the Pod has the finalizer, because it names the
/// employer.
fn available_conditions(
    observed: &Observed,
    finalizer: &String,
    member: &MemberView,
    keeps_finalizer: bool,
) -> Option<(Option<String>, String)> {
    let expects = is_active_member(observed, member);
    let key = observed.employer.key();
    // A malformed annotation is left as it is; it keeps the Pod from being available.
    let mut expected = member.expected_finalizers.clone()?;
    let entry = expected.get(&key);
    let remove = !expects && entry.is_some() && !member.deleting && !keeps_finalizer;
    if expects && entry != Some(finalizer) {
        expected.insert(key, finalizer.clone());
    } else if remove {
        expected.remove(&key);
    } else {
        return None;
    }
    let content = AvailableConditions { expected_finalizers: expected };
    let text = serde_json::to_string(&content).ok()?;
    Some((member.available_conditions.clone(), text))
}

#[cfg(test)]
mod tests;
