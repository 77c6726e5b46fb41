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
    /// True, False or Unexisting.
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

/// Sets a condition; its transition time changes only with its status.
pub fn set(
    list: &mut Vec<Condition>,
    type_: &str,
    is_true: bool,
    reason_and_message: (&str, String),
    now: Timestamp,
) {
    let status = if is_true { "True" } else { "False" };
    let (reason, message) = reason_and_message;
    let (reason, message) = (Some(reason.to_owned()), Some(message).filter(|m| !m.is_empty()));
    if let Some(existing) = list.iter_mut().find(|c| c.type_ == type_) {
        if existing.status != status {
            status.clone_into(&mut existing.status);
            existing.last_transition_time = Some(Time(now));
        }
        existing.reason = reason;
        existing.message = message;
        return;
    }
    list.push(Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        last_transition_time: Some(Time(now)),
        reason,
        message,
    });
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
    fn the_transition_time_changes_only_with_the_status() {
        let (early, late) = (Timestamp::UNIX_EPOCH, Timestamp::from_second(60).unwrap());
        let mut list = Vec::new();
        set(&mut list, "Scale", true, ("Scaled", String::new()), early);
        set(&mut list, "Scale", true, ("Scaled", "again".to_owned()), late);
        assert_eq!(list[0].last_transition_time, Some(Time(early)));
        set(&mut list, "Scale", false, ("ScaleOutFailed", "quota".to_owned()), late);
        assert_eq!(list[0].last_transition_time, Some(Time(late)));
        assert!(!is_true(&list, "Scale"));
    }
}
