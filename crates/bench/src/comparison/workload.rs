//! The workloads that are compared.

use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams},
};
use podops_test_cluster::cluster::TestCluster;
use serde_json::{Value, json};

/// Number of Pods.
pub(super) const PODS: usize = 10;
/// Number of Pods that an update may make unavailable.
const MAX_UNAVAILABLE: usize = 3;
/// Time that a container still runs before it is stopped, in seconds.
const SLEEP: u64 = 5;

/// Compared workloads, and the step before one of their Pods stops.
pub(super) const ALL: [(Workload, Drain); 8] = [
    (Workload::Deployment, Drain::Nothing),
    (Workload::Deployment, Drain::Sleep),
    (Workload::Rollout, Drain::Nothing),
    (Workload::Rollout, Drain::Sleep),
    (Workload::CloneSet, Drain::Nothing),
    (Workload::CloneSet, Drain::Sleep),
    (Workload::CollaSet, Drain::Nothing),
    (Workload::CollaSet, Drain::Acknowledged),
];

/// Kind of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Workload {
    Deployment,
    /// Of Argo Rollouts.
    Rollout,
    /// Of OpenKruise.
    CloneSet,
    CollaSet,
}

/// Step before a Pod stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drain {
    /// The Pod becomes unready.
    Nothing,
    /// Its container waits.
    Sleep,
    /// The load balancer reports that it has no traffic.
    Acknowledged,
}

impl Drain {
    /// Name on the page.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Sleep => "sleep",
            Self::Acknowledged => "acknowledged",
        }
    }
}

impl Workload {
    /// Name on the page.
    pub(super) fn title(self) -> String {
        let version = match self {
            Self::Rollout => super::others::ARGO_ROLLOUTS,
            Self::CloneSet => super::others::OPEN_KRUISE,
            Self::Deployment => return "Deployment".to_owned(),
            Self::CollaSet => return "CollaSet of Podops".to_owned(),
        };
        format!("{} of {}", self.kind(), version.name_and_version())
    }

    const fn kind(self) -> &'static str {
        match self {
            Self::Deployment => "Deployment",
            Self::Rollout => "Rollout",
            Self::CloneSet => "CloneSet",
            Self::CollaSet => "CollaSet",
        }
    }

    const fn group_and_version(self) -> (&'static str, &'static str) {
        match self {
            Self::Deployment => ("apps", "v1"),
            Self::Rollout => ("argoproj.io", "v1alpha1"),
            Self::CloneSet => ("apps.kruise.io", "v1alpha1"),
            Self::CollaSet => ("apps.kusionstack.io", "v1alpha1"),
        }
    }

    /// Manifest of the object `web` with [`PODS`] Pods of an image.
    pub(super) fn manifest(self, drain: Drain, image: &str) -> Value {
        let mut container = json!({ "name": "web", "image": image });
        if drain == Drain::Sleep {
            container["lifecycle"] = json!({ "preStop": { "sleep": { "seconds": SLEEP } } });
        }
        let (group, version) = self.group_and_version();
        let (strategy_field, strategy) = self.strategy();
        json!({
            "apiVersion": format!("{group}/{version}"),
            "kind": self.kind(),
            "metadata": { "name": "web" },
            "spec": {
                "replicas": PODS,
                "selector": { "matchLabels": { "app": "web" } },
                "template": {
                    "metadata": { "labels": { "app": "web" } },
                    "spec": { "terminationGracePeriodSeconds": 30, "containers": [container] },
                },
                strategy_field: strategy,
            },
        })
    }

    /// The field for how Pods are updated, and its value.
    fn strategy(self) -> (&'static str, Value) {
        let rolling = json!({ "maxUnavailable": MAX_UNAVAILABLE });
        match self {
            Self::Deployment => ("strategy", json!({ "rollingUpdate": rolling })),
            Self::Rollout => ("strategy", json!({ "canary": rolling })),
            Self::CloneSet => {
                let strategy =
                    json!({ "type": "InPlaceIfPossible", "maxUnavailable": MAX_UNAVAILABLE });
                ("updateStrategy", strategy)
            }
            Self::CollaSet => {
                let policy = "InPlaceIfPossible";
                let strategy = json!({ "podUpgradePolicy": policy, "rollingUpdate": rolling });
                ("updateStrategy", strategy)
            }
        }
    }

    /// Sets the image of the Pods.
    pub(super) async fn set_image(self, cluster: &TestCluster, image: &str) -> anyhow::Result<()> {
        self.replace(cluster, "/spec/template/spec/containers/0/image", json!(image)).await
    }

    /// Sets the number of Pods.
    pub(super) async fn scale(self, cluster: &TestCluster, pods: usize) -> anyhow::Result<()> {
        self.replace(cluster, "/spec/replicas", json!(pods)).await
    }

    async fn replace(self, cluster: &TestCluster, path: &str, value: Value) -> anyhow::Result<()> {
        let (group, version) = self.group_and_version();
        let kind = GroupVersionKind::gvk(group, version, self.kind());
        let client = cluster.plane.admin.clone();
        let resource = ApiResource::from_gvk(&kind);
        let api: Api<DynamicObject> = Api::namespaced_with(client, &cluster.namespace, &resource);
        let operations = json!([{ "op": "replace", "path": path, "value": value }]);
        let change = Patch::<()>::Json(serde_json::from_value(operations)?);
        api.patch("web", &PatchParams::default(), &change).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_workloads_that_sleep_have_a_hook() {
        for (workload, drain) in ALL {
            let manifest = workload.manifest(drain, "web:1");
            let template = &manifest["spec"]["template"]["spec"]["containers"][0];
            assert_eq!(template["lifecycle"].is_object(), drain == Drain::Sleep, "{workload:?}");
        }
    }
}
