//! Lets go of Pods whose employer is gone, or none any more, without having let go of them: somebody took
//! its finalizer off.

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

/// How often is looked.
const SWEEP: Duration = Duration::from_secs(30);

/// What is known of whoever a Pod's entry names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EmployerLookup {
    /// It employs, or may.
    Active,
    /// It is there, and no employer.
    Unmanaged,
    /// There is none.
    NotFound,
}

/// What is known of an employer of this namespace and name.
pub(super) type Known = Box<dyn Fn(&str, &str) -> EmployerLookup + Send + Sync>;

/// What sweeping takes.
pub(super) struct OrphanCollector {
    pub(super) client: Client,
    pub(super) applier: Applier,
    pub(super) events: Events,
    pub(super) pods: Arc<IndexedStore<SlimPod>>,
    pub(super) kind: Kind,
    pub(super) known: Known,
    pub(super) lease: Leadership,
}

impl OrphanCollector {
    /// Sweeps for as long as it is polled.
    pub(super) async fn run(self) -> anyhow::Result<()> {
        loop {
            sleep(SWEEP).await;
            if !self.lease.is_leader() || !*self.pods.progress.ready().borrow() {
                continue;
            }
            for pod in self.pods.all() {
                if let Some((employer, change)) = orphaned(&pod, self.kind.name(), &self.known) {
                    self.let_go(&pod, &employer, &change).await;
                }
            }
        }
    }

    /// Lets go of a Pod, if the API server too knows no such employer by now.
    async fn let_go(&self, pod: &SlimPod, employer: &str, change: &PodChange) {
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let all: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &namespace, &self.kind.api);
        let Ok(found) = all.get_opt(employer).await else { return };
        if found.is_some_and(|found| self.kind.slim(found).is_managed_or_releasing()) {
            return;
        }
        match self.applier.apply(&render::pod(&namespace, change, clock::now())).await {
            Ok(Outcome::Done(_)) => {
                let message =
                    format!("let go of, as {} {employer} employs it no more", self.kind.name());
                let note = Note { warning: true, reason: "EmployerNotFound", message };
                self.events.publish(&pod.object_ref(&()), &note).await;
            }
            // It is found again.
            Ok(other) => tracing::debug!(?other, pod = change.name, "Letting go"),
            Err(error) => tracing::warn!(%error, pod = change.name, "Letting go"),
        }
    }
}

/// The employer of a kind that a Pod still has something of and that is none, and what lets go of the Pod.
fn orphaned(
    pod: &SlimPod,
    kind: &str,
    known: impl Fn(&str, &str) -> EmployerLookup,
) -> Option<(String, PodChange)> {
    let member = pod.view(false, "");
    let namespace = pod.metadata.namespace.as_deref()?;
    let expected = member.expected.as_ref().ok()?;
    expected.keys().find_map(|key| {
        let (of_kind, rest) = key.split_once('/')?;
        let (of, name) = rest.split_once('/')?;
        if of_kind != kind || of != namespace {
            return None;
        }
        let standing = known(namespace, name);
        let finalizer = lifecycle_finalizer(kind, namespace, name);
        let held = member.finalizers.contains(&finalizer);
        // What only expects a Service that is gone is the lifecycle's to strike off; it knows no other kind.
        let others = !held && kind == consist::SERVICE && standing == EmployerLookup::NotFound;
        if standing == EmployerLookup::Active || others {
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
            version: member.version.clone(),
            annotated: member.annotated,
            finalizers: held.then(|| (member.finalizers.clone(), others)),
            releases: held,
            conditions: Some((member.conditions.clone(), text)),
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
    fn only_a_pod_of_a_service_that_is_gone_is_let_go() {
        let held = lifecycle_finalizer("Service", "ns", "web");
        let pod = |finalizer: &str| -> SlimPod {
            let entries = [("Service/ns/web".to_owned(), held.clone())];
            let content = AvailableConditions { expected_finalizers: entries.into() };
            let text = serde_json::to_string(&content).unwrap();
            serde_json::from_value(json!({ "metadata": {
                "name": "a", "namespace": "ns", "uid": "1", "resourceVersion": "7",
                "finalizers": [finalizer, "other"], "annotations": { well_known::AVAILABLE_CONDITIONS: text },
            } }))
            .unwrap()
        };
        let gone = |_: &str, _: &str| EmployerLookup::NotFound;
        let (service, change) = orphaned(&pod(&held), "Service", gone).unwrap();
        assert_eq!(
            (service.as_str(), change.finalizers.unwrap().1),
            ("web", vec!["other".to_owned()])
        );
        assert!(orphaned(&pod(&held), "Service", |_, _| EmployerLookup::Active).is_none());
        assert!(orphaned(&pod(&held), "Gateway", gone).is_none());
        assert!(orphaned(&pod("somebody's"), "Service", gone).is_none());
        // One that lost its label and our finalizer in one write never let go of anybody.
        for finalizer in [&held, "somebody's"] {
            assert!(
                orphaned(&pod(finalizer), "Service", |_, _| EmployerLookup::Unmanaged).is_some()
            );
        }
    }

    #[test]
    fn w19_an_entry_of_any_other_kind_goes_with_its_employer() {
        let entries =
            r#"{"expectedFinalizers":{"Gateway/ns/web":"prot/1","Service/ns/web":"prot/2"}}"#;
        let pod: SlimPod = serde_json::from_value(json!({ "metadata": {
            "name": "a", "namespace": "ns", "uid": "1", "resourceVersion": "7",
            "annotations": { well_known::AVAILABLE_CONDITIONS: entries },
        } }))
        .unwrap();
        let (gateway, change) = orphaned(&pod, "Gateway", |_, _| EmployerLookup::NotFound).unwrap();
        assert_eq!((gateway.as_str(), change.finalizers), ("web", None));
        let left = change.conditions.unwrap().1;
        assert!(left.contains("Service/ns/web") && !left.contains("Gateway"), "{left}");
        assert!(orphaned(&pod, "Gateway", |_, _| EmployerLookup::Active).is_none());
    }
}
