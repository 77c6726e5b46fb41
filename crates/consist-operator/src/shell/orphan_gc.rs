//! Orphan garbage collector: releases Pods whose employer was deleted, or is no longer under
//! control, without having released them, because another client removed the employer's finalizer.

use std::{sync::Arc, time::Duration};

use kube::{Api, Client, Resource as _, core::DynamicObject};
use podops_api::{
    availability::AvailableConditions,
    consist::{self, lifecycle_finalizer},
};
use podops_runtime::{
    shell::{
        apply::Applier,
        clock,
        events::{Events, Note},
        lease::Leadership,
        store::IndexedStore,
    },
    write::Outcome,
};
use tokio::time::sleep;

use super::{employer::Kind, observe::SlimPod};
use crate::{plan::PodChange, render};

/// Interval between two collections.
const INTERVAL: Duration = Duration::from_secs(30);

/// Result of looking up the employer that a Pod's available conditions name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EmployerLookup {
    /// The object is an employer, or may be one.
    Active,
    /// The object exists, but is not under control.
    Unmanaged,
    /// The object does not exist.
    NotFound,
}

/// Looks up an employer by namespace and name in the cache.
pub(super) type Lookup = Box<dyn Fn(&str, &str) -> EmployerLookup + Send + Sync>;

/// Garbage collector of one kind of employers.
pub(super) struct OrphanCollector {
    pub(super) client: Client,
    pub(super) applier: Applier,
    pub(super) events: Events,
    pub(super) pods: Arc<IndexedStore<SlimPod>>,
    pub(super) kind: Kind,
    pub(super) lookup: Lookup,
    pub(super) lease: Leadership,
}

impl OrphanCollector {
    /// Collects periodically while the process is the leader; never returns.
    pub(super) async fn run(self) -> anyhow::Result<()> {
        loop {
            sleep(INTERVAL).await;
            if !self.lease.is_leader() || !*self.pods.progress.ready().borrow() {
                continue;
            }
            for pod in self.pods.all() {
                if let Some((employer, change)) = orphaned(&pod, self.kind.name(), &self.lookup) {
                    self.release(&pod, &employer, &change).await;
                }
            }
        }
    }

    /// Releases a Pod, if a read from the API server confirms that the employer does not exist or
    /// is not under control.
    async fn release(&self, pod: &SlimPod, employer: &str, change: &PodChange) {
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let all: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &namespace, &self.kind.api);
        let Ok(found) = all.get_opt(employer).await else { return };
        if found.is_some_and(|found| self.kind.slim(found).is_managed_or_releasing()) {
            return;
        }
        match self.applier.apply(&render::pod(&namespace, change, clock::now())).await {
            Ok(Outcome::Done(_)) => {
                let message = format!(
                    "removed protection finalizer: {} {employer} no longer exists or is no longer \
                     under control",
                    self.kind.name()
                );
                let note = Note { warning: true, reason: "EmployerNotFound", message };
                self.events.publish(&pod.object_ref(&()), &note).await;
            }
            // The next collection tries again.
            Ok(other) => tracing::debug!(?other, pod = change.name, "Orphaned Pod not released"),
            Err(error) => {
                tracing::warn!(%error, pod = change.name, "Cannot release orphaned Pod");
            }
        }
    }
}

/// Returns the first employer of a kind that the Pod's available conditions name and that is no
/// employer any more, with the change that releases the Pod.
fn orphaned(
    pod: &SlimPod,
    kind: &str,
    lookup: impl Fn(&str, &str) -> EmployerLookup,
) -> Option<(String, PodChange)> {
    let member = pod.view(false, "");
    let namespace = pod.metadata.namespace.as_deref()?;
    let expected = member.expected_finalizers.as_ref().ok()?;
    expected.keys().find_map(|key| {
        let (of_kind, rest) = key.split_once('/')?;
        let (of, name) = rest.split_once('/')?;
        if of_kind != kind || of != namespace {
            return None;
        }
        let found = lookup(namespace, name);
        let finalizer = lifecycle_finalizer(kind, namespace, name);
        let has_finalizer = member.finalizers.contains(&finalizer);
        // lifecycle-operator removes entries of deleted Services without a finalizer, but not those
        // of other kinds.
        let by_lifecycle =
            !has_finalizer && kind == consist::SERVICE && found == EmployerLookup::NotFound;
        if found == EmployerLookup::Active || by_lifecycle {
            return None;
        }
        let mut left = expected.clone();
        left.remove(key);
        let text =
            serde_json::to_string(&AvailableConditions { expected_finalizers: left }).ok()?;
        let others = member.finalizers.iter().filter(|f| **f != finalizer).cloned().collect();
        let change = PodChange {
            name: member.name.clone(),
            uid: member.uid.clone(),
            resource_version: member.resource_version.clone(),
            has_annotations: member.has_annotations,
            finalizers: has_finalizer.then(|| (member.finalizers.clone(), others)),
            releases: has_finalizer,
            available_conditions: Some((member.available_conditions.clone(), text)),
        };
        Some((name.to_owned(), change))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use podops_api::well_known;
    use serde_json::json;

    #[test]
    fn only_pods_of_a_missing_or_unmanaged_service_are_released() {
        let ours = lifecycle_finalizer("Service", "ns", "web");
        let pod = |finalizer: &str| -> SlimPod {
            let entries = [("Service/ns/web".to_owned(), ours.clone())];
            let content = AvailableConditions { expected_finalizers: entries.into() };
            let text = serde_json::to_string(&content).unwrap();
            serde_json::from_value(json!({ "metadata": {
                "name": "a", "namespace": "ns", "uid": "1", "resourceVersion": "7",
                "finalizers": [finalizer, "other"],
                "annotations": { well_known::AVAILABLE_CONDITIONS: text },
            } }))
            .unwrap()
        };
        let not_found = |_: &str, _: &str| EmployerLookup::NotFound;
        let (service, change) = orphaned(&pod(&ours), "Service", not_found).unwrap();
        assert_eq!(
            (service.as_str(), change.finalizers.unwrap().1),
            ("web", vec!["other".to_owned()])
        );
        assert!(orphaned(&pod(&ours), "Service", |_, _| EmployerLookup::Active).is_none());
        assert!(orphaned(&pod(&ours), "Gateway", not_found).is_none());
        assert!(orphaned(&pod("foreign"), "Service", not_found).is_none());
        // A Service that lost its label and our finalizer in one write has not released its Pods.
        for finalizer in [&ours, "foreign"] {
            assert!(
                orphaned(&pod(finalizer), "Service", |_, _| EmployerLookup::Unmanaged).is_some()
            );
        }
    }

    /// Kuperator's known defect W19 (docs/KUPERATOR.md#known-defects).
    #[test]
    fn expected_finalizers_of_other_kinds_go_with_their_employer() {
        let entries =
            r#"{"expectedFinalizers":{"Gateway/ns/web":"prot/1","Service/ns/web":"prot/2"}}"#;
        let pod: SlimPod = serde_json::from_value(json!({ "metadata": {
            "name": "a", "namespace": "ns", "uid": "1", "resourceVersion": "7",
            "annotations": { well_known::AVAILABLE_CONDITIONS: entries },
        } }))
        .unwrap();
        let (gateway, change) = orphaned(&pod, "Gateway", |_, _| EmployerLookup::NotFound).unwrap();
        assert_eq!((gateway.as_str(), change.finalizers), ("web", None));
        let left = change.available_conditions.unwrap().1;
        assert!(left.contains("Service/ns/web") && !left.contains("Gateway"), "{left}");
        assert!(orphaned(&pod, "Gateway", |_, _| EmployerLookup::Active).is_none());
    }
}
