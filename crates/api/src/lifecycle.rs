//! The PodOpsLifecycle protocol on the wire: its words, parsing labels and writing them back.
//!
//! An operation is named by an ID that its controller chooses; each of its labels is
//! `<kind>.podopslifecycle.kusionstack.io/<id>`. What follows from what is decided by
//! lifecycle-operator; here are the shapes, and the three moves an operating controller makes:
//! [`begin`], [`finish`] and [`undo`].

use std::{collections::BTreeMap, fmt};

use jiff::Timestamp;

use crate::well_known;

/// The lifecycle ID of CollaSet, for update and scale-in alike.
pub const COLLASET: &str = "collaset";
/// The lifecycle ID of graceful deletion.
pub const POD_DELETE: &str = "pod-delete";
/// The operation type of an update.
pub const UPDATE: &str = "update";
/// The operation type of a scale-in.
pub const SCALE_IN: &str = "scale-in";
/// The operation type of a graceful deletion.
pub const DELETE: &str = "delete";

/// Labels as they stand on an object.
pub type Labels = BTreeMap<String, String>;

/// Label changes: `Some` sets, `None` removes.
pub type LabelChanges = BTreeMap<String, Option<String>>;

const SUFFIX: &str = ".podopslifecycle.kusionstack.io";

/// The words that carry an operation's ID, in the order in which a Pod meets them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LabelKind {
    /// The operation is wanted; its value names the instance.
    Operating,
    /// What kind of operation it is.
    OperationType,
    /// Waiting for permission.
    PreCheck,
    /// Permission was given.
    PreChecked,
    /// Traffic is leaving.
    Preparing,
    /// The Pod may be operated on.
    Operate,
    /// The operation ended.
    Operated,
    /// What kind of operation ended.
    DoneOperationType,
    /// Waiting for permission to serve again.
    PostCheck,
    /// Permission to serve again was given.
    PostChecked,
    /// Traffic is coming back.
    Completing,
    /// The operation is to be cancelled.
    UndoOperationType,
}

impl LabelKind {
    /// Every word, in the protocol's order.
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

    /// The word as it stands at the beginning of a label key.
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

    /// The label key of this word for one operation.
    #[must_use]
    pub fn key(self, id: &str) -> String {
        format!("{}{SUFFIX}/{id}", self.as_str())
    }
}

/// Whether anybody's operation on the Pod has begun and not ended.
#[must_use]
pub fn is_operated_on(labels: &Labels) -> bool {
    let begun = LabelKind::Operating.key("");
    labels.range(begun.clone()..).next().is_some_and(|(key, _)| key.starts_with(&begun))
}

/// The label key that permits operations of one type.
#[must_use]
pub fn permission_key(operation_type: &str) -> String {
    format!("{}/{operation_type}", well_known::OPERATION_PERMISSION)
}

/// What a label key says, if it is one of the protocol's per-operation keys.
enum Key<'a> {
    Of(LabelKind, &'a str),
    Permission(&'a str),
    InvalidLabel,
    Foreign,
}

fn read_key(key: &str) -> Key<'_> {
    let (prefix, rest) = key.split_once('/').map_or((key, None), |(p, r)| (p, Some(r)));
    let Some(kind) = prefix.strip_suffix(SUFFIX) else { return Key::Foreign };
    let named = |id: Option<&'_ str>| id.is_some_and(|id| !id.is_empty() && !id.contains('/'));
    if prefix == well_known::OPERATION_PERMISSION {
        return match rest {
            Some(operation_type) if named(rest) => Key::Permission(operation_type),
            _ => Key::InvalidLabel,
        };
    }
    let Some(kind) = LabelKind::ALL.into_iter().find(|w| w.as_str() == kind) else {
        return Key::Foreign;
    };
    match rest {
        Some(id) if named(rest) => Key::Of(kind, id),
        _ => Key::InvalidLabel,
    }
}

/// A lifecycle label that cannot be read: a known word without the `/<id>` that names its operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid label {key}")]
pub struct InvalidLabel {
    /// The label's key.
    pub key: String,
}

/// One operation's labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Operation {
    labels_by_kind: BTreeMap<LabelKind, String>,
}

impl Operation {
    /// Whether the label of this word is there.
    #[must_use]
    pub fn has(&self, kind: LabelKind) -> bool {
        self.labels_by_kind.contains_key(&kind)
    }

    /// The value of the label of this word.
    #[must_use]
    pub fn get(&self, kind: LabelKind) -> Option<&str> {
        self.labels_by_kind.get(&kind).map(String::as_str)
    }

    /// Sets the label of this word.
    pub fn set(&mut self, kind: LabelKind, value: impl Into<String>) {
        self.labels_by_kind.insert(kind, value.into());
    }

    /// Removes the label of this word.
    pub fn remove(&mut self, kind: LabelKind) {
        self.labels_by_kind.remove(&kind);
    }

    /// Keeps only the labels of these words.
    pub fn keep_only(&mut self, labels_by_kind: &[LabelKind]) {
        self.labels_by_kind.retain(|kind, _| labels_by_kind.contains(kind));
    }

    /// Whether no label is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.labels_by_kind.is_empty()
    }

    /// The operation's type, while it lasts; an empty one is none.
    #[must_use]
    pub fn operation_type(&self) -> Option<&str> {
        self.get(LabelKind::OperationType).filter(|t| !t.is_empty())
    }
}

/// All operations of a Pod, and the permissions given for their types.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodLifecycle {
    /// By ID.
    pub operations: BTreeMap<String, Operation>,
    /// The value of each permission label, by operation type.
    pub permissions: BTreeMap<String, String>,
}

impl PodLifecycle {
    /// Reads a Pod's labels; foreign ones are passed over.
    ///
    /// # Errors
    ///
    /// If a known word stands without an ID.
    pub fn parse(labels: &Labels) -> Result<Self, InvalidLabel> {
        let mut lifecycle = Self::default();
        for (key, value) in labels {
            match read_key(key) {
                Key::Of(kind, id) => {
                    lifecycle.operations.entry(id.to_owned()).or_default().set(kind, value.clone());
                }
                Key::Permission(operation_type) => {
                    lifecycle.permissions.insert(operation_type.to_owned(), value.clone());
                }
                Key::InvalidLabel => return Err(InvalidLabel { key: key.clone() }),
                Key::Foreign => {}
            }
        }
        Ok(lifecycle)
    }

    /// Writes the labels back: the inverse of [`PodLifecycle::parse`].
    #[must_use]
    pub fn labels(&self) -> Labels {
        let operations = self.operations.iter().flat_map(|(id, operation)| {
            operation.labels_by_kind.iter().map(move |(kind, value)| (kind.key(id), value.clone()))
        });
        let permissions =
            self.permissions.iter().map(|(kind, value)| (permission_key(kind), value.clone()));
        operations.chain(permissions).collect()
    }
}

/// The changes that turn one set of labels into another.
#[must_use]
pub fn difference(from: &Labels, to: &Labels) -> LabelChanges {
    let gone = from.keys().filter(|key| !to.contains_key(*key)).map(|key| (key.clone(), None));
    let set = to.iter().filter(|(key, value)| from.get(*key) != Some(value));
    gone.chain(set.map(|(key, value)| (key.clone(), Some(value.clone())))).collect()
}

/// A time as the protocol writes it: decimal Unix nanoseconds.
#[must_use]
pub fn nanos(at: Timestamp) -> String {
    at.as_nanosecond().to_string()
}

/// Reads a time; a value that is none stands for no time at all.
#[must_use]
pub fn time(value: &str) -> Option<Timestamp> {
    value.parse::<i128>().ok().and_then(|n| Timestamp::from_nanosecond(n).ok())
}

/// Begins an operation, clearing away whatever an earlier one of the same ID left behind.
///
/// The value of `operating` names the instance: it is later than any time on the old labels, so
/// that a grant of the earlier instance can be told from one of this. Where a checker has put its
/// gate on the Pod, the wait for it is written along, which saves lifecycle-operator a write.
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

/// Ends an operation: the Pod may go on to serve.
#[must_use]
pub fn finish(id: &str) -> LabelChanges {
    LabelChanges::from([(LabelKind::Operating.key(id), None)])
}

/// Cancels an operation: lifecycle-operator removes all of its labels.
#[must_use]
pub fn undo(id: &str, operation_type: &str) -> LabelChanges {
    LabelChanges::from([(LabelKind::UndoOperationType.key(id), Some(operation_type.to_owned()))])
}

/// Whether an operation of this ID and type is wanted on the Pod.
#[must_use]
pub fn is_during(labels: &Labels, id: &str, operation_type: &str) -> bool {
    labels.contains_key(&LabelKind::Operating.key(id))
        && labels.get(&LabelKind::OperationType.key(id)).is_some_and(|t| t == operation_type)
}

/// Since when the Pod may be operated on by this ID and type; `None` while it may not.
///
/// A value that is no time counts as long ago, as Kuperator has it.
#[must_use]
pub fn allowed_since(labels: &Labels, id: &str, operation_type: &str) -> Option<Timestamp> {
    if !is_during(labels, id, operation_type)
        || labels.contains_key(&LabelKind::UndoOperationType.key(id))
    {
        return None;
    }
    let since = labels.get(&LabelKind::Operate.key(id))?;
    Some(time(since).unwrap_or(Timestamp::UNIX_EPOCH))
}

/// Where one operation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Wanted, and not yet looked at.
    Requested,
    /// Waiting for permission.
    PreCheck,
    /// Permitted.
    PreChecked,
    /// Traffic is leaving.
    Preparing,
    /// The Pod may be operated on.
    Operate,
    /// Ended by its controller.
    Operated,
    /// Waiting for permission to serve.
    PostCheck,
    /// Permitted to serve.
    PostChecked,
    /// Traffic is coming back.
    Completing,
}

impl Phase {
    /// Every phase, in the protocol's order.
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

    /// Reads the phase off an operation's labels, the furthest one first.
    ///
    /// An operation that ended ([`LabelKind::Operating`] gone) is at least [`Phase::Operated`].
    #[must_use]
    pub fn of(operation: &Operation) -> Self {
        let has = |kind| operation.has(kind);
        if has(LabelKind::Operating) {
            match () {
                () if has(LabelKind::Operate) => Self::Operate,
                () if has(LabelKind::Preparing) => Self::Preparing,
                () if has(LabelKind::PreChecked) => Self::PreChecked,
                () if has(LabelKind::PreCheck) => Self::PreCheck,
                () => Self::Requested,
            }
        } else {
            match () {
                () if has(LabelKind::Completing) => Self::Completing,
                () if has(LabelKind::PostChecked) => Self::PostChecked,
                () if has(LabelKind::PostCheck) => Self::PostCheck,
                () => Self::Operated,
            }
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
    fn keys_are_kuperators() {
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
    fn a_word_without_an_id_is_garbled() {
        let garbled = labels(&[("operating.podopslifecycle.kusionstack.io", "1")]);
        let error = PodLifecycle::parse(&garbled).unwrap_err();
        assert_eq!(error.to_string(), "invalid label operating.podopslifecycle.kusionstack.io");
    }

    #[test]
    fn foreign_labels_are_passed_over() {
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
    fn begin_waits_for_a_checker_where_there_is_one() {
        let gated = labels(&[("pre-check-gate.podopslifecycle.kusionstack.io/rules", "")]);
        let changes = begin(&gated, COLLASET, UPDATE, Timestamp::from_nanosecond(5).unwrap());
        assert_eq!(changes[&LabelKind::PreCheck.key(COLLASET)].as_deref(), Some("5"));
        let free = begin(&Labels::new(), COLLASET, UPDATE, Timestamp::UNIX_EPOCH);
        assert!(!free.contains_key(&LabelKind::PreCheck.key(COLLASET)));
    }

    #[test]
    fn permission_counts_for_its_own_type_only() {
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
            labels_by_kind in prop::collection::btree_map(lifecycle_label().prop_map(|l| l.0), "[0-9a-z]{0,8}", 0..20),
            permission in prop::option::of("[a-z]{1,8}"),
        ) {
            let mut labels = labels_by_kind;
            if let Some(kind) = permission {
                labels.insert(permission_key(&kind), "1".to_owned());
            }
            prop_assert_eq!(PodLifecycle::parse(&labels).unwrap().labels(), labels);
        }

        #[test]
        fn differences_lead_from_one_to_the_other(
            from in prop::collection::btree_map("[a-d]", "[0-2]", 0..5),
            to in prop::collection::btree_map("[a-d]", "[0-2]", 0..5),
        ) {
            let mut reached = from.clone();
            for (key, value) in difference(&from, &to) {
                match value {
                    Some(value) => drop(reached.insert(key, value)),
                    None => drop(reached.remove(&key)),
                }
            }
            prop_assert_eq!(reached, to);
        }
    }
}
