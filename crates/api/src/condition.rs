//! The condition list of a status: set and read, with honest transition times.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One observation about an object, in Kubernetes' usual form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What is observed, in CamelCase.
    #[serde(rename = "type")]
    pub type_: String,
    /// True, False or Unknown.
    pub status: String,
    /// When the status last changed from one value to another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// Why, in one CamelCase word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Sets a condition; its transition time moves only when its status does.
pub fn set(
    list: &mut Vec<Condition>,
    type_: &str,
    is_true: bool,
    why: (&str, String),
    now: Timestamp,
) {
    let status = if is_true { "True" } else { "False" };
    let (reason, message) = (Some(why.0.to_owned()), Some(why.1).filter(|m| !m.is_empty()));
    if let Some(known) = list.iter_mut().find(|c| c.type_ == type_) {
        if known.status != status {
            status.clone_into(&mut known.status);
            known.last_transition_time = Some(Time(now));
        }
        known.reason = reason;
        known.message = message;
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

/// The condition of this type.
#[must_use]
pub fn find<'a>(list: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    list.iter().find(|c| c.type_ == type_)
}

/// Whether the condition is there and True.
#[must_use]
pub fn is_true(list: &[Condition], type_: &str) -> bool {
    find(list, type_).is_some_and(|c| c.status == "True")
}

/// Takes a condition off the list.
pub fn remove(list: &mut Vec<Condition>, type_: &str) {
    list.retain(|c| c.type_ != type_);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transition_time_moves_only_with_the_status() {
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
