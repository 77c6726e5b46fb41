//! Health, and the counts of a status.

use serde_json::Value;

use crate::object::integer;

/// Health of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// The object is healthy.
    Healthy,
    /// The object is not healthy yet, for this reason.
    Waiting(String),
    /// The object failed permanently, for this reason.
    Failed(String),
}

impl Health {
    pub(super) fn waiting(reason: impl Into<String>) -> Self {
        Self::Waiting(reason.into())
    }

    pub(super) fn unless(is_waiting: bool, reason: impl FnOnce() -> String) -> Self {
        if is_waiting { Self::Waiting(reason()) } else { Self::Healthy }
    }
}

/// Number in the status; 0 if absent.
pub(super) fn count(object: &Value, field: &str) -> i64 {
    integer(object, &format!("/status/{field}")).unwrap_or_default()
}
