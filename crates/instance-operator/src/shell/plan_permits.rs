//! Limits how many plans are computed at a time: each may need tens of megabytes and seconds of a
//! processor for a package that was made to need them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Number of plans that are computed at a time.
const PLANS_MAX: usize = 2;

/// Permits of all namespaces, and one for each: the Instances of one namespace never use all.
pub(super) struct PlanPermits {
    all: Arc<Semaphore>,
    by_namespace: Mutex<BTreeMap<String, Weak<Semaphore>>>,
}

/// Permit to compute a plan; it ends when it is dropped.
pub(super) struct PlanPermit {
    _all: Option<OwnedSemaphorePermit>,
    _of_namespace: Option<OwnedSemaphorePermit>,
}

impl PlanPermits {
    pub(super) fn new() -> Self {
        Self { all: Arc::new(Semaphore::new(PLANS_MAX)), by_namespace: Mutex::default() }
    }

    /// Waits for a permit.
    pub(super) async fn acquire(&self, namespace: &str) -> PlanPermit {
        // The semaphores are never closed.
        let own = self.of_namespace(namespace).acquire_owned().await.ok();
        PlanPermit { _of_namespace: own, _all: self.all.clone().acquire_owned().await.ok() }
    }

    fn of_namespace(&self, namespace: &str) -> Arc<Semaphore> {
        let mut known = self.by_namespace.lock();
        if let Some(semaphore) = known.get(namespace).and_then(Weak::upgrade) {
            return semaphore;
        }
        known.retain(|_, semaphore| semaphore.strong_count() > 0);
        let semaphore = Arc::new(Semaphore::new(1));
        known.insert(namespace.to_owned(), Arc::downgrade(&semaphore));
        semaphore
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn one_namespace_never_has_all_permits() {
        let permits = PlanPermits::new();
        let first = permits.acquire("a").await;
        assert!(permits.acquire("a").now_or_never().is_none());
        let second = permits.acquire("b").await;
        assert!(permits.acquire("c").now_or_never().is_none());
        drop(first);
        assert!(permits.acquire("a").now_or_never().is_some());
        drop(second);
        assert!(permits.acquire("b").now_or_never().is_some());
    }
}
