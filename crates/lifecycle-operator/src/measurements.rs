//! What one write adds to the metrics: operations that started and ended, and how long each stage
//! took. Pure.

use jiff::Timestamp;
use podops_api::{
    ids::{LifecycleTime, OperationId},
    lifecycle::{DELETE, LabelKind, Operation, Phase, PodLifecycle, SCALE_IN, UPDATE},
};

use crate::{machine::WaitingFor, plan::Wait};

/// Part of an operation whose duration is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// From the observation of the request until the grant takes effect.
    PreCheck,
    /// From the closing of the readiness gate until traffic has ended.
    Preparing,
    /// From the permission to operate on the Pod until all requesters have finished.
    Operate,
    /// From the end of the operation until the grant to return to service.
    PostCheck,
    /// From the opening of the readiness gate until the Pod is back in service.
    Completing,
}

impl Stage {
    /// All stages, in their order.
    const ALL: [Self; 5] =
        [Self::PreCheck, Self::Preparing, Self::Operate, Self::PostCheck, Self::Completing];

    /// The stage of a phase.
    const fn of(phase: Phase) -> Self {
        match phase {
            Phase::Requested | Phase::PreCheck | Phase::PreChecked => Self::PreCheck,
            Phase::Preparing => Self::Preparing,
            // Until the end is observed, the labels are those of Operate.
            Phase::Operate | Phase::Operated => Self::Operate,
            Phase::PostCheck | Phase::PostChecked => Self::PostCheck,
            Phase::Completing => Self::Completing,
        }
    }

    /// Value of the label `stage`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PreCheck => "pre_check",
            Self::Preparing => "preparing",
            Self::Operate => "operate",
            Self::PostCheck => "post_check",
            Self::Completing => "completing",
        }
    }

    /// Label whose time is the start of the stage. Not that of the request: it identifies the request,
    /// and other programs may choose any value.
    const fn start_label(self) -> LabelKind {
        match self {
            Self::PreCheck => LabelKind::PreCheck,
            Self::Preparing => LabelKind::Preparing,
            Self::Operate => LabelKind::Operate,
            Self::PostCheck => LabelKind::PostCheck,
            Self::Completing => LabelKind::Completing,
        }
    }
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The Pod returned to service.
    Completed,
    /// The requester cancelled it before it was finished.
    Cancelled,
    /// The Pod was deleted.
    PodDeleted,
}

impl End {
    /// Value of the label `result`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
            Self::PodDeleted => "pod_deleted",
        }
    }
}

/// Duration of one stage of one operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageDuration {
    /// Stage that ended.
    pub stage: Stage,
    /// Duration in seconds; 0 if the stage began with the write that ended it.
    pub seconds: f64,
}

/// Operation that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedOperation {
    /// Operation type, bounded.
    pub operation_type: &'static str,
    /// How it ended.
    pub end: End,
}

/// Changes of the metrics by one write to a Pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measurements {
    /// Types of the operations that take the Pod out of service.
    pub started: Vec<&'static str>,
    /// Operations that ended.
    pub ended: Vec<EndedOperation>,
    /// Stages that ended.
    pub stages: Vec<StageDuration>,
}

/// Operation in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationInProgress {
    /// ID of the operation.
    pub id: OperationId,
    /// Its stage.
    pub stage: Stage,
    /// Party that must act next.
    pub waiting_for: WaitingFor,
    /// When the stage began.
    pub since: Timestamp,
}

/// The operations of a Pod that wait for another party after a plan; `after` are their labels then.
#[must_use]
pub fn in_progress(
    waits: &[Wait],
    after: &PodLifecycle,
    now: Timestamp,
) -> Vec<OperationInProgress> {
    let operation = |wait: &Wait| {
        let stage = Stage::of(wait.phase);
        let start = after.operations.get(&wait.id).and_then(|labels| start(labels, stage));
        OperationInProgress {
            id: wait.id.clone(),
            stage,
            waiting_for: wait.waiting_for,
            since: start.unwrap_or(now),
        }
    };
    waits.iter().map(operation).collect()
}

/// Compares the operations of a Pod before and after a write at `now`.
#[must_use]
pub fn measure(before: &PodLifecycle, after: &PodLifecycle, now: Timestamp) -> Measurements {
    let mut measured = Measurements::default();
    for (id, operation) in &before.operations {
        let next = after.operations.get(id);
        measured.add(operation, next, now);
    }
    let no_operation = Operation::default();
    let added = after.operations.iter().filter(|(id, _)| !before.operations.contains_key(*id));
    for (_, operation) in added {
        measured.add(&no_operation, Some(operation), now);
    }
    measured
}

/// The operations that end because their Pod was deleted.
#[must_use]
pub fn ended_by_deletion(lifecycle: &PodLifecycle) -> Vec<EndedOperation> {
    let types = lifecycle.operations.values().map(bounded_type);
    types.map(|operation_type| EndedOperation { operation_type, end: End::PodDeleted }).collect()
}

impl Measurements {
    fn add(&mut self, before: &Operation, after: Option<&Operation>, now: Timestamp) {
        let from = stage_of(before);
        let operation_type =
            bounded_type(if before.is_empty() { after.unwrap_or(before) } else { before });
        let to = if let Some(after) = after {
            stage_of(after)
        } else {
            let end = if is_finished(before) { End::Completed } else { End::Cancelled };
            self.ended.push(EndedOperation { operation_type, end });
            if end == End::Cancelled {
                return;
            }
            Stage::Completing
        };
        if to < from {
            // Requested again, or its grant does not apply any more.
            let end = if has_completion_label(before) { End::Completed } else { End::Cancelled };
            self.ended.push(EndedOperation { operation_type, end });
            return;
        }
        if from == Stage::PreCheck && to > Stage::PreCheck {
            self.started.push(operation_type);
        }
        let ended = |stage: &Stage| *stage >= from && (*stage < to || after.is_none());
        for stage in Stage::ALL.into_iter().filter(ended) {
            self.stages
                .push(StageDuration { stage, seconds: seconds_since_start(before, stage, now) });
        }
    }
}

/// An operation without labels is not requested yet.
fn stage_of(operation: &Operation) -> Stage {
    if operation.is_empty() { Stage::PreCheck } else { Stage::of(Phase::of(operation)) }
}

/// Returns whether the requester has finished the operation, rather than cancelled it.
fn is_finished(operation: &Operation) -> bool {
    !operation.has(LabelKind::UndoOperationType)
        && !operation.has(LabelKind::Operating)
        && (operation.has(LabelKind::Operate) || has_completion_label(operation))
}

/// Returns whether the operation has left Operate.
fn has_completion_label(operation: &Operation) -> bool {
    let kinds =
        [LabelKind::Operated, LabelKind::PostCheck, LabelKind::PostChecked, LabelKind::Completing];
    kinds.into_iter().any(|kind| operation.has(kind))
}

/// When the stage began; `None` if it had not begun, or the label holds no time.
fn start(operation: &Operation, stage: Stage) -> Option<Timestamp> {
    operation.get(stage.start_label()).and_then(LifecycleTime::parse).map(|time| time.0)
}

/// Time since the stage began; 0 if it had not begun.
fn seconds_since_start(operation: &Operation, stage: Stage, now: Timestamp) -> f64 {
    // Clocks of other programs may be ahead.
    start(operation, stage).map_or(0.0, |start| now.duration_since(start).as_secs_f64().max(0.0))
}

/// The operation type as a label value: those of collaset-operator, lifecycle-operator and
/// operationjob-operator. Any program may choose a type, so all others are `other`.
fn bounded_type(operation: &Operation) -> &'static str {
    let done = operation.get(LabelKind::DoneOperationType);
    match operation.operation_type().or(done).unwrap_or_default() {
        UPDATE => UPDATE,
        SCALE_IN => SCALE_IN,
        DELETE => DELETE,
        "Replace" => "Replace",
        "Restart" => "Restart",
        "Recreate" => "Recreate",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lifecycle(labels: &[(&str, &str)]) -> PodLifecycle {
        let labels = labels.iter().map(|(kind, value)| {
            (format!("{kind}.podopslifecycle.kusionstack.io/a"), (*value).to_owned())
        });
        PodLifecycle::parse(&labels.collect()).unwrap()
    }

    /// Times in labels are nanoseconds.
    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn a_granted_operation_starts_and_ends_the_pre_check() {
        let before = lifecycle(&[
            ("operating", "1000000000"),
            ("operation-type", "update"),
            ("pre-check", "2000000000"),
        ]);
        let after = lifecycle(&[
            ("operating", "1000000000"),
            ("operation-type", "update"),
            ("preparing", "4"),
        ]);
        let measured = measure(&before, &after, at(4));
        assert_eq!(measured.started, ["update"]);
        assert_eq!(measured.stages, [StageDuration { stage: Stage::PreCheck, seconds: 2.0 }]);
        assert!(measured.ended.is_empty());
    }

    #[test]
    fn a_finished_operation_ends_all_later_stages() {
        let before = lifecycle(&[("operate", "1000000000"), ("operation-type", "mine")]);
        let measured = measure(&before, &lifecycle(&[]), at(3));
        let stages: Vec<_> = measured.stages.iter().map(|s| (s.stage, s.seconds)).collect();
        assert_eq!(
            stages,
            [(Stage::Operate, 2.0), (Stage::PostCheck, 0.0), (Stage::Completing, 0.0)]
        );
        assert_eq!(
            measured.ended,
            [EndedOperation { operation_type: "other", end: End::Completed }]
        );
        assert!(measured.started.is_empty());
    }

    #[test]
    fn a_cancelled_operation_has_no_durations() {
        for labels in [
            &[("operating", "1"), ("operation-type", "update"), ("undo-operation-type", "update")]
                [..],
            &[("operation-type", "update"), ("pre-check", "1")],
        ] {
            let measured = measure(&lifecycle(labels), &lifecycle(&[]), at(3));
            assert_eq!(
                measured.ended,
                [EndedOperation { operation_type: "update", end: End::Cancelled }]
            );
            assert!(measured.stages.is_empty() && measured.started.is_empty());
        }
    }

    #[test]
    fn an_unchanged_operation_measures_nothing() {
        let operation = lifecycle(&[("operating", "1"), ("preparing", "2")]);
        assert_eq!(measure(&operation, &operation, at(3)), Measurements::default());
    }

    #[test]
    fn an_operation_that_is_requested_again_has_ended() {
        let requested =
            lifecycle(&[("operating", "5"), ("operation-type", "update"), ("pre-check", "6")]);
        let completing =
            [("operating", "5"), ("operation-type", "update"), ("operate", "2"), ("operated", "3")];
        for (before, end) in [(&completing[..], End::Completed), (&completing[..3], End::Cancelled)]
        {
            let measured = measure(&lifecycle(before), &requested, at(3));
            let ended = EndedOperation { operation_type: "update", end };
            assert_eq!(measured, Measurements { ended: vec![ended], ..Measurements::default() });
        }
    }

    #[test]
    fn the_operations_of_a_deleted_pod_end() {
        let operation = lifecycle(&[("operating", "1"), ("operation-type", "scale-in")]);
        assert_eq!(
            ended_by_deletion(&operation),
            [EndedOperation { operation_type: "scale-in", end: End::PodDeleted }]
        );
    }
}
