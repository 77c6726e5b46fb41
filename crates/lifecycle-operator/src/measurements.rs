//! Measurements of one write for the metrics: operations that started and ended, and the duration
//! of each stage. Pure.

use jiff::Timestamp;
use podops_api::{
    ids::OperationId,
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

    /// Label whose time is the start of the stage. Not that of the request: it identifies the
    /// request, and other programs may choose any value.
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

/// Stage of one operation, which ended with a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedStage {
    /// ID of the operation.
    pub id: OperationId,
    /// Stage that ended.
    pub stage: Stage,
    /// When it began: not after `end`, and equal if it began with the write that ended it.
    pub start: Timestamp,
    /// When it ended.
    pub end: Timestamp,
}

impl EndedStage {
    /// Its duration in seconds.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.end.duration_since(self.start).as_secs_f64()
    }
}

/// Operation that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedOperation {
    /// ID of the operation.
    pub id: OperationId,
    /// Operation type, bounded.
    pub operation_type: &'static str,
    /// How it ended.
    pub end: End,
}

/// Changes of the metrics by one write to a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measurements {
    /// Types of the operations that take the Pod out of service.
    pub started: Vec<&'static str>,
    /// Operations that ended.
    pub ended: Vec<EndedOperation>,
    /// Stages that ended.
    pub stages: Vec<EndedStage>,
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

/// Stages that ended without a write of this operator: the component fast-operate ends Preparing
/// within the write that releases the Pod. `known` are the operations as this operator knew them
/// before it observed these labels.
#[must_use]
pub fn ended_by_others(
    known: &[OperationInProgress],
    observed: &PodLifecycle,
    now: Timestamp,
) -> Vec<EndedStage> {
    let ended = known.iter().filter_map(|known| {
        let operation = observed.operations.get(&known.id)?;
        if known.stage != Stage::Preparing || stage_of(operation) != Stage::Operate {
            return None;
        }
        // Clocks of other programs may be ahead, or behind.
        let end = start(operation, Stage::Operate).unwrap_or(now).min(now).max(known.since);
        Some(EndedStage { id: known.id.clone(), stage: known.stage, start: known.since, end })
    });
    ended.collect()
}

/// Compares the operations of a Pod before and after a write at `now`.
#[must_use]
pub fn measure(before: &PodLifecycle, after: &PodLifecycle, now: Timestamp) -> Measurements {
    let mut measured = Measurements::default();
    for (id, operation) in &before.operations {
        let next = after.operations.get(id);
        measured.add(Change { id, before: Some(operation), after: next }, now);
    }
    let added = after.operations.iter().filter(|(id, _)| !before.operations.contains_key(*id));
    for (id, operation) in added {
        measured.add(Change { id, before: None, after: Some(operation) }, now);
    }
    measured
}

/// The operations that end because their Pod was deleted.
#[must_use]
pub fn ended_by_deletion(lifecycle: &PodLifecycle) -> Vec<EndedOperation> {
    let ended = lifecycle.operations.iter().map(|(id, operation)| EndedOperation {
        id: id.clone(),
        operation_type: bounded_type(operation),
        end: End::PodDeleted,
    });
    ended.collect()
}

/// An operation before and after a write, as far as it exists.
struct Change<'a> {
    id: &'a OperationId,
    before: Option<&'a Operation>,
    after: Option<&'a Operation>,
}

impl Measurements {
    fn add(&mut self, Change { id, before, after }: Change<'_>, now: Timestamp) {
        let no_operation = Operation::default();
        let before = before.unwrap_or(&no_operation);
        let operation_type =
            bounded_type(if before.is_empty() { after.unwrap_or(before) } else { before });
        let end_as = |end| EndedOperation { id: id.clone(), operation_type, end };
        let from = stage_of(before);
        let to = if let Some(after) = after {
            stage_of(after)
        } else {
            let end = if is_finished(before) { End::Completed } else { End::Cancelled };
            self.ended.push(end_as(end));
            if end == End::Cancelled {
                return;
            }
            Stage::Completing
        };
        if to < from {
            // Requested again, or its grant does not apply any more.
            let end = if has_completion_label(before) { End::Completed } else { End::Cancelled };
            self.ended.push(end_as(end));
            return;
        }
        if from == Stage::PreCheck && to > Stage::PreCheck {
            self.started.push(operation_type);
        }
        for stage in Stage::ALL {
            if stage >= from && (stage < to || after.is_none()) {
                // Clocks of other programs may be ahead.
                let start = start(before, stage).map_or(now, |start| start.min(now));
                self.stages.push(EndedStage { id: id.clone(), stage, start, end: now });
            }
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
    operation.time(stage.start_label())
}

/// The operation type as a label value: those of collaset-operator, lifecycle-operator and
/// operationjob-operator. Any program may choose a type, so all others are `other`.
fn bounded_type(operation: &Operation) -> &'static str {
    match operation.any_type().unwrap_or_default() {
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

    fn ended(operation_type: &'static str, end: End) -> EndedOperation {
        EndedOperation { id: "a".into(), operation_type, end }
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
        let stage = EndedStage { id: "a".into(), stage: Stage::PreCheck, start: at(2), end: at(4) };
        assert_eq!((measured.stages[0].seconds(), measured.stages), (2.0, vec![stage]));
        assert!(measured.ended.is_empty());
    }

    #[test]
    fn a_finished_operation_ends_all_later_stages() {
        let before = lifecycle(&[("operate", "1000000000"), ("operation-type", "mine")]);
        let measured = measure(&before, &lifecycle(&[]), at(3));
        let stages: Vec<_> = measured.stages.iter().map(|s| (s.stage, s.seconds())).collect();
        assert_eq!(
            stages,
            [(Stage::Operate, 2.0), (Stage::PostCheck, 0.0), (Stage::Completing, 0.0)]
        );
        assert_eq!(measured.ended, [ended("other", End::Completed)]);
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
            assert_eq!(measured.ended, [ended("update", End::Cancelled)]);
            assert!(measured.stages.is_empty() && measured.started.is_empty());
        }
    }

    #[test]
    fn a_stage_that_another_program_ended_is_measured() {
        let known = |stage| OperationInProgress {
            id: "a".into(),
            stage,
            waiting_for: WaitingFor::TrafficControllers,
            since: at(2),
        };
        let operate = lifecycle(&[("operating", "1"), ("operate", "5000000000")]);
        let ended = ended_by_others(&[known(Stage::Preparing)], &operate, at(6));
        let stage =
            EndedStage { id: "a".into(), stage: Stage::Preparing, start: at(2), end: at(5) };
        assert_eq!(ended, [stage]);
        let ahead = ended_by_others(&[known(Stage::Preparing)], &operate, at(4));
        assert_eq!(ahead[0].end, at(4), "not after the observation");
        // Its own writes are measured when they succeed; a cancelled operation has no durations.
        assert!(ended_by_others(&[known(Stage::Operate)], &operate, at(6)).is_empty());
        let preparing = lifecycle(&[("operating", "1"), ("preparing", "2000000000")]);
        for observed in [preparing, lifecycle(&[])] {
            assert!(ended_by_others(&[known(Stage::Preparing)], &observed, at(6)).is_empty());
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
            let ended = vec![ended("update", end)];
            assert_eq!(measured, Measurements { ended, ..Measurements::default() });
        }
    }

    #[test]
    fn the_operations_of_a_deleted_pod_end() {
        let operation = lifecycle(&[("operating", "1"), ("operation-type", "scale-in")]);
        assert_eq!(ended_by_deletion(&operation), [ended("scale-in", End::PodDeleted)]);
    }
}
