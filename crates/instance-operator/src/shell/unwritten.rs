//! Statuses that the API server does not have yet. The next reconcile continues with them, so that
//! nothing that was applied is applied again; their events are published once they are written.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use podops_api::{ids::Uid, kudo::InstanceStatus};
use podops_client::event::ObjectEvent;

/// A status that the API server may not have yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Unwritten {
    /// The stored status that it continues.
    pub(super) stored: InstanceStatus,
    /// The status.
    pub(super) status: InstanceStatus,
    /// Events of what it reports.
    pub(super) events: Vec<ObjectEvent>,
}

/// What became of the status that was unwritten at the end of the last reconcile.
#[derive(Debug, PartialEq)]
pub(super) enum Last {
    /// It is stored; these events are due.
    Written(Vec<ObjectEvent>),
    /// It is not stored: the write was too early, failed, or conflicted.
    Unwritten(Box<Unwritten>),
    /// There was none, or another operator has written meanwhile.
    Unknown,
}

/// Unwritten statuses, by the UID of the Instance.
#[derive(Default)]
pub(super) struct Statuses {
    unwritten: Mutex<BTreeMap<Uid, Unwritten>>,
}

impl Statuses {
    /// Takes what is known of an Instance with this stored status.
    pub(super) fn take(&self, uid: &Uid, stored: &InstanceStatus) -> Last {
        match self.unwritten.lock().remove(uid) {
            Some(unwritten) if unwritten.status == *stored => Last::Written(unwritten.events),
            Some(unwritten) if unwritten.stored == *stored => Last::Unwritten(Box::new(unwritten)),
            Some(_) | None => Last::Unknown,
        }
    }

    /// Keeps a status until it is known to be stored.
    pub(super) fn keep(&self, uid: &Uid, unwritten: Unwritten) {
        self.unwritten.lock().insert(uid.clone(), unwritten);
    }

    /// Forgets an Instance that does not exist any more.
    pub(super) fn forget(&self, uid: &Uid) {
        self.unwritten.lock().remove(uid);
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
        let (statuses, uid) = (Statuses::default(), Uid::from("u"));
        let events = vec![crate::reasons::started("deploy")];
        let unwritten = Unwritten { stored: status(1), status: status(2), events: events.clone() };
        statuses.keep(&uid, unwritten.clone());
        let Last::Unwritten(last) = statuses.take(&uid, &status(1)) else { panic!() };
        assert_eq!(*last, unwritten);
        statuses.keep(&uid, unwritten.clone());
        assert_eq!(statuses.take(&uid, &status(2)), Last::Written(events));
        assert_eq!(statuses.take(&uid, &status(2)), Last::Unknown, "events are published once");
        statuses.keep(&uid, unwritten);
        assert_eq!(statuses.take(&uid, &status(3)), Last::Unknown, "another operator wrote");
    }
}
