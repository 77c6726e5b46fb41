//! Decides whether a Pod may be deleted now. Pure: a [`DeletionCandidate`] and the time in, a
//! [`Decision`] out.

use jiff::Timestamp;
use podops_api::{
    deletion_policy::DeletionPolicy,
    ids::LifecycleTime,
    lifecycle::{LabelKind, Phase, PodLifecycle},
    transition_rule::RejectInfo,
    well_known,
};

use crate::{
    machine::WaitingFor,
    plan::{Wait, is_being_deleted, may_be_deleted, plan},
    pod::PodView,
};

/// Observed state of a Pod for which a delete or eviction was requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletionCandidate {
    /// The Pod as planning observes it.
    pub pod: PodView,
    /// True if the Pod's phase is Succeeded or Failed.
    pub terminal: bool,
    /// True if the Pod's controller is a CollaSet, which can replace it.
    pub owned_by_collaset: bool,
    /// True if the Pod mounts PersistentVolumeClaims.
    pub has_claims: bool,
    /// Value of the Pod's deletion policy annotation; unknown values are ignored.
    pub deletion_policy: Option<String>,
    /// Last rejections by PodTransitionRules, from the Pod's annotations.
    pub rejections: Vec<RejectInfo>,
}

/// Decision on a delete or eviction request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Allow the request.
    Allow,
    /// Reject the request; the Pod is deleted when its lifecycle permits it.
    Defer {
        /// Label to add, which requests the deletion or replacement; `None` if already requested.
        label: Option<&'static str>,
        /// Causes of the wait, shown to the user.
        message: String,
    },
}

impl DeletionCandidate {
    /// Returns whether graceful deletion applies: to Pods under control that have the readiness
    /// gate and are neither being deleted nor terminal.
    fn has_graceful_deletion(&self) -> bool {
        well_known::is_controlled(&self.pod.labels)
            && self.pod.has_readiness_gate
            && !self.pod.deleting
            && !self.terminal
    }

    fn is_replaced(&self, default: DeletionPolicy) -> bool {
        let policy = DeletionPolicy::of(self.deletion_policy.as_deref(), default, self.has_claims);
        // A Pod that is not available needs no replacement and might never get one: replacement
        // waits for it.
        let available = self.pod.labels.contains_key(well_known::SERVICE_AVAILABLE);
        self.owned_by_collaset && policy == DeletionPolicy::Replace && available
    }

    /// Returns whether an eviction of the Pod consumes a disruption of its PodDisruptionBudget: its
    /// deletion was requested and it is still in service.
    #[must_use]
    pub fn consumes_disruption(&self) -> bool {
        self.pod.labels.contains_key(well_known::TO_DELETE) && self.pod.gate_open == Some(true)
    }

    /// Decides on a delete or eviction request. `default` applies if the Pod has no deletion
    /// policy.
    #[must_use]
    pub fn decide(&self, default: DeletionPolicy, now: Timestamp) -> Decision {
        let labels = &self.pod.labels;
        if !self.has_graceful_deletion() || may_be_deleted(labels) {
            return Decision::Allow;
        }
        if is_being_deleted(labels) {
            return Decision::Defer { label: None, message: self.message(now) };
        }
        let (label, next_step) = if self.is_replaced(default) {
            (well_known::TO_REPLACE, "accepted, waiting for a replacement Pod")
        } else {
            (well_known::TO_DELETE, "accepted, the Pod is deleted after it has left its Services")
        };
        let requested = labels.contains_key(label);
        let message = format!("{}; {next_step}", self.message(now));
        Decision::Defer { label: (!requested).then_some(label), message }
    }

    /// Describes the causes for which the Pod waits. Starts with Kuperator's message, because users
    /// search for that message.
    fn message(&self, now: Timestamp) -> String {
        let finalizers: Vec<&str> = self.pod.protection_finalizers().collect();
        let prefix = "pod deletion process is underway and being managed by PodOpsLifecycle";
        let mut parts = vec![if finalizers.is_empty() {
            prefix.to_owned()
        } else {
            format!("{prefix} with finalizers: [{}]", finalizers.join(" "))
        }];
        match plan(&self.pod, now) {
            Ok(plan) => parts.extend(plan.waits.iter().map(|wait| self.describe(wait))),
            Err(error) => parts.push(format!("{error}: fix the label to continue")),
        }
        parts.join("; ")
    }

    /// Describes one waiting operation: phase, start of the wait, party and rules' rejections.
    fn describe(&self, wait: &Wait) -> String {
        let mut parts = vec![format!("operation {}: {}", wait.id, wait.phase)];
        parts.extend(self.waiting_since(wait).map(|at| format!(" since {at:.0}")));
        parts.push(format!(", waiting for {}", wait.waiting_for));
        if wait.waiting_for == WaitingFor::RuleChecker {
            for RejectInfo { rule_name, reason } in &self.rejections {
                parts.push(format!(": rule {rule_name}: {reason}"));
            }
        }
        parts.concat()
    }

    fn waiting_since(&self, wait: &Wait) -> Option<Timestamp> {
        let kind = match wait.phase {
            Phase::PreCheck => LabelKind::PreCheck,
            Phase::Preparing => LabelKind::Preparing,
            Phase::PostCheck => LabelKind::PostCheck,
            Phase::Completing => LabelKind::Completing,
            Phase::Operate => LabelKind::Operate,
            Phase::Requested | Phase::PreChecked | Phase::Operated | Phase::PostChecked => {
                return None;
            }
        };
        let pod_lifecycle = PodLifecycle::parse(&self.pod.labels).ok()?;
        let since = pod_lifecycle.operations.get(&wait.id)?.get(kind)?;
        LifecycleTime::parse(since).map(|time| time.0)
    }
}

#[cfg(test)]
pub(crate) mod tests;
