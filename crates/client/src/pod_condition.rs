//! Phase and conditions of Pods, for caches that need only type and status of a condition.

use serde::{Deserialize, Serialize};

/// Type and status of a Pod's condition. Other fields are not decoded, so that they cannot be
/// invalid.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PodCondition {
    /// Type, for example `Ready`.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
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
