//! Status of an Instance that the API server may not have stored yet. The next reconcile continues
//! from this status, so that no object is applied twice; its events are published once it is
//! stored. Pure.

use podops_api::kudo::InstanceStatus;
use podops_client::event::ObjectEvent;

/// A status that the API server may not have yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PendingStatus {
    /// Stored status that the pending status is based on.
    pub stored: InstanceStatus,
    /// Pending status.
    pub status: InstanceStatus,
    /// Events to publish once the status is stored.
    pub events: Vec<ObjectEvent>,
}

/// State of the pending status, compared with the stored status.
#[derive(Debug, PartialEq)]
pub enum LastStatus {
    /// The status is stored; these events are due.
    Written(Vec<ObjectEvent>),
    /// The status is not stored: the write was too early, failed, or conflicted.
    Pending(Box<PendingStatus>),
    /// There was no pending status, or another operator has written the status since.
    Unknown,
}

impl LastStatus {
    /// Compares the pending status with the stored one.
    #[must_use]
    pub fn new(pending: Option<PendingStatus>, stored: &InstanceStatus) -> Self {
        match pending {
            Some(pending) if pending.status == *stored => Self::Written(pending.events),
            Some(pending) if pending.stored == *stored => Self::Pending(Box::new(pending)),
            Some(_) | None => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(generation: i64) -> InstanceStatus {
        InstanceStatus { observed_generation: Some(generation), ..InstanceStatus::default() }
    }

    #[test]
    fn a_status_is_continued_until_it_is_stored() {
        let events = vec![crate::reasons::started("deploy")];
        let pending =
            PendingStatus { stored: status(1), status: status(2), events: events.clone() };
        let last = |stored| LastStatus::new(Some(pending.clone()), &status(stored));
        assert_eq!(last(1), LastStatus::Pending(Box::new(pending.clone())));
        assert_eq!(last(2), LastStatus::Written(events));
        assert_eq!(last(3), LastStatus::Unknown, "another operator wrote");
    }
}
