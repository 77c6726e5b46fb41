//! Policy of graceful deletions, a value of flags and of an annotation of Pods.

/// How a requested deletion of a CollaSet's Pod is carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[cfg_attr(feature = "clap", value(rename_all = "PascalCase"))]
pub enum DeletionPolicy {
    /// Delete the Pod at the end of its graceful deletion
    #[default]
    Delete,
    /// Create a replacement Pod first
    Replace,
}

impl DeletionPolicy {
    /// The policy of a Pod with this annotation; `default` without one, or with an unknown value.
    ///
    /// A Pod with PersistentVolumeClaims is not replaced by default: the replacement is another
    /// instance with empty claims, whereas the successor of a deleted Pod has those of the Pod.
    #[must_use]
    pub fn of(annotation: Option<&str>, default: Self, has_claims: bool) -> Self {
        match annotation {
            Some("Replace") => Self::Replace,
            Some("Delete") => Self::Delete,
            _ if has_claims => Self::Delete,
            _ => default,
        }
    }
}
