//! Fleet that the xDS server and syncs share.

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

use crate::{
    backends::envoy::{
        fleet::Fleet,
        stream::{Change, Rejection},
    },
    shell::backend::ChangeNotifier,
};

/// A fleet behind a lock, with signals of its changes.
pub(super) struct SharedFleet {
    fleet: Mutex<Fleet>,
    /// Counts changes that may have to be sent to Envoys.
    changes: watch::Sender<u64>,
    notifier: ChangeNotifier,
}

impl SharedFleet {
    pub(super) fn new(fleet: Fleet, notifier: ChangeNotifier) -> Self {
        Self { fleet: Mutex::new(fleet), changes: watch::channel(0).0, notifier }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Fleet> {
        self.fleet.lock()
    }

    /// Wakes all streams, because something may have changed.
    pub(super) fn signal_change(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Triggers reconciles of the employers that a message of an Envoy affects.
    pub(super) fn notify(&self, change: &Change) {
        if let Some(Rejection { node, cluster, message }) = &change.rejection {
            tracing::warn!(node, cluster, message, "Envoy rejected its endpoints");
        }
        if let Some(cluster) = &change.denied {
            tracing::warn!(cluster, "The certificate of an Envoy does not permit these endpoints");
        }
        for cluster in &change.clusters {
            self.notifier.notify(cluster.clone());
        }
    }
}
