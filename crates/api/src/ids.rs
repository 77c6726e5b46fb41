//! Identifiers, one type each, so that the compiler distinguishes them.

use std::{borrow::Borrow, fmt};

use derive_more::{AsRef, Deref, Display, From, FromStr};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Declares a text identifier with its documentation.
macro_rules! text_id {
    ($(#[$doc:meta])+ $name:ident) => {
        $(#[$doc])+
        #[derive(
            Clone,
            Debug,
            Default,
            PartialEq,
            Eq,
            PartialOrd,
            Ord,
            Hash,
            AsRef,
            Deref,
            Display,
            From,
            Serialize,
            Deserialize,
        )]
        #[from(String, &str)]
        pub struct $name(String);
    };
}

/// Number that identifies one instance of a workload across recreation and replacement of its Pod.
///
/// On the wire: decimal in the label `collaset.kusionstack.io/instance-id`, a number in a
/// ResourceContext.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Display,
    From,
    FromStr,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(transparent)]
#[schemars(transparent)]
pub struct InstanceId(pub i64);

text_id! {
    /// UID of an object; unlike the name, never reused.
    Uid
}

text_id! {
    /// `metadata.resourceVersion` of an object, the precondition of an optimistic write.
    ResourceVersion
}

text_id! {
    /// Name of a ControllerRevision, the value of the label `controller-revision-hash`.
    RevisionName
}

text_id! {
    /// Name of a Pod in its namespace.
    PodName
}

text_id! {
    /// Name of a PersistentVolumeClaim in its namespace.
    ClaimName
}

text_id! {
    /// Name of a PodDecoration in its namespace.
    DecorationName
}

text_id! {
    /// Name under which one controller runs its operations on Pods: the part of a lifecycle label's
    /// key after the slash.
    OperationId
}

text_id! {
    /// Type of an operation: the value of the label `operation-type…`, such as `update`.
    OperationType
}

impl Borrow<str> for OperationId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for OperationType {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// A time in the value of a lifecycle label.
///
/// On the wire: decimal Unix nanoseconds, written by [`Display`](fmt::Display).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, From)]
pub struct LifecycleTime(pub Timestamp);

impl LifecycleTime {
    /// Parses a label's value; `None` if the value is not a time. Other clients may write any
    /// value.
    #[must_use]
    pub fn parse(value: &str) -> Option<Self> {
        let nanos = value.parse::<i128>().ok()?;
        Timestamp::from_nanosecond(nanos).ok().map(Self)
    }
}

/// Truncates a time to whole seconds, the precision in which the API server stores times.
#[must_use]
pub fn whole_second(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

impl fmt::Display for LifecycleTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.as_nanosecond())
    }
}
