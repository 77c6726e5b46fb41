//! Rules that ask a service: what was said so far, and what to ask next.

use std::collections::BTreeMap;

use jiff::Timestamp;

/// Which rule asks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Asker {
    /// The UID of the PodTransitionRule.
    pub uid: String,
    /// The rule's name.
    pub rule: String,
}

/// Who is asked about: one Pod and the instances of its operations.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject {
    /// The Pod's UID.
    pub uid: String,
    /// What waits on it, as `<id>=<instance>` one after another.
    pub instances: String,
}

/// What a service said about a Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// It may pass.
    Passed,
    /// It may not; to be asked again from this time on.
    Rejected(String, Timestamp),
    /// A question, or a task that the service named, is under way.
    Pending(String),
}

/// What services said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answers(pub BTreeMap<(Asker, Subject), Said>);
