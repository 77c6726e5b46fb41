//! Bulk changes of a CollaSet and their cost, shared by tests and the benchmark.

use std::{collections::BTreeMap, time::Duration};

use kube::ResourceExt as _;
use podops_api::well_known;
use serde_json::{Value, json};

use crate::{cluster::TestCluster, measure::Cost};

/// Timeout of one scenario.
const SCENARIO_TIMEOUT: Duration = Duration::from_secs(900);

/// A CollaSet to change.
pub struct Scenario<'a> {
    /// Cluster with the CollaSet.
    pub cluster: &'a TestCluster,
    /// Name of the CollaSet.
    pub set: &'a str,
    /// Number of its Pods.
    pub pods: usize,
}

impl Scenario<'_> {
    /// Creates the CollaSet.
    ///
    /// # Errors
    ///
    /// For this and every other scenario: if a request fails or the rollout times out.
    pub async fn create(&self) -> anyhow::Result<Cost> {
        Cost::of(self.cluster, self.pods, async {
            self.cluster.create(self.set, self.pods, "nginx:0").await?;
            self.wait_until_rolled_out(self.pods).await
        })
        .await
    }

    /// Updates all Pods in place to another image.
    pub async fn update_in_place(&self, image: &str) -> anyhow::Result<Cost> {
        self.update("InPlaceIfPossible", image).await
    }

    /// Recreates all Pods with another image.
    pub async fn recreate(&self, image: &str) -> anyhow::Result<Cost> {
        self.update("Recreate", image).await
    }

    /// Replaces all Pods by Pods with another image.
    pub async fn replace(&self, image: &str) -> anyhow::Result<Cost> {
        self.update("Replace", image).await
    }

    async fn update(&self, policy: &str, image: &str) -> anyhow::Result<Cost> {
        Cost::of(self.cluster, self.pods, async {
            let containers = json!([{ "name": "web", "image": image }]);
            let change = json!({
                "updateStrategy": { "podUpgradePolicy": policy },
                "template": { "spec": { "containers": containers } },
            });
            self.change(change).await
        })
        .await
    }

    /// Changes an annotation of all Pods; also returns the number of Pods that left service during
    /// the update.
    pub async fn annotate(&self, value: &str) -> anyhow::Result<(Cost, usize)> {
        let before = self.available_since().await?;
        let cost = Cost::of(self.cluster, self.pods, async {
            let metadata = json!({ "annotations": { "example.com/note": value } });
            self.change(json!({ "template": { "metadata": metadata } })).await
        })
        .await?;
        let after = self.available_since().await?;
        let lost = before.iter().filter(|(pod, since)| after.get(*pod) != Some(since)).count();
        Ok((cost, lost))
    }

    /// Annotates all Pods as another client; the operators have nothing to do.
    pub async fn annotate_from_another_client(&self) -> anyhow::Result<Cost> {
        Cost::of(self.cluster, self.pods, async {
            for pod in self.cluster.pods_of(self.set).await? {
                let annotations = json!({ "annotations": { "example.com/by": "another-client" } });
                self.cluster.patch_pod_metadata(&pod.name_any(), annotations).await?;
            }
            tokio::time::sleep(Duration::from_secs(5)).await;
            Ok(())
        })
        .await
    }

    /// Scales the CollaSet in to `replicas`; the cost is per deleted Pod.
    pub async fn scale_in(&self, replicas: usize) -> anyhow::Result<Cost> {
        Cost::of(self.cluster, self.pods - replicas, async {
            self.cluster.patch(self.set, json!({ "replicas": replicas })).await?;
            self.wait_until_rolled_out(replicas).await
        })
        .await
    }

    async fn available_since(&self) -> anyhow::Result<BTreeMap<String, String>> {
        let pods = self.cluster.pods_of(self.set).await?;
        let since = pods.iter().filter_map(|pod| {
            Some((pod.name_any(), pod.labels().get(well_known::SERVICE_AVAILABLE)?.clone()))
        });
        Ok(since.collect())
    }

    async fn change(&self, spec: Value) -> anyhow::Result<()> {
        self.cluster.patch(self.set, spec).await?;
        self.wait_until_rolled_out(self.pods).await
    }

    async fn wait_until_rolled_out(&self, pods: usize) -> anyhow::Result<()> {
        self.cluster.wait_until_rolled_out(self.set, i32::try_from(pods)?, SCENARIO_TIMEOUT).await
    }
}
