//! What health is, and the counts that it is decided by.

use serde_json::Value;

use crate::object::integer;

/// Health of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Nothing is to wait for.
    Healthy,
    /// It becomes healthy later; what is missing.
    Waiting(String),
    /// It never becomes healthy; why.
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

/// A number of the status; absent is 0.
pub(super) fn count(object: &Value, field: &str) -> i64 {
    integer(object, &format!("/status/{field}")).unwrap_or_default()
}
