//! Objects of a CollaSet as Kuperator 0.7 leaves them.

use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::{apps::v1::ControllerRevision, core::v1::PersistentVolumeClaim};
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
};
use podops_api::{resource_context::ResourceContext, well_known};
use serde_json::{Value, json};

use crate::cluster::{TestCluster, eventually, is_true};

const TIMEOUT: Duration = Duration::from_secs(30);
/// Time of a label, in nanoseconds since the Unix epoch.
pub const STAMP: &str = "1700000000000000001";

/// CollaSet that Kuperator has created and reconciled.
pub struct KuperatorSet<'a> {
    cluster: &'a TestCluster,
    name: String,
    uid: String,
}

/// Pod of a [`KuperatorSet`].
#[derive(Clone, Copy, Debug)]
pub struct KuperatorPod<'a> {
    /// Instance ID.
    pub id: usize,
    /// Name of its ControllerRevision.
    pub revision: &'a str,
    /// Image of its container.
    pub image: &'a str,
    /// True if the readiness gate is open.
    pub is_in_service: bool,
}

/// Pod template with one container, as Kuperator's defaulting webhook stores it.
#[must_use]
pub fn template(set: &str, image: &str) -> Value {
    json!({
        "metadata": { "creationTimestamp": null, "labels": { "app": set } },
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{ "name": "web", "image": image, "resources": {} }],
        },
    })
}

impl<'a> KuperatorSet<'a> {
    /// Creates a CollaSet of Pods with this image; `spec` is merged over its spec.
    ///
    /// # Errors
    ///
    /// If the API server rejects it.
    pub async fn create(
        cluster: &'a TestCluster,
        name: &str,
        replicas: usize,
        image: &str,
        spec: Value,
    ) -> anyhow::Result<Self> {
        let mut set = json!({
            "metadata": { "name": name, "finalizers": [well_known::PRE_RECLAIM] },
            "spec": {
                "replicas": replicas, "selector": { "matchLabels": { "app": name } },
                "template": template(name, image),
                "updateStrategy": { "podUpgradePolicy": "InPlaceIfPossible", "rollingUpdate": { "byPartition": {} } },
                "scaleStrategy": {},
            },
        });
        for (field, value) in spec.as_object().into_iter().flatten() {
            set["spec"][field] = value.clone();
        }
        let set = serde_json::from_value(set)?;
        let set = cluster.sets().create(&PostParams::default(), &set).await?;
        Ok(Self { cluster, name: name.to_owned(), uid: set.uid().context("uid")? })
    }

    /// Owner reference to the CollaSet.
    #[must_use]
    pub fn owner(&self) -> Value {
        json!([{ "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet", "name": self.name,
            "uid": self.uid, "controller": true, "blockOwnerDeletion": true }])
    }

    /// Creates the ControllerRevision `<set>-<hash>` of this data.
    ///
    /// # Errors
    ///
    /// If the API server rejects it.
    pub async fn create_revision(
        &self,
        hash: &str,
        number: i64,
        spec: Value,
    ) -> anyhow::Result<()> {
        let labels = json!({ "app": self.name, well_known::REVISION_HASH: hash, well_known::REVISION_COLLISION: "0" });
        let revision = json!({
            "metadata": { "name": format!("{}-{hash}", self.name), "ownerReferences": self.owner(), "labels": labels },
            "data": { "spec": spec },
            "revision": number,
        });
        let revisions: Api<ControllerRevision> = self.cluster.api();
        revisions.create(&PostParams::default(), &serde_json::from_value(revision)?).await?;
        Ok(())
    }

    /// Creates the ControllerRevision of a template with this image.
    ///
    /// # Errors
    ///
    /// If the API server rejects it.
    pub async fn create_image_revision(
        &self,
        hash: &str,
        number: i64,
        image: &str,
    ) -> anyhow::Result<()> {
        let mut data = template(&self.name, image);
        data["$patch"] = json!("replace");
        self.create_revision(hash, number, json!({ "template": data })).await
    }

    /// Creates the ResourceContext of these Pods.
    ///
    /// # Errors
    ///
    /// If the API server rejects it.
    pub async fn create_context(&self, pods: &[KuperatorPod<'_>]) -> anyhow::Result<()> {
        let entry = |pod: &KuperatorPod<'_>| json!({ "id": pod.id, "data": { "Owner": self.name, "Revision": pod.revision } });
        let entries: Vec<Value> = pods.iter().map(entry).collect();
        let context = json!({ "metadata": { "name": self.name }, "spec": { "contexts": entries } });
        let api: Api<ResourceContext> = self.cluster.api();
        api.create(&PostParams::default(), &serde_json::from_value(context)?).await?;
        Ok(())
    }

    /// Creates a Pod with a random name suffix, and waits until its containers run. `edit` changes
    /// the Pod first.
    ///
    /// # Errors
    ///
    /// If the API server rejects it, or it does not start.
    pub async fn create_pod(
        &self,
        pod: KuperatorPod<'_>,
        edit: impl FnOnce(&mut Value),
    ) -> anyhow::Result<String> {
        let name = format!("{}-{}", self.name, suffix(pod.id));
        let mut labels = json!({
            "app": self.name, well_known::CONTROL: "true", well_known::REVISION: pod.revision,
        });
        if pod.is_in_service {
            labels[well_known::SERVICE_AVAILABLE] = json!("1700000000000000000");
        }
        labels[well_known::INSTANCE_ID] = json!(pod.id.to_string());
        let mut spec = template(&self.name, pod.image)["spec"].clone();
        spec["readinessGates"] = json!([{ "conditionType": well_known::SERVICE_READY }]);
        let generate_name = format!("{}-", self.name);
        let mut object = json!({
            "metadata": { "name": name, "generateName": generate_name, "labels": labels,
                "annotations": {}, "ownerReferences": self.owner() },
            "spec": spec,
        });
        edit(&mut object);
        let pods = self.cluster.pods();
        pods.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        let gate = if pod.is_in_service { "True" } else { "False" };
        let gate = json!([{ "type": well_known::SERVICE_READY, "status": gate, "reason": "" }]);
        let status = Patch::Strategic(json!({ "status": { "conditions": gate } }));
        pods.patch_status(&name, &PatchParams::default(), &status).await?;
        let condition = if pod.is_in_service { "Ready" } else { "ContainersReady" };
        let is_running = async || Ok(is_true(&pods.get(&name).await?, condition));
        eventually(TIMEOUT, is_running).await?;
        Ok(name)
    }

    /// Creates a PersistentVolumeClaim with these labels.
    ///
    /// # Errors
    ///
    /// If the API server rejects it.
    pub async fn create_claim(&self, name: &str, labels: Value) -> anyhow::Result<()> {
        let claim = json!({
            "metadata": { "name": name, "labels": labels, "ownerReferences": self.owner() },
            "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
        });
        let claims: Api<PersistentVolumeClaim> = self.cluster.api();
        claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await?;
        Ok(())
    }

    /// Reports the status of this number of available Pods.
    ///
    /// # Errors
    ///
    /// If the API server rejects it.
    pub async fn report(&self, pods: usize, current: &str, updated: &str) -> anyhow::Result<()> {
        let status = json!({ "status": {
            "observedGeneration": 1, "replicas": pods, "readyReplicas": pods, "availableReplicas": pods,
            "updatedReplicas": pods, "updatedReadyReplicas": pods, "updatedAvailableReplicas": pods,
            "scheduledReplicas": pods, "currentRevision": current, "updatedRevision": updated,
        } });
        let patch = Patch::Merge(status);
        self.cluster.sets().patch_status(&self.name, &PatchParams::default(), &patch).await?;
        Ok(())
    }
}

/// Suffix of a Pod's name, as Kubernetes generates them.
fn suffix(id: usize) -> String {
    const LETTERS: [char; 10] = ['b', 'c', 'd', 'f', 'g', 'h', 'j', 'k', 'l', 'm'];
    format!("k2x{}{}", LETTERS[id / 10 % 10], LETTERS[id % 10])
}
