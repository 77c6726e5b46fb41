//! Operations of a Pod before and after a plan, for its history, its traces and the metrics. Pure.

use jiff::Timestamp;
use podops_api::lifecycle::{self, Labels, PodLifecycle};
use podops_traces::AnnotationChanges;

use crate::{
    history::{self, Operations},
    measurements::{Measurements, measure},
    observe::SlimPod,
    plan::Plan,
    traces,
};

/// Operations of a Pod before and after a plan.
#[derive(Debug)]
pub struct OperationsRecord {
    /// As observed.
    pub before: PodLifecycle,
    /// With the changes of the plan.
    pub after: PodLifecycle,
    /// Operations and stages that begin or end with the plan.
    pub measured: Measurements,
}

impl OperationsRecord {
    /// Compares the operations of a Pod with these labels before and after a plan.
    #[must_use]
    pub fn new(labels: &Labels, plan: &Plan, now: Timestamp) -> Self {
        let before = PodLifecycle::parse(labels).unwrap_or_default();
        let mut changed = labels.clone();
        lifecycle::apply(&mut changed, plan.labels.clone());
        // Planning has accepted the labels.
        let after = PodLifecycle::parse(&changed).unwrap_or_default();
        let measured = measure(&before, &after, now);
        Self { before, after, measured }
    }

    /// Annotations with the history, and with the traces if they are recorded. They belong to the
    /// write of the plan.
    #[must_use]
    pub fn annotations(
        &self,
        pod: &SlimPod,
        plan: &Plan,
        traces_are_recorded: bool,
        now: Timestamp,
    ) -> AnnotationChanges {
        let Self { before, after, measured } = self;
        let mut changes = traces::ended(pod.annotations(), after);
        if !plan.is_empty() {
            let operations = Operations { before, after, measured };
            changes.extend(history::changes(pod, operations, now));
        }
        if traces_are_recorded {
            let identity = pod.trace_identity();
            changes.extend(traces::begun(&identity, pod.annotations(), before, after, now));
        }
        changes
    }
}
