//! Two workloads with the same fields: a native one, and a CollaSet.

use std::collections::BTreeSet;

use anyhow::Context as _;
use k8s_openapi::api::{
    core::v1::{PersistentVolumeClaim, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, EvictParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::user::{Desired, Disruption, Native};

/// Progress deadline of Deployments and of the CollaSets that are compared with them, in seconds.
pub(super) const DEADLINE: u64 = 5;

/// Policy whose new Pods are available before the old ones leave, as with `maxUnavailable: 0`.
pub(super) const REPLACE: &str = "Replace";

/// Kind of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Native(Native),
    CollaSet,
}

impl Kind {
    pub(super) fn resource(self) -> ApiResource {
        let (group, version, kind, plural) = match self {
            Self::Native(Native::Deployment) => ("apps", "v1", "Deployment", "deployments"),
            Self::Native(Native::StatefulSet) => ("apps", "v1", "StatefulSet", "statefulsets"),
            Self::CollaSet => ("apps.kusionstack.io", "v1alpha1", "CollaSet", "collasets"),
        };
        let gvk = kube::core::GroupVersionKind::gvk(group, version, kind);
        ApiResource::from_gvk_with_plural(&gvk, plural)
    }
}

/// Fields of the workloads that no action changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub(super) native: Native,
    /// `podUpgradePolicy` of the CollaSet.
    pub(super) policy: &'static str,
    /// Retention of claims when scaled and when deleted.
    pub(super) retention: [&'static str; 2],
    /// True if Pods have a grace period and use it.
    pub(super) terminates_slowly: bool,
    /// True if a PodDisruptionBudget permits one unavailable Pod.
    pub(super) has_budget: bool,
}

/// One of the two workloads of a history.
pub(super) struct Workload {
    pub(super) kind: Kind,
    pub(super) name: String,
    /// Generation after the last write.
    pub(super) generation: i64,
    /// UIDs of the claims when the workload was last settled.
    pub(super) claims: BTreeSet<String>,
    setup: Setup,
    objects: Api<DynamicObject>,
    pods: Api<Pod>,
    claim_objects: Api<PersistentVolumeClaim>,
    budgets: Api<PodDisruptionBudget>,
}

impl Workload {
    pub(super) fn new(
        client: &Client,
        namespace: &str,
        kind: Kind,
        name: String,
        setup: Setup,
    ) -> Self {
        Self {
            objects: Api::namespaced_with(client.clone(), namespace, &kind.resource()),
            pods: Api::namespaced(client.clone(), namespace),
            claim_objects: Api::namespaced(client.clone(), namespace),
            budgets: Api::namespaced(client.clone(), namespace),
            generation: 1,
            claims: BTreeSet::new(),
            kind,
            name,
            setup,
        }
    }

    /// Creates the object, and its PodDisruptionBudget.
    pub(super) async fn create(&self, desired: &Desired) -> anyhow::Result<()> {
        if self.setup.has_budget {
            self.create_budget().await?;
        }
        let spec = merge(self.constant(), self.written(desired));
        let resource = self.kind.resource();
        let object = DynamicObject::new(&self.name, &resource).data(json!({ "spec": spec }));
        self.objects.create(&PostParams::default(), &object).await?;
        Ok(())
    }

    async fn create_budget(&self) -> anyhow::Result<()> {
        let selector = json!({ "matchLabels": { "app": self.name } });
        let budget = serde_json::from_value(json!({
            "metadata": { "name": self.name },
            "spec": { "maxUnavailable": 1, "selector": selector },
        }))?;
        self.budgets.create(&PostParams::default(), &budget).await?;
        Ok(())
    }

    async fn delete_budget(&self) -> anyhow::Result<()> {
        self.budgets.delete(&self.name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Creates the PodDisruptionBudget again, so that its controller computes it again.
    pub(super) async fn renew_budget(&self) -> anyhow::Result<()> {
        self.delete_budget().await?;
        self.create_budget().await
    }

    /// Writes the fields of the user.
    pub(super) async fn write(&mut self, desired: &Desired) -> anyhow::Result<()> {
        let patch = Patch::Merge(json!({ "spec": self.written(desired) }));
        let object = self.objects.patch(&self.name, &PatchParams::default(), &patch).await?;
        self.generation = object.metadata.generation.context("an object without generation")?;
        Ok(())
    }

    /// Writes the number of replicas as an autoscaler does.
    pub(super) async fn scale(&mut self, replicas: usize) -> anyhow::Result<()> {
        let patch = Patch::Merge(json!({ "spec": { "replicas": replicas } }));
        self.objects.patch_scale(&self.name, &PatchParams::default(), &patch).await?;
        let object = self.objects.get_metadata(&self.name).await?;
        self.generation = object.metadata.generation.context("an object without generation")?;
        Ok(())
    }

    /// Deletes the object in the background, as `kubectl delete` does, and its PodDisruptionBudget.
    pub(super) async fn delete(&self) -> anyhow::Result<()> {
        if self.setup.has_budget {
            self.delete_budget().await?;
        }
        self.objects.delete(&self.name, &DeleteParams::background()).await?;
        Ok(())
    }

    /// Changes a Pod.
    pub(super) async fn disrupt(&self, disruption: Disruption, pod: &Pod) -> anyhow::Result<()> {
        let name = pod.name_any();
        let params = PatchParams::default();
        match disruption {
            Disruption::Delete | Disruption::DeleteAll => {
                self.pods.delete(&name, &DeleteParams::default()).await?;
            }
            Disruption::Remove => {
                self.pods.delete(&name, &DeleteParams::default().grace_period(0)).await?;
            }
            Disruption::Evict => {
                self.pods.evict(&name, &EvictParams::default()).await?;
            }
            Disruption::Fail | Disruption::Unready => {
                let unready = json!({ "type": "Ready", "status": "False" });
                let mut status = json!({ "conditions": [unready] });
                if disruption == Disruption::Fail {
                    (status["phase"], status["reason"]) = (json!("Failed"), json!("Evicted"));
                }
                let patch = Patch::Strategic(json!({ "status": status }));
                self.pods.patch_status(&name, &params, &patch).await?;
            }
            Disruption::Release => {
                let labels = json!({ "app": format!("{}-released", self.name) });
                let patch = Patch::Merge(json!({ "metadata": { "labels": labels } }));
                self.pods.patch(&name, &params, &patch).await?;
            }
            Disruption::LoseClaim => {
                let claim = claim_of(pod).context("a Pod without claim")?;
                self.claim_objects.delete(claim, &DeleteParams::default()).await?;
                self.pods.delete(&name, &DeleteParams::default()).await?;
            }
        }
        Ok(())
    }

    /// Fields of the spec that no user changes.
    fn constant(&self) -> Value {
        let mut spec = json!({ "selector": { "matchLabels": { "app": self.name } } });
        let is_stateful = self.setup.native == Native::StatefulSet;
        let [scaled, deleted] = self.setup.retention;
        let retention = json!({ "whenScaled": scaled, "whenDeleted": deleted });
        if is_stateful {
            let resources = json!({ "requests": { "storage": "1Gi" } });
            spec["volumeClaimTemplates"] = json!([{
                "metadata": { "name": "data" },
                "spec": { "accessModes": ["ReadWriteOnce"], "resources": resources },
            }]);
        } else {
            spec["progressDeadlineSeconds"] = json!(DEADLINE);
        }
        match self.kind {
            Kind::Native(Native::Deployment) => {
                let [surge, unavailable] =
                    if self.setup.policy == REPLACE { [1, 0] } else { [0, 1] };
                let rolling = json!({ "maxSurge": surge, "maxUnavailable": unavailable });
                spec["strategy"] = json!({ "type": "RollingUpdate", "rollingUpdate": rolling });
            }
            Kind::Native(Native::StatefulSet) => {
                spec["serviceName"] = json!(self.name);
                spec["podManagementPolicy"] = json!("Parallel");
                spec["persistentVolumeClaimRetentionPolicy"] = retention;
            }
            Kind::CollaSet if is_stateful => {
                let names = json!({ "podNamingSuffixPolicy": "PersistentSequence" });
                spec["namingStrategy"] = names;
                spec["scaleStrategy"] =
                    json!({ "persistentVolumeClaimRetentionPolicy": retention });
            }
            Kind::CollaSet => {}
        }
        spec
    }

    /// Fields of the spec that a user changes.
    fn written(&self, desired: &Desired) -> Value {
        let template = &desired.template;
        let mounts = match self.setup.native {
            Native::Deployment => json!([]),
            Native::StatefulSet => json!([{ "name": "data", "mountPath": "/data" }]),
        };
        let container = json!({
            "name": "web",
            "image": template.image,
            "env": [{ "name": "VARIABLE", "value": template.variable.to_string() }],
            "volumeMounts": mounts,
        });
        let grace = if self.setup.terminates_slowly { 30 } else { 0 };
        let template = json!({
            "metadata": {
                "labels": { "app": self.name, "version": template.label.to_string() },
                "annotations": {
                    "note": template.annotation.to_string(),
                    "kubectl.kubernetes.io/restartedAt": template.restart.to_string(),
                },
            },
            "spec": { "terminationGracePeriodSeconds": grace, "containers": [container] },
        });
        let mut spec = json!({ "replicas": desired.replicas, "template": template });
        let partition = desired.partition;
        match self.kind {
            Kind::Native(Native::Deployment) => spec["paused"] = json!(desired.paused),
            Kind::Native(Native::StatefulSet) => {
                spec["updateStrategy"] = json!({ "rollingUpdate": { "partition": partition } });
            }
            Kind::CollaSet => {
                spec["paused"] = json!(desired.paused);
                let mut rolling = json!({ "byPartition": { "partition": partition } });
                if self.setup.policy == REPLACE {
                    (rolling["maxSurge"], rolling["maxUnavailable"]) = (json!(1), json!(0));
                } else {
                    rolling["maxUnavailable"] = json!(1);
                }
                spec["updateStrategy"] =
                    json!({ "podUpgradePolicy": self.setup.policy, "rollingUpdate": rolling });
            }
        }
        spec
    }
}

/// Name of the claim that a Pod mounts.
pub(super) fn claim_of(pod: &Pod) -> Option<&str> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let mut claims = volumes.filter_map(|volume| volume.persistent_volume_claim.as_ref());
    claims.next().map(|claim| claim.claim_name.as_str())
}

/// Adds the fields of an object to those of another one.
fn merge(mut to: Value, from: Value) -> Value {
    if let (Some(to), Value::Object(from)) = (to.as_object_mut(), from) {
        to.extend(from);
    }
    to
}
