//! PodOpsLifecycle labels: parses them, and computes the label changes of an operating controller.
//!
//! An operation has an ID that its controller chooses; each of its labels has the key
//! `<kind>.podopslifecycle.kusionstack.io/<id>`. This module defines the labels and the three
//! changes that an operating controller makes: [`begin`], [`finish`] and [`undo`]. The transitions
//! are decided by lifecycle-operator.

use std::{collections::BTreeMap, fmt, time::Duration};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{
    ids::{LifecycleTime, OperationId, OperationType},
    well_known,
};

/// Operation ID of CollaSet, for updates and scale-ins.
pub const COLLASET: &str = "collaset";
/// Operation ID of graceful deletion.
pub const POD_DELETE: &str = "pod-delete";
/// Operation type of an update.
pub const UPDATE: &str = "update";
/// Operation type of a scale-in.
pub const SCALE_IN: &str = "scale-in";
/// Operation type of a graceful deletion.
pub const DELETE: &str = "delete";

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// Label changes: `Some` sets, `None` removes.
pub type LabelChanges = BTreeMap<String, Option<String>>;

const SUFFIX: &str = ".podopslifecycle.kusionstack.io";

/// Kind of a lifecycle label that carries an operation ID, in the protocol's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LabelKind {
    /// The operation is requested; the value identifies the operation instance.
    Operating,
    /// Type of the operation.
    OperationType,
    /// Waiting for the grant of the operation.
    PreCheck,
    /// The operation is granted.
    PreChecked,
    /// Traffic is drained.
    Preparing,
    /// The Pod may be operated on.
    Operate,
    /// The operation is finished.
    Operated,
    /// Type of the finished operation.
    DoneOperationType,
    /// Waiting for the grant to return to service.
    PostCheck,
    /// The return to service is granted.
    PostChecked,
    /// Traffic is restored.
    Completing,
    /// Cancellation of the operation is requested; the value is the operation type.
    UndoOperationType,
}

impl LabelKind {
    /// All kinds, in the protocol's order.
    pub const ALL: [Self; 12] = [
        Self::Operating,
        Self::OperationType,
        Self::PreCheck,
        Self::PreChecked,
        Self::Preparing,
        Self::Operate,
        Self::Operated,
        Self::DoneOperationType,
        Self::PostCheck,
        Self::PostChecked,
        Self::Completing,
        Self::UndoOperationType,
    ];

    /// Returns the first part of the label key.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Operating => "operating",
            Self::OperationType => "operation-type",
            Self::PreCheck => "pre-check",
            Self::PreChecked => "pre-checked",
            Self::Preparing => "preparing",
            Self::Operate => "operate",
            Self::Operated => "operated",
            Self::DoneOperationType => "done-operation-type",
            Self::PostCheck => "post-check",
            Self::PostChecked => "post-checked",
            Self::Completing => "completing",
            Self::UndoOperationType => "undo-operation-type",
        }
    }

    /// Returns the label key of this kind for one operation.
    #[must_use]
    pub fn key(self, id: &str) -> String {
        format!("{}{SUFFIX}/{id}", self.as_str())
    }
}

/// Returns whether any operation on the Pod has started and is not finished.
#[must_use]
pub fn is_operated_on(labels: &Labels) -> bool {
    let prefix = LabelKind::Operating.key("");
    labels.range(prefix.clone()..).next().is_some_and(|(key, _)| key.starts_with(&prefix))
}

/// Returns the label key that permits operations of one type.
#[must_use]
pub fn permission_key(operation_type: &str) -> String {
    format!("{}/{operation_type}", well_known::OPERATION_PERMISSION)
}

/// Meaning of a label key.
enum Key<'a> {
    /// A label of the operation with this ID.
    Operation { kind: LabelKind, id: &'a str },
    /// A permission for this operation type.
    Permission(&'a str),
    /// A known key without an ID.
    Invalid,
    /// Not a label of an operation.
    Foreign,
}

fn parse_key(key: &str) -> Key<'_> {
    let (prefix, rest) = key.split_once('/').map_or((key, None), |(p, r)| (p, Some(r)));
    let Some(kind) = prefix.strip_suffix(SUFFIX) else { return Key::Foreign };
    let is_valid = |id: Option<&'_ str>| id.is_some_and(|id| !id.is_empty() && !id.contains('/'));
    if prefix == well_known::OPERATION_PERMISSION {
        return match rest {
            Some(operation_type) if is_valid(rest) => Key::Permission(operation_type),
            _ => Key::Invalid,
        };
    }
    let Some(kind) = LabelKind::ALL.into_iter().find(|k| k.as_str() == kind) else {
        return Key::Foreign;
    };
    match rest {
        Some(id) if is_valid(rest) => Key::Operation { kind, id },
        _ => Key::Invalid,
    }
}

/// Invalid lifecycle label: a known kind without the `/<id>` of its operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid label {key}")]
pub struct InvalidLabel {
    /// Label key.
    pub key: String,
}

/// Labels of one operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Operation {
    values: BTreeMap<LabelKind, String>,
}

impl Operation {
    /// Returns whether the operation has a label of this kind.
    #[must_use]
    pub fn has(&self, kind: LabelKind) -> bool {
        self.values.contains_key(&kind)
    }

    /// Returns the value of the label of this kind.
    #[must_use]
    pub fn get(&self, kind: LabelKind) -> Option<&str> {
        self.values.get(&kind).map(String::as_str)
    }

    /// Returns the time in the label of this kind; `None` if there is no label, or no time in its
    /// value, because other clients may write any value.
    #[must_use]
    pub fn time(&self, kind: LabelKind) -> Option<Timestamp> {
        self.get(kind).and_then(LifecycleTime::parse).map(|time| time.0)
    }

    /// Sets the label of this kind.
    pub fn set(&mut self, kind: LabelKind, value: impl Into<String>) {
        self.values.insert(kind, value.into());
    }

    /// Removes the label of this kind.
    pub fn remove(&mut self, kind: LabelKind) {
        self.values.remove(&kind);
    }

    /// Removes the labels of all other kinds.
    pub fn keep_only(&mut self, kinds: &[LabelKind]) {
        self.values.retain(|kind, _| kinds.contains(kind));
    }

    /// Returns whether the operation has no labels.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Returns the type of an unfinished operation; an empty value counts as none.
    #[must_use]
    pub fn operation_type(&self) -> Option<&str> {
        self.get(LabelKind::OperationType).filter(|t| !t.is_empty())
    }

    /// Returns the type of the operation, also after it is finished; an empty value counts as none.
    #[must_use]
    pub fn any_type(&self) -> Option<&str> {
        self.operation_type()
            .or_else(|| self.get(LabelKind::DoneOperationType).filter(|t| !t.is_empty()))
    }
}

/// Operations of a Pod, and the permissions for their types.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodLifecycle {
    /// Operations by ID.
    pub operations: BTreeMap<OperationId, Operation>,
    /// Values of the permission labels by operation type.
    pub permissions: BTreeMap<OperationType, String>,
}

impl PodLifecycle {
    /// Parses the labels of a Pod; labels that do not belong to an operation are ignored.
    ///
    /// # Errors
    ///
    /// [`InvalidLabel`] for a known kind without an ID.
    pub fn parse(labels: &Labels) -> Result<Self, InvalidLabel> {
        let mut lifecycle = Self::default();
        for (key, value) in labels {
            match parse_key(key) {
                Key::Operation { kind, id } => {
                    lifecycle.operations.entry(id.into()).or_default().set(kind, value.clone());
                }
                Key::Permission(operation_type) => {
                    lifecycle.permissions.insert(operation_type.into(), value.clone());
                }
                Key::Invalid => return Err(InvalidLabel { key: key.clone() }),
                Key::Foreign => {}
            }
        }
        Ok(lifecycle)
    }

    /// Returns the labels: the inverse of [`PodLifecycle::parse`].
    #[must_use]
    pub fn labels(&self) -> Labels {
        let operations = self.operations.iter().flat_map(|(id, operation)| {
            operation.values.iter().map(move |(kind, value)| (kind.key(id), value.clone()))
        });
        let permissions =
            self.permissions.iter().map(|(kind, value)| (permission_key(kind), value.clone()));
        operations.chain(permissions).collect()
    }
}

/// Returns the changes that turn one set of labels into another.
#[must_use]
pub fn difference(from: &Labels, to: &Labels) -> LabelChanges {
    let removed = from.keys().filter(|key| !to.contains_key(*key)).map(|key| (key.clone(), None));
    let set = to.iter().filter(|(key, value)| from.get(*key) != Some(value));
    removed.chain(set.map(|(key, value)| (key.clone(), Some(value.clone())))).collect()
}

/// Applies changes to labels, as the API server does.
pub fn apply(labels: &mut Labels, changes: LabelChanges) {
    for (key, value) in changes {
        match value {
            Some(value) => drop(labels.insert(key, value)),
            None => drop(labels.remove(&key)),
        }
    }
}

/// Formats a time for a label value: decimal Unix nanoseconds.
#[must_use]
pub fn nanos(at: Timestamp) -> String {
    LifecycleTime(at).to_string()
}

/// Returns the changes that start an operation and remove the labels of an earlier one with the
/// same ID.
///
/// The value of `operating` identifies the operation instance. The value is later than any time in
/// the old labels, so that a grant for the earlier instance does not apply to this one. If a
/// checker has a gate on the Pod, `pre-check` is set in the same write, which saves
/// lifecycle-operator a write.
#[must_use]
pub fn begin(labels: &Labels, id: &str, operation_type: &str, now: Timestamp) -> LabelChanges {
    let old = |kind: LabelKind| labels.get(&kind.key(id));
    let latest =
        LabelKind::ALL.into_iter().filter_map(old).filter_map(|v| v.parse::<i128>().ok()).max();
    let instance = latest.map_or(now.as_nanosecond(), |at| now.as_nanosecond().max(at + 1));
    let mut changes: LabelChanges = LabelKind::ALL
        .into_iter()
        .map(|kind| kind.key(id))
        .filter(|key| labels.contains_key(key))
        .map(|key| (key, None))
        .collect();
    changes.insert(LabelKind::Operating.key(id), Some(instance.to_string()));
    changes.insert(LabelKind::OperationType.key(id), Some(operation_type.to_owned()));
    if labels.keys().any(|key| key.starts_with(well_known::PRE_CHECK_GATE)) {
        changes.insert(LabelKind::PreCheck.key(id), Some(instance.to_string()));
    }
    changes
}

/// Returns the value of a label that grants an operation whose label `operating` has this value.
///
/// The time is never earlier than the request, despite clock skew: a grant older than the start of
/// the operation would count as a grant of an earlier operation.
#[must_use]
pub fn grant_time(operating: Option<&str>, now: Timestamp) -> String {
    let now = now.as_nanosecond();
    let started_at = operating.and_then(|value| value.parse::<i128>().ok());
    started_at.map_or(now, |at| at.max(now)).to_string()
}

/// Returns the changes that finish an operation: the Pod may return to service.
#[must_use]
pub fn finish(id: &str) -> LabelChanges {
    LabelChanges::from([(LabelKind::Operating.key(id), None)])
}

/// Returns the changes that cancel an operation: lifecycle-operator removes all of its labels.
#[must_use]
pub fn undo(id: &str, operation_type: &str) -> LabelChanges {
    LabelChanges::from([(LabelKind::UndoOperationType.key(id), Some(operation_type.to_owned()))])
}

/// Returns whether an operation of this ID and type is in progress on the Pod.
#[must_use]
pub fn is_during(labels: &Labels, id: &str, operation_type: &str) -> bool {
    labels.contains_key(&LabelKind::Operating.key(id))
        && labels.get(&LabelKind::OperationType.key(id)).is_some_and(|t| t == operation_type)
}

/// Returns the time since which the operation of this ID and type is in phase Operate; `None` in
/// any other phase.
///
/// An invalid time counts as the Unix epoch, as in Kuperator.
#[must_use]
pub fn allowed_since(labels: &Labels, id: &str, operation_type: &str) -> Option<Timestamp> {
    if !is_during(labels, id, operation_type)
        || labels.contains_key(&LabelKind::UndoOperationType.key(id))
    {
        return None;
    }
    let since = labels.get(&LabelKind::Operate.key(id))?;
    Some(LifecycleTime::parse(since).map_or(Timestamp::UNIX_EPOCH, |time| time.0))
}

/// Remaining time of an operation delay that began at `since`; `None` once the delay is over.
#[must_use]
pub fn remaining_delay(
    since: Timestamp,
    delay_seconds: Option<i32>,
    now: Timestamp,
) -> Option<Duration> {
    let delay = SignedDuration::from_secs(i64::from(delay_seconds.unwrap_or_default()));
    // The label may contain any time, also one that overflows.
    let until = since.checked_add(delay).unwrap_or(Timestamp::MAX);
    Duration::try_from(until.duration_since(now)).ok().filter(|wait| !wait.is_zero())
}

/// Time within which even a busy kubelet reports that a Pod is not Ready after its readiness gate was
/// set to False.
const REPORT_DELAY: SignedDuration = SignedDuration::from_secs(2);

/// Remaining time for a kubelet to report the readiness of a Pod whose readiness gate any process has
/// written at `since`; `None` once a busy kubelet has reported it, or if the clock of that process is
/// ahead.
#[must_use]
pub fn until_report(since: Timestamp, now: Timestamp) -> Option<Duration> {
    let left = REPORT_DELAY - now.duration_since(since);
    let left = Some(left).filter(|left| left.is_positive() && *left <= REPORT_DELAY)?;
    Some(left.unsigned_abs())
}

/// Phase of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Requested, not yet processed by lifecycle-operator.
    Requested,
    /// Waiting for the grant of the operation.
    PreCheck,
    /// Granted.
    PreChecked,
    /// Traffic is drained.
    Preparing,
    /// The Pod may be operated on.
    Operate,
    /// Finished by its controller.
    Operated,
    /// Waiting for the grant to return to service.
    PostCheck,
    /// Granted to return to service.
    PostChecked,
    /// Traffic is restored.
    Completing,
}

impl Phase {
    /// All phases, in the protocol's order.
    pub const ALL: [Self; 9] = [
        Self::Requested,
        Self::PreCheck,
        Self::PreChecked,
        Self::Preparing,
        Self::Operate,
        Self::Operated,
        Self::PostCheck,
        Self::PostChecked,
        Self::Completing,
    ];

    /// Returns the phase of an operation: the most advanced one that its labels indicate.
    ///
    /// An operation without [`LabelKind::Operating`] is finished and at least [`Phase::Operated`].
    #[must_use]
    pub fn of(operation: &Operation) -> Self {
        let has = |kind| operation.has(kind);
        if !has(LabelKind::Operating) {
            if has(LabelKind::Completing) {
                Self::Completing
            } else if has(LabelKind::PostChecked) {
                Self::PostChecked
            } else if has(LabelKind::PostCheck) {
                Self::PostCheck
            } else {
                Self::Operated
            }
        } else if has(LabelKind::Operate) {
            Self::Operate
        } else if has(LabelKind::Preparing) {
            Self::Preparing
        } else if has(LabelKind::PreChecked) {
            Self::PreChecked
        } else if has(LabelKind::PreCheck) {
            Self::PreCheck
        } else {
            Self::Requested
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn label_keys_are_kuperators() {
        assert_eq!(
            LabelKind::Operating.key("collaset"),
            "operating.podopslifecycle.kusionstack.io/collaset"
        );
        assert_eq!(
            permission_key("update"),
            "operation-permission.podopslifecycle.kusionstack.io/update"
        );
    }

    #[test]
    fn a_label_without_an_operation_id_is_invalid() {
        let invalid = labels(&[("operating.podopslifecycle.kusionstack.io", "1")]);
        let error = PodLifecycle::parse(&invalid).unwrap_err();
        assert_eq!(error.to_string(), "invalid label operating.podopslifecycle.kusionstack.io");
    }

    #[test]
    fn foreign_labels_are_ignored() {
        let foreign = labels(&[
            ("app", "web"),
            (well_known::SERVICE_AVAILABLE, "1"),
            ("pre-check-gate.podopslifecycle.kusionstack.io/transition-rule", "1"),
        ]);
        assert_eq!(PodLifecycle::parse(&foreign), Ok(PodLifecycle::default()));
    }

    #[test]
    fn begin_clears_the_earlier_operation_and_is_later_than_it() {
        let old = labels(&[
            ("operate.podopslifecycle.kusionstack.io/collaset", "9000"),
            ("pre-checked.podopslifecycle.kusionstack.io/collaset", "9000"),
        ]);
        let changes = begin(&old, COLLASET, UPDATE, Timestamp::from_nanosecond(5).unwrap());
        assert_eq!(changes[&LabelKind::Operating.key(COLLASET)].as_deref(), Some("9001"));
        assert_eq!(changes[&LabelKind::OperationType.key(COLLASET)].as_deref(), Some("update"));
        assert_eq!(changes[&LabelKind::Operate.key(COLLASET)], None);
        assert_eq!(changes[&LabelKind::PreChecked.key(COLLASET)], None);
    }

    #[test]
    fn begin_waits_for_a_checker_if_the_pod_has_a_gate() {
        let gated = labels(&[("pre-check-gate.podopslifecycle.kusionstack.io/rules", "")]);
        let changes = begin(&gated, COLLASET, UPDATE, Timestamp::from_nanosecond(5).unwrap());
        assert_eq!(changes[&LabelKind::PreCheck.key(COLLASET)].as_deref(), Some("5"));
        let ungated = begin(&Labels::new(), COLLASET, UPDATE, Timestamp::UNIX_EPOCH);
        assert!(!ungated.contains_key(&LabelKind::PreCheck.key(COLLASET)));
    }

    #[test]
    fn permission_applies_to_its_own_operation_type_only() {
        let pod = labels(&[
            ("operating.podopslifecycle.kusionstack.io/collaset", "1"),
            ("operation-type.podopslifecycle.kusionstack.io/collaset", "update"),
            ("operate.podopslifecycle.kusionstack.io/collaset", "soon"),
        ]);
        assert_eq!(allowed_since(&pod, COLLASET, UPDATE), Some(Timestamp::UNIX_EPOCH));
        assert_eq!(allowed_since(&pod, COLLASET, SCALE_IN), None);
    }

    fn lifecycle_label() -> impl Strategy<Value = (String, String)> {
        let kind = prop::sample::select(LabelKind::ALL.to_vec());
        let id = prop::sample::select(vec!["collaset", "pod-delete", "0xabc", "my.job"]);
        (kind, id, "[0-9a-z]{0,8}").prop_map(|(kind, id, value)| (kind.key(id), value))
    }

    proptest! {
        #[test]
        fn labels_survive_the_round_trip(
            operation_labels in prop::collection::btree_map(lifecycle_label().prop_map(|l| l.0), "[0-9a-z]{0,8}", 0..20),
            permission in prop::option::of("[a-z]{1,8}"),
        ) {
            let mut labels = operation_labels;
            if let Some(kind) = permission {
                labels.insert(permission_key(&kind), "1".to_owned());
            }
            prop_assert_eq!(PodLifecycle::parse(&labels).unwrap().labels(), labels);
        }

        #[test]
        fn applying_the_difference_yields_the_target_labels(
            from in prop::collection::btree_map("[a-d]", "[0-2]", 0..5),
            to in prop::collection::btree_map("[a-d]", "[0-2]", 0..5),
        ) {
            let mut result = from.clone();
            apply(&mut result, difference(&from, &to));
            prop_assert_eq!(result, to);
        }
    }
}
