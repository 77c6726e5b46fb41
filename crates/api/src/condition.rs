//! Reads and sets the conditions of a status; transition times change only with the status.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One condition of an object, as in `metav1.Condition`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Condition type, in CamelCase.
    #[serde(rename = "type")]
    pub type_: String,
    /// Status: True, False or Unknown.
    pub status: String,
    /// Time of the last change of the status from one value to another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// Reason for the status, one CamelCase word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Details in human-readable form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Reason of a condition: one row of `docs/reference/conditions.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConditionReason {
    /// Condition type.
    pub condition: &'static str,
    /// Status that the condition has for this reason.
    pub status: ConditionStatus,
    /// Reason, one CamelCase word.
    pub name: &'static str,
    /// Meaning, and the action that a user has to take, if any.
    pub meaning: &'static str,
}

/// Returns a reason; a short constructor for tables of reasons.
#[must_use]
pub const fn reason(
    condition: &'static str,
    status: ConditionStatus,
    name: &'static str,
    meaning: &'static str,
) -> ConditionReason {
    ConditionReason { condition, status, name, meaning }
}

/// Status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    /// The condition holds.
    True,
    /// The condition does not hold.
    False,
    /// Unknown whether the condition holds.
    Unknown,
}

impl ConditionStatus {
    /// Returns the status as serialized.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// Sets a condition; its transition time changes only with its status.
pub fn set(list: &mut Vec<Condition>, reason: &ConditionReason, message: String, now: Timestamp) {
    let type_ = reason.condition;
    let status = reason.status.as_str();
    let name = Some(reason.name.to_owned());
    let message = Some(message).filter(|message| !message.is_empty());
    if let Some(existing) = list.iter_mut().find(|c| c.type_ == type_) {
        if existing.status != status {
            status.clone_into(&mut existing.status);
            existing.last_transition_time = Some(Time(now));
        }
        existing.reason = name;
        existing.message = message;
        return;
    }
    list.push(Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        last_transition_time: Some(Time(now)),
        reason: name,
        message,
    });
}

/// Progress of an object towards its spec; see [`set_readiness`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Everything is as the spec requires.
    Ready,
    /// In progress; nothing blocks it.
    InProgress,
    /// No progress without a change by a user.
    Stalled,
}

/// The object is as its spec requires. The name is replaced by the reason of another condition.
pub const READY: ConditionReason = reason(
    "Ready",
    ConditionStatus::True,
    "(reason of another condition)",
    "Everything is as the spec requires; the condition to wait for, with kubectl wait or in GitOps.",
);
/// The object is not yet as its spec requires.
pub const NOT_READY: ConditionReason = reason(
    "Ready",
    ConditionStatus::False,
    "(reason of another condition)",
    "Not everything is as the spec requires; the condition that has the same reason states why.",
);
/// No progress without a change by a user.
pub const STALLED: ConditionReason = reason(
    "Stalled",
    ConditionStatus::True,
    "(reason of another condition)",
    "It does not continue without a change by a user. Absent otherwise.",
);

/// Sets the conditions `Ready` and `Stalled`, as kstatus and `kubectl wait` read them, with the
/// reason and the message of `cause`.
pub fn set_readiness(
    list: &mut Vec<Condition>,
    readiness: Readiness,
    cause: &ConditionReason,
    message: &str,
    now: Timestamp,
) {
    let ready = if readiness == Readiness::Ready { READY } else { NOT_READY };
    set(list, &ConditionReason { name: cause.name, ..ready }, message.to_owned(), now);
    if readiness == Readiness::Stalled {
        set(list, &ConditionReason { name: cause.name, ..STALLED }, message.to_owned(), now);
    } else {
        remove(list, STALLED.condition);
    }
}

/// Returns the condition of this type.
#[must_use]
pub fn find<'a>(list: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    list.iter().find(|c| c.type_ == type_)
}

/// Returns whether the condition exists and is True.
#[must_use]
pub fn is_true(list: &[Condition], type_: &str) -> bool {
    find(list, type_).is_some_and(|c| c.status == "True")
}

/// Removes a condition.
pub fn remove(list: &mut Vec<Condition>, type_: &str) {
    list.retain(|c| c.type_ != type_);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalled_exists_only_while_it_is_true() {
        let mut list = Vec::new();
        let states = |list: &[Condition]| {
            let state =
                |c: &Condition| format!("{}={} {}", c.type_, c.status, c.reason.clone().unwrap());
            list.iter().map(state).collect::<Vec<String>>()
        };
        let now = Timestamp::UNIX_EPOCH;
        set_readiness(&mut list, Readiness::Stalled, &SCALED, "", now);
        assert_eq!(states(&list), ["Ready=False Scaled", "Stalled=True Scaled"]);
        set_readiness(&mut list, Readiness::InProgress, &SCALED, "", now);
        assert_eq!(states(&list), ["Ready=False Scaled"]);
        set_readiness(&mut list, Readiness::Ready, &SCALED, "", now);
        assert_eq!(states(&list), ["Ready=True Scaled"]);
    }

    const SCALED: ConditionReason = ConditionReason {
        condition: "Scale",
        status: ConditionStatus::True,
        name: "Scaled",
        meaning: "",
    };
    const FAILED: ConditionReason =
        ConditionReason { status: ConditionStatus::False, name: "ScaleOutFailed", ..SCALED };

    #[test]
    fn transition_time_changes_only_with_the_status() {
        let early = Timestamp::UNIX_EPOCH;
        let late = Timestamp::from_second(60).unwrap();
        let mut list = Vec::new();
        set(&mut list, &SCALED, String::new(), early);
        set(&mut list, &SCALED, "again".to_owned(), late);
        assert_eq!(list[0].last_transition_time, Some(Time(early)));
        set(&mut list, &FAILED, "quota".to_owned(), late);
        assert_eq!(list[0].last_transition_time, Some(Time(late)));
        assert!(!is_true(&list, "Scale"));
    }
}
