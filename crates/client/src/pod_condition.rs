//! Phase and conditions of Pods, for caches that need only a part of a condition.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};

/// Type, status and time of a Pod's condition. Other fields are not decoded, so that they cannot be
/// invalid.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PodCondition {
    /// Type, for example `Ready`.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Time of the last change of the status, in whole seconds; `None` if it is missing or no time.
    #[serde(
        rename = "lastTransitionTime",
        default,
        deserialize_with = "read_time",
        skip_serializing
    )]
    pub since: Option<Timestamp>,
}

fn read_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    let text: Option<Cow<'_, str>> = Option::deserialize(deserializer)?;
    Ok(text.and_then(|text| text.parse().ok()))
}

/// Returns whether all containers of a Pod in this phase have ended, and none will start again.
#[must_use]
pub fn is_terminal(phase: Option<&str>) -> bool {
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Returns whether the condition of this type is True; `None` if the Pod does not have it.
#[must_use]
pub fn is_true(conditions: Option<&[PodCondition]>, type_: &str) -> Option<bool> {
    let condition = conditions?.iter().find(|condition| condition.type_ == type_)?;
    Some(condition.status == "True")
}
