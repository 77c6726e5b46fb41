//! Decides what is answered when somebody deletes or evicts a Pod. Pure: the Pod comes in, a
//! [`Decision`] goes out.

pub mod budget;

use jiff::Timestamp;
use podops_api::{
    lifecycle::{self, LabelKind, Phase, PodLifecycle},
    transition_rule::RejectInfo,
    well_known,
};

use crate::{
    machine::WaitingFor,
    plan::{Wait, is_being_deleted, may_be_deleted, plan},
    pod::PodView,
};

/// What becomes of a Pod that is to go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "shell", derive(clap::ValueEnum))]
#[cfg_attr(feature = "shell", value(rename_all = "PascalCase"))]
pub enum DeletionPolicy {
    /// It is deleted
    #[default]
    Delete,
    /// Its CollaSet makes another first
    Replace,
}

/// A Pod that somebody wants gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletionCandidate {
    /// The Pod as the lifecycle sees it.
    pub pod: PodView,
    /// Whether its containers have ended for good.
    pub terminal: bool,
    /// Whether it belongs to a CollaSet, which can replace it.
    pub of_set: bool,
    /// What its annotation says is to become of it.
    pub deletion_policy: Option<String>,
    /// What rules last had against its operations.
    pub rejections: Vec<RejectInfo>,
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing speaks against it.
    Pass,
    /// It goes when its lifecycle lets it.
    Later {
        /// The label that asks for that, where it is not asked for yet.
        begin: Option<&'static str>,
        /// What it waits for.
        message: String,
    },
}

impl DeletionCandidate {
    /// Whether the lifecycle has a say in this: it has in Pods under control that take traffic by the
    /// readiness gate, until they terminate or end.
    fn is_protected(&self) -> bool {
        well_known::is_controlled(&self.pod.labels)
            && self.pod.gated
            && !self.pod.deleting
            && !self.terminal
    }

    fn is_replaced(&self, default: DeletionPolicy) -> bool {
        let wanted = match self.deletion_policy.as_deref() {
            Some("Replace") => DeletionPolicy::Replace,
            Some("Delete") => DeletionPolicy::Delete,
            _ => default,
        };
        // One that does not serve is not missed, and may never be replaced: that of a pair waits for it.
        let serves = self.pod.labels.contains_key(well_known::SERVICE_AVAILABLE);
        self.of_set && wanted == DeletionPolicy::Replace && serves
    }

    /// Whether it is asked to leave by its deletion, and still takes traffic: an eviction of it has to
    /// have a part of its budget.
    #[must_use]
    pub fn consumes_disruption(&self) -> bool {
        self.pod.labels.contains_key(well_known::TO_DELETE) && self.pod.gate == Some(true)
    }

    /// Decides about a request that carries no other wish than that the Pod is gone.
    #[must_use]
    pub fn decide(&self, default: DeletionPolicy, now: Timestamp) -> Decision {
        let labels = &self.pod.labels;
        if !self.is_protected() || may_be_deleted(labels) {
            return Decision::Pass;
        }
        if is_being_deleted(labels) {
            return Decision::Later { begin: None, message: self.message(now) };
        }
        let (begin, words) = if self.is_replaced(default) {
            (well_known::TO_REPLACE, "; another Pod takes its place first")
        } else {
            (well_known::TO_DELETE, "; it begins now")
        };
        let asked = labels.contains_key(begin);
        let message = format!("{}{words}", self.message(now));
        Decision::Later { begin: (!asked).then_some(begin), message }
    }

    /// Says what the Pod waits for; Kuperator's words come first, as people look for them.
    fn message(&self, now: Timestamp) -> String {
        let held =
            self.pod.finalizers.iter().filter(|f| f.starts_with(well_known::PROTECTION_FINALIZER));
        let held: Vec<&str> = held.map(String::as_str).collect();
        let known = "pod deletion process is underway and being managed by PodOpsLifecycle";
        let mut parts = vec![if held.is_empty() {
            known.to_owned()
        } else {
            format!("{known} with finalizers: [{}]", held.join(" "))
        }];
        match plan(&self.pod, now) {
            Ok(plan) => parts.extend(plan.waits.iter().map(|wait| self.tell(wait))),
            Err(invalid_labels) => parts.push(format!("{invalid_labels}: the Pod is left alone")),
        }
        parts.join("; ")
    }

    fn tell(&self, wait: &Wait) -> String {
        let mut parts =
            vec![format!("{} is in {} and waits for {}", wait.id, wait.phase, wait.who)];
        if wait.who == WaitingFor::Checker {
            let told = |o: &RejectInfo| format!(": rule {}: {}", o.rule_name, o.reason);
            parts.extend(self.rejections.iter().map(told));
        }
        parts.extend(self.since(wait).map(|at| format!(" since {at:.0}")));
        parts.concat()
    }

    fn since(&self, wait: &Wait) -> Option<Timestamp> {
        let word = match wait.phase {
            Phase::PreCheck => LabelKind::PreCheck,
            Phase::Preparing => LabelKind::Preparing,
            Phase::PostCheck => LabelKind::PostCheck,
            Phase::Completing => LabelKind::Completing,
            Phase::Operate => LabelKind::Operate,
            Phase::Requested | Phase::PreChecked | Phase::Operated | Phase::PostChecked => {
                return None;
            }
        };
        let known = PodLifecycle::parse(&self.pod.labels).ok()?;
        lifecycle::time(known.operations.get(&wait.id)?.get(word)?)
    }
}

#[cfg(test)]
mod tests;
