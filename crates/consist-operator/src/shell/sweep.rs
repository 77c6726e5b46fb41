//! Lets go of Pods whose Service is gone without having let go of them: somebody took its finalizer off.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Service;
use kube::{Api, Client, Resource as _};
use podops_api::consist::{self, lifecycle_finalizer};
use podops_runtime::{
    effect::Outcome,
    shell::{
        apply::Applier,
        clock,
        events::{Events, Note},
        lease::Held,
        watch::Mirror,
    },
};
use tokio::time::sleep;

use super::observe::SlimPod;
use crate::{plan::PodChange, render};

/// How often is looked.
const SWEEP: Duration = Duration::from_secs(30);

/// Whether a Service of this namespace and name is known.
pub(super) type Exists = Box<dyn Fn(&str, &str) -> bool + Send + Sync>;

/// What sweeping takes.
pub(super) struct Sweeper {
    pub(super) client: Client,
    pub(super) applier: Applier,
    pub(super) events: Events,
    pub(super) pods: Arc<Mirror<SlimPod>>,
    pub(super) exists: Exists,
    pub(super) lease: Held,
}

impl Sweeper {
    /// Sweeps for as long as it is polled.
    pub(super) async fn run(self) -> anyhow::Result<()> {
        loop {
            sleep(SWEEP).await;
            if !self.lease.is_held() || !*self.pods.progress.ready().borrow() {
                continue;
            }
            for pod in self.pods.all() {
                if let Some((service, change)) = orphaned(&pod, &self.exists) {
                    self.let_go(&pod, &service, &change).await;
                }
            }
        }
    }

    /// Lets go of a Pod, if the API server too knows no such Service.
    async fn let_go(&self, pod: &SlimPod, service: &str, change: &PodChange) {
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let services: Api<Service> = Api::namespaced(self.client.clone(), &namespace);
        if !matches!(services.get_opt(service).await, Ok(None)) {
            return;
        }
        match self.applier.apply(&render::pod(&namespace, change, clock::now())).await {
            Ok(Outcome::Done(_)) => {
                let message = format!("let go of, as its Service {service} is gone");
                let note = Note { warning: true, reason: "EmployerGone", message };
                self.events.publish(&pod.object_ref(&()), &note).await;
            }
            // It is found again.
            Ok(other) => tracing::debug!(?other, pod = change.name, "Letting go"),
            Err(error) => tracing::warn!(%error, pod = change.name, "Letting go"),
        }
    }
}

/// The Service that a Pod is still held by and that is not known, and what lets go of the Pod.
fn orphaned(pod: &SlimPod, exists: impl Fn(&str, &str) -> bool) -> Option<(String, PodChange)> {
    let member = pod.view(false);
    let namespace = pod.metadata.namespace.as_deref()?;
    let expected = member.expected.as_ref().ok()?;
    let mut services = expected.keys().filter_map(|key| {
        let (kind, rest) = key.split_once('/')?;
        let (of, name) = rest.split_once('/')?;
        (kind == consist::SERVICE && of == namespace).then_some(name)
    });
    services.find_map(|name| {
        let finalizer = lifecycle_finalizer(consist::SERVICE, namespace, name);
        if !member.finalizers.contains(&finalizer) || exists(namespace, name) {
            return None;
        }
        let others = member.finalizers.iter().filter(|f| **f != finalizer).cloned().collect();
        // Its entry is struck off by the lifecycle.
        let change = PodChange {
            name: member.name.clone(),
            uid: member.uid.clone(),
            version: member.version.clone(),
            annotated: member.annotated,
            finalizers: Some((member.finalizers.clone(), others)),
            lets_go: true,
            conditions: None,
        };
        Some((name.to_owned(), change))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use podops_api::{availability::AvailableConditions, marks};
    use serde_json::json;

    #[test]
    fn only_a_pod_of_a_service_that_is_gone_is_let_go() {
        let held = lifecycle_finalizer(consist::SERVICE, "ns", "web");
        let pod = |finalizer: &str| -> SlimPod {
            let entries = [("Service/ns/web".to_owned(), held.clone())];
            let content = AvailableConditions { expected_finalizers: entries.into() };
            let text = serde_json::to_string(&content).unwrap();
            serde_json::from_value(json!({ "metadata": {
                "name": "a", "namespace": "ns", "uid": "1", "resourceVersion": "7",
                "finalizers": [finalizer, "other"], "annotations": { marks::AVAILABLE_CONDITIONS: text },
            } }))
            .unwrap()
        };
        let (service, change) = orphaned(&pod(&held), |_, _| false).unwrap();
        assert_eq!(
            (service.as_str(), change.finalizers.unwrap().1),
            ("web", vec!["other".to_owned()])
        );
        assert!(orphaned(&pod(&held), |_, name| name == "web").is_none());
        assert!(orphaned(&pod("somebody's"), |_, _| false).is_none());
    }
}
