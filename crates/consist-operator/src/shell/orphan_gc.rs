//! Orphan garbage collector: releases the Pods of deleted or unmanaged employers.

use std::{convert::Infallible, sync::Arc, time::Duration};

use kube::{Api, Resource as _, core::DynamicObject};
use podops_client::{
    decode::Decoded,
    shell::{apply::Applier, clock, events::Events, store::IndexedStore},
    write::Outcome,
};
use podops_runtime::process::Process;
use tokio::time::sleep;

use crate::{
    employer::{SlimEmployer, kind::Kind},
    observe::SlimPod,
    orphans::{EmployerLookup, Orphan, orphaned},
    reasons, render,
};

/// Interval between two collections.
const INTERVAL: Duration = Duration::from_secs(30);

/// Returns the state of an employer by namespace and name, from the cache.
pub(super) type Lookup = Box<dyn Fn(&str, &str) -> EmployerLookup + Send + Sync>;

/// Garbage collector of one kind of employers.
pub(super) struct OrphanCollector {
    pub(super) process: Process,
    pub(super) applier: Applier,
    pub(super) events: Events,
    pub(super) pods: Arc<IndexedStore<SlimPod>>,
    pub(super) kind: Kind,
    pub(super) lookup: Lookup,
}

impl OrphanCollector {
    /// Collects periodically while the process is the leader; never returns.
    pub(super) async fn run(self) -> Infallible {
        loop {
            sleep(INTERVAL).await;
            if !self.process.lease.is_leader() || !*self.pods.progress.ready().borrow() {
                continue;
            }
            for pod in self.pods.all() {
                if let Some(orphan) = orphaned(&pod, self.kind.name(), &self.lookup) {
                    self.release(&pod, &orphan).await;
                }
            }
        }
    }

    /// Releases a Pod, if a read from the API server confirms that the employer does not exist or
    /// is not under control.
    async fn release(&self, pod: &SlimPod, orphan: &Orphan) {
        let Orphan { employer, change } = orphan;
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let all: Api<Decoded<DynamicObject>> =
            Api::namespaced_with(self.process.client.clone(), &namespace, &self.kind.api);
        let Ok(found) = all.get_opt(employer).await else { return };
        let is_bound = match found.map(Decoded::into_result) {
            Some(Ok(found)) => SlimEmployer::new(&self.kind, found).is_managed_or_releasing(),
            // The employer exists, and may be under control.
            Some(Err(_)) => true,
            None => false,
        };
        if is_bound {
            return;
        }
        match self.applier.apply(&render::pod(&namespace, change, clock::now())).await {
            Ok(Outcome::Done(_)) => {
                let message = orphan.message(self.kind.name());
                let event = reasons::EMPLOYER_NOT_FOUND.with(message);
                self.events.publish(&pod.object_ref(&()), &event).await;
            }
            // The next collection tries again.
            Ok(other) => {
                tracing::debug!(?other, pod = change.name.as_str(), "Orphaned Pod not released");
            }
            Err(error) => {
                tracing::warn!(%error, pod = change.name.as_str(), "Cannot release orphaned Pod");
            }
        }
    }
}
