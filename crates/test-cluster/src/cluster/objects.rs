//! Objects of a test cluster, created and changed as by users.
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    core::NamespaceResourceScope,
};
use podops_api::{
    collaset::CollaSet, consist::CLEAN_FINALIZER, transition_rule::PodTransitionRule, well_known,
};
use serde_json::{Value, json};

use super::{TIMEOUT, TestCluster, eventually};

impl TestCluster {
    /// API of a namespaced kind in the test namespace.
    #[must_use]
    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.plane.admin.clone(), &self.namespace)
    }

    /// API of CollaSets.
    #[must_use]
    pub fn sets(&self) -> Api<CollaSet> {
        self.api()
    }

    /// API of PodTransitionRules.
    #[must_use]
    pub fn rules(&self) -> Api<PodTransitionRule> {
        self.api()
    }

    /// API of Pods.
    #[must_use]
    pub fn pods(&self) -> Api<Pod> {
        self.api()
    }

    /// Lists the Pods with the label `app=<set>`.
    ///
    /// # Errors
    ///
    /// If the list fails.
    pub async fn pods_of(&self, set: &str) -> anyhow::Result<Vec<Pod>> {
        Ok(self.pods().list(&ListParams::default().labels(&format!("app={set}"))).await?.items)
    }

    /// Creates a CollaSet whose Pods are labelled `app=<name>`.
    ///
    /// # Errors
    ///
    /// If the API server rejects it.
    pub async fn create(&self, name: &str, replicas: usize, image: &str) -> anyhow::Result<()> {
        self.create_with(name, replicas, image, &json!({})).await
    }

    /// Creates a CollaSet; the fields of `overrides` replace those of its spec.
    ///
    /// # Errors
    ///
    /// If the API server rejects it.
    pub async fn create_with(
        &self,
        name: &str,
        replicas: usize,
        image: &str,
        overrides: &Value,
    ) -> anyhow::Result<()> {
        let mut spec = json!({
            "replicas": replicas,
            "selector": { "matchLabels": { "app": name } },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": { "terminationGracePeriodSeconds": 0, "containers": [{ "name": "web", "image": image }] },
            },
        });
        for (key, value) in overrides.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        let set = serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec }))?;
        self.sets().create(&PostParams::default(), &set).await?;
        Ok(())
    }

    /// Creates a Service managed by consist-operator, and waits for its finalizer: from then on the
    /// operator protects the Service's Pods.
    ///
    /// # Errors
    ///
    /// If the API server rejects it or the wait times out.
    pub async fn create_managed_service(
        &self,
        name: &str,
        selector: Value,
        annotations: &Value,
    ) -> anyhow::Result<()> {
        let labels = json!({ well_known::CONTROL: well_known::CONTROL_ON });
        let service = serde_json::from_value(json!({
            "metadata": { "name": name, "labels": labels, "annotations": annotations },
            "spec": { "selector": selector, "ports": [{ "port": 80 }] },
        }))?;
        let services: Api<Service> = self.api();
        services.create(&PostParams::default(), &service).await?;
        let has_finalizer = async || {
            let finalizers = services.get(name).await?.metadata.finalizers.unwrap_or_default();
            Ok(finalizers.iter().any(|finalizer| finalizer == CLEAN_FINALIZER))
        };
        let waited = eventually(TIMEOUT, has_finalizer).await;
        waited.with_context(|| format!("waiting for the finalizer of Service {name}"))
    }

    /// Creates a PodTransitionRule, and waits until its status is current.
    ///
    /// # Errors
    ///
    /// If the API server rejects it or the wait times out.
    pub async fn create_rule(
        &self,
        name: &str,
        selector: Value,
        rules: Value,
    ) -> anyhow::Result<()> {
        let spec = json!({ "selector": selector, "rules": rules });
        let rule = serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec }))?;
        self.rules().create(&PostParams::default(), &rule).await?;
        self.wait_for_rule(name, |_| true).await
    }

    /// Creates a CollaSet as [`Self::create_with`] does, and waits until all its Pods are
    /// available.
    ///
    /// # Errors
    ///
    /// If the API server rejects it or the wait times out.
    pub async fn create_and_wait(
        &self,
        name: &str,
        replicas: i32,
        overrides: &Value,
    ) -> anyhow::Result<()> {
        self.create_with(name, usize::try_from(replicas)?, "nginx:1", overrides).await?;
        self.wait_for_replicas(name, [replicas; 4]).await
    }

    /// Applies a merge patch to a CollaSet's spec.
    ///
    /// # Errors
    ///
    /// If the API server rejects it.
    pub async fn patch(&self, name: &str, spec: Value) -> anyhow::Result<()> {
        self.sets()
            .patch(name, &PatchParams::default(), &Patch::Merge(json!({ "spec": spec })))
            .await?;
        Ok(())
    }

    /// Sets the image in a CollaSet's template.
    ///
    /// # Errors
    ///
    /// If the API server rejects it.
    pub async fn set_image(&self, name: &str, image: &str) -> anyhow::Result<()> {
        let containers = json!([{ "name": "web", "image": image }]);
        self.patch(name, json!({ "template": { "spec": { "containers": containers } } })).await
    }

    /// Applies a merge patch to a Pod's metadata.
    ///
    /// # Errors
    ///
    /// If the API server rejects it.
    pub async fn patch_pod_metadata(&self, name: &str, metadata: Value) -> anyhow::Result<()> {
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        self.pods().patch(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Deletes a Pod of a CollaSet with graceful deletion, which rejects the request and continues
    /// later, and waits until the CollaSet has this number of Pods without it.
    ///
    /// # Errors
    ///
    /// If the request is not rejected by the lifecycle, or the Pod is not replaced `within` this
    /// time.
    pub async fn recreate_gracefully(
        &self,
        set: &str,
        pods: usize,
        within: Duration,
    ) -> anyhow::Result<()> {
        let pod = self.pods_of(set).await?.into_iter().next().context("no Pod to delete")?;
        let deleted = self.pods().delete(&pod.name_any(), &DeleteParams::default()).await;
        let rejection = deleted.err().context("the Pod was deleted at once")?.to_string();
        anyhow::ensure!(rejection.contains("PodOpsLifecycle"), "{rejection}");
        let recreated = async || {
            let now = self.pods_of(set).await?;
            Ok(now.len() == pods && now.iter().all(|other| other.uid() != pod.uid()))
        };
        eventually(within, recreated).await.context("waiting until the Pod is replaced")
    }
}
