//! Steps of an uninstallation.

use std::fmt;

use serde_json::Value;

use crate::installation::Object;

/// Change of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Merge patch of the object.
    Patch(Value),
    /// Strategic merge patch of its status.
    PatchStatus(Value),
    /// Deletion.
    Delete,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self.change {
            Change::Patch(_) => "release",
            Change::PatchStatus(_) => "return to service",
            Change::Delete => "delete",
        };
        write!(f, "{verb} {}", self.object)
    }
}

/// Step of an uninstallation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The object.
    pub object: Object,
    /// Change of the object.
    pub change: Change,
}
