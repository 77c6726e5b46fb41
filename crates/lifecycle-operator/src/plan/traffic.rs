//! Operations that have waited for long for controllers that direct traffic to the Pod.

use jiff::SignedDuration;
use podops_api::{
    ids::{LifecycleTime, OperationId},
    lifecycle::{LabelKind, Operation, Phase},
};

use super::Planner;
use crate::machine::WaitingFor;

/// Time after which a wait is reported; most Pods of a rollout wait for less.
const REPORT_AFTER: SignedDuration = SignedDuration::from_secs(60);

/// An operation that has waited for traffic for [`REPORT_AFTER`], and the cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrafficWait {
    /// ID of the operation.
    pub id: OperationId,
    /// State, cause and next step, for an event.
    pub message: String,
}

impl Planner<'_> {
    /// Returns the operations whose wait for traffic is reported, and the time until that of
    /// another one is.
    pub(super) fn traffic_waits(&self) -> (Vec<TrafficWait>, Option<SignedDuration>) {
        let (mut reported, mut due_in) = (Vec::new(), None::<SignedDuration>);
        let waits = self.waits.iter().filter(|w| w.waiting_for == WaitingFor::TrafficControllers);
        for wait in waits {
            let operation = self.state.lifecycle.operations.get(&wait.id);
            let Some(since) = operation.and_then(|operation| entered(operation, wait.phase)) else {
                continue;
            };
            let left = REPORT_AFTER - self.now.duration_since(since.0);
            if left.is_positive() {
                due_in = Some(due_in.map_or(left, |known| known.min(left)));
            } else if let Some(cause) = self.traffic_cause(wait.phase) {
                let message = format!("operation {} waits in {}: {cause}", wait.id, wait.phase);
                reported.push(TrafficWait { id: wait.id.clone(), message });
            }
        }
        (reported, due_in)
    }

    /// Returns the cause for which an operation waits in Preparing or Completing; `None` if the
    /// cause is not traffic.
    fn traffic_cause(&self, phase: Phase) -> Option<String> {
        let expected = &self.state.expected_finalizers;
        let is_draining = phase == Phase::Preparing;
        let finalizers: Vec<&str> = if is_draining {
            self.pod.protection_finalizers().collect()
        } else {
            let all = expected.values().map(String::as_str);
            all.filter(|finalizer| !self.pod.finalizers.contains(*finalizer)).collect()
        };
        let employers = expected.iter().filter(|(_, f)| finalizers.contains(&f.as_str()));
        let employers: Vec<&str> = employers.map(|(employer, _)| employer.as_str()).collect();
        if finalizers.is_empty() {
            return None;
        }
        let of = if employers.is_empty() {
            String::new()
        } else {
            format!(" of {}", employers.join(", "))
        };
        let finalizers = finalizers.join(", ");
        Some(if is_draining {
            format!(
                "traffic{of} has not ended; check the controller that removes the finalizer {finalizers}"
            )
        } else {
            format!("no traffic{of} yet; check the controller that adds the finalizer {finalizers}")
        })
    }
}

/// Time at which an operation entered a phase in which it waits for traffic.
fn entered(operation: &Operation, phase: Phase) -> Option<LifecycleTime> {
    let is_draining = phase == Phase::Preparing;
    let label = if is_draining { LabelKind::Preparing } else { LabelKind::Completing };
    LifecycleTime::parse(operation.get(label)?)
}
