//! History of the operations on a Pod, stored in an annotation: the times at which each operation
//! entered its stages, and its result. Lifecycle labels contain a time only while the operation is
//! in that stage.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde::{Deserialize, Serialize};

use crate::{
    ids::{OperationId, OperationType},
    lifecycle::{LabelKind, Operation},
};

/// Maximum number of operations in a history; a new operation replaces the oldest.
const OPERATIONS_MAX: usize = 4;

/// Labels whose values are times.
const TIMES: [LabelKind; 9] = [
    LabelKind::Operating,
    LabelKind::PreCheck,
    LabelKind::PreChecked,
    LabelKind::Preparing,
    LabelKind::Operate,
    LabelKind::Operated,
    LabelKind::PostCheck,
    LabelKind::PostChecked,
    LabelKind::Completing,
];

/// The last operations on a Pod, in the order in which they were first recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OperationHistory {
    records: Vec<OperationRecord>,
}

/// Times and result of one operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationRecord {
    /// ID of the operation.
    pub id: OperationId,
    /// Type of the operation; empty if unknown.
    #[serde(rename = "type")]
    pub operation_type: OperationType,
    /// Time to which `milliseconds` are relative.
    start: MicroTime,
    /// Milliseconds from `start` to the times in the labels of the operation.
    milliseconds: BTreeMap<LabelKind, i64>,
    /// Result and time of the end; `None` while the operation is in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    end: Option<RecordedEnd>,
}

/// End of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RecordedEnd {
    result: OperationResult,
    /// Milliseconds from the start of the operation.
    milliseconds: i64,
}

/// Result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OperationResult {
    /// The Pod returned to service.
    Completed,
    /// The requester cancelled the operation before it was finished.
    Cancelled,
}

impl OperationResult {
    /// Name for users.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl OperationHistory {
    /// Parses the annotation. Invalid text yields an empty history, because other clients may write
    /// any text.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }

    /// Returns the operations, in the order in which they were first recorded.
    #[must_use]
    pub fn records(&self) -> &[OperationRecord] {
        &self.records
    }

    /// Records the times in the labels of an operation. A request at another time starts a new
    /// record, and ends the record of the earlier request.
    pub fn observe(&mut self, id: &OperationId, operation: &Operation) {
        let times: BTreeMap<LabelKind, Timestamp> =
            TIMES.into_iter().filter_map(|kind| Some((kind, operation.time(kind)?))).collect();
        let Some(start) = times.values().min().copied() else { return };
        let requested = times.get(&LabelKind::Operating).copied();
        let known = self.in_progress(id).filter(|record| record.is_request_of(requested));
        if known.is_none() {
            if let Some(earlier) = self.in_progress(id) {
                earlier.end_at(earlier.result_if_ended(), requested.unwrap_or(start));
            }
            self.records.push(OperationRecord {
                id: id.clone(),
                operation_type: OperationType::default(),
                start: MicroTime(start),
                milliseconds: BTreeMap::new(),
                end: None,
            });
        }
        let excess = self.records.len().saturating_sub(OPERATIONS_MAX);
        self.records.drain(..excess);
        let Some(record) = self.in_progress(id) else { return };
        if let Some(operation_type) = operation.any_type() {
            record.operation_type = operation_type.into();
        }
        for (kind, at) in times {
            record.milliseconds.insert(kind, record.since_start(at));
        }
    }

    /// Records the end of an operation.
    pub fn end(&mut self, id: &OperationId, result: OperationResult, at: Timestamp) {
        if let Some(record) = self.in_progress(id) {
            record.end_at(result, at);
        }
    }

    fn in_progress(&mut self, id: &OperationId) -> Option<&mut OperationRecord> {
        self.records.iter_mut().rev().find(|record| record.id == *id && record.end.is_none())
    }
}

impl OperationRecord {
    /// Returns the recorded time of the label of this kind, truncated to milliseconds.
    #[must_use]
    pub fn time(&self, kind: LabelKind) -> Option<Timestamp> {
        self.at(*self.milliseconds.get(&kind)?)
    }

    /// Returns the result and the time of the end; `None` while the operation is in progress.
    #[must_use]
    pub fn end(&self) -> Option<(OperationResult, Timestamp)> {
        let RecordedEnd { result, milliseconds } = self.end?;
        Some((result, self.at(milliseconds)?))
    }

    /// Returns whether the request at this time is the recorded one; true if either time is
    /// unknown.
    fn is_request_of(&self, requested: Option<Timestamp>) -> bool {
        let recorded = self.milliseconds.get(&LabelKind::Operating);
        match (recorded, requested) {
            (Some(recorded), Some(requested)) => *recorded == self.since_start(requested),
            _ => true,
        }
    }

    /// Result of an operation that is no longer in progress: cancelled unless its requester
    /// finished it.
    fn result_if_ended(&self) -> OperationResult {
        let is_finished = self.milliseconds.contains_key(&LabelKind::Operated);
        if is_finished { OperationResult::Completed } else { OperationResult::Cancelled }
    }

    fn end_at(&mut self, result: OperationResult, at: Timestamp) {
        self.end = Some(RecordedEnd { result, milliseconds: self.since_start(at) });
    }

    fn since_start(&self, at: Timestamp) -> i64 {
        at.as_millisecond() - self.start.0.as_millisecond()
    }

    fn at(&self, milliseconds: i64) -> Option<Timestamp> {
        let start = self.start.0.as_millisecond();
        Timestamp::from_millisecond(start.checked_add(milliseconds)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::LifecycleTime;

    fn at(millisecond: i64) -> Timestamp {
        Timestamp::from_millisecond(1_700_000_000_000 + millisecond).unwrap()
    }

    fn operation(times: &[(LabelKind, i64)]) -> Operation {
        let mut operation = Operation::default();
        for (kind, millisecond) in times {
            operation.set(*kind, LifecycleTime(at(*millisecond)).to_string());
        }
        operation
    }

    fn id() -> OperationId {
        "collaset".into()
    }

    #[test]
    fn times_remain_after_their_labels_are_removed() {
        let mut history = OperationHistory::default();
        let mut requested = operation(&[(LabelKind::Operating, 0), (LabelKind::Preparing, 5)]);
        requested.set(LabelKind::OperationType, "update");
        history.observe(&id(), &requested);
        let mut finished = operation(&[(LabelKind::PostCheck, 900)]);
        finished.set(LabelKind::DoneOperationType, "update");
        history.observe(&id(), &finished);
        history.end(&id(), OperationResult::Completed, at(1200));
        let text = serde_json::to_string(&history).unwrap();
        assert_eq!(
            text,
            r#"[{"id":"collaset","type":"update","start":"2023-11-14T22:13:20.000000Z","#
                .to_owned()
                + r#""milliseconds":{"operating":0,"preparing":5,"post-check":900},"#
                + r#""end":{"result":"completed","milliseconds":1200}}]"#
        );
        let read = OperationHistory::parse(&text);
        assert_eq!(read, history);
        assert_eq!(read.records()[0].time(LabelKind::Preparing), Some(at(5)));
        assert_eq!(read.records()[0].end(), Some((OperationResult::Completed, at(1200))));
    }

    #[test]
    fn another_request_begins_another_record() {
        let mut history = OperationHistory::default();
        for requested in [0, 0, 70, 80, 90, 95] {
            history.observe(&id(), &operation(&[(LabelKind::Operating, requested)]));
        }
        let times = |history: &OperationHistory| {
            let records = history.records().iter();
            records.filter_map(|record| record.time(LabelKind::Operating)).collect::<Vec<_>>()
        };
        assert_eq!(times(&history), [at(70), at(80), at(90), at(95)]);
        let cancelled = Some((OperationResult::Cancelled, at(80)));
        assert_eq!(history.records()[0].end(), cancelled, "when the next was requested");
        history.end(&id(), OperationResult::Cancelled, at(99));
        history.observe(&id(), &operation(&[(LabelKind::Operating, 95)]));
        assert_eq!(times(&history), [at(80), at(90), at(95), at(95)]);
    }

    #[test]
    fn a_text_of_others_is_an_empty_history() {
        for text in ["", "{}", "[1]", r#"[{"id":"a"}]"#] {
            assert_eq!(OperationHistory::parse(text), OperationHistory::default(), "{text}");
        }
    }

    #[test]
    fn a_label_without_a_time_is_not_recorded() {
        let mut operation = Operation::default();
        operation.set(LabelKind::Operating, "yes");
        let mut history = OperationHistory::default();
        history.observe(&id(), &operation);
        assert_eq!(history, OperationHistory::default());
    }
}
