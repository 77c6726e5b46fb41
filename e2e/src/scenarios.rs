//! What is done to a set in bulk, and what that cost: the same for tests and for the benchmark.

use std::{collections::BTreeMap, time::Duration};

use kube::ResourceExt as _;
use podops_api::well_known;
use serde_json::{Value, json};

use crate::{cluster::TestCluster, measure::Cost};

/// How long a scenario may take before it counts as stuck.
const STUCK: Duration = Duration::from_secs(900);

/// A set that things are done to.
pub struct Scenario<'a> {
    /// Where it is.
    pub cluster: &'a TestCluster,
    /// Its name.
    pub set: &'a str,
    /// How many Pods it has.
    pub pods: usize,
}

impl Scenario<'_> {
    /// Makes it.
    ///
    /// # Errors
    ///
    /// If it gets stuck; so for the other scenarios.
    pub async fn create(&self) -> anyhow::Result<Cost> {
        Cost::of(self.cluster, self.pods, async {
            self.cluster.create(self.set, self.pods, "nginx:0").await?;
            self.settle(self.pods).await
        })
        .await
    }

    /// Gives all Pods another image in place.
    pub async fn update_in_place(&self, image: &str) -> anyhow::Result<Cost> {
        self.update("InPlaceIfPossible", image).await
    }

    /// Deletes all Pods and makes others of another image.
    pub async fn recreate(&self, image: &str) -> anyhow::Result<Cost> {
        self.update("Recreate", image).await
    }

    /// Replaces all Pods by others of another image.
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

    /// Gives all Pods another annotation; tells besides how many lost their traffic meanwhile.
    pub async fn annotate(&self, value: &str) -> anyhow::Result<(Cost, usize)> {
        let before = self.serving_since().await?;
        let cost = Cost::of(self.cluster, self.pods, async {
            let metadata = json!({ "annotations": { "example.com/note": value } });
            self.change(json!({ "template": { "metadata": metadata } })).await
        })
        .await?;
        let after = self.serving_since().await?;
        let lost = before.iter().filter(|(pod, since)| after.get(*pod) != Some(since)).count();
        Ok((cost, lost))
    }

    /// Lets somebody else write to all Pods; the set has nothing to do with it.
    pub async fn annotate_from_another_client(&self) -> anyhow::Result<Cost> {
        Cost::of(self.cluster, self.pods, async {
            for pod in self.cluster.pods_of(self.set).await? {
                let annotations = json!({ "annotations": { "example.com/by": "somebody" } });
                self.cluster.patch_pod_metadata(&pod.name_any(), annotations).await?;
            }
            tokio::time::sleep(Duration::from_secs(5)).await;
            Ok(())
        })
        .await
    }

    /// Takes all Pods but `left` out; the cost is of each that went.
    pub async fn scale_in(&self, left: usize) -> anyhow::Result<Cost> {
        Cost::of(self.cluster, self.pods - left, async {
            self.cluster.patch(self.set, json!({ "replicas": left })).await?;
            self.settle(left).await
        })
        .await
    }

    async fn serving_since(&self) -> anyhow::Result<BTreeMap<String, String>> {
        let pods = self.cluster.pods_of(self.set).await?;
        let since = pods.iter().filter_map(|pod| {
            Some((pod.name_any(), pod.labels().get(well_known::SERVICE_AVAILABLE)?.clone()))
        });
        Ok(since.collect())
    }

    async fn change(&self, spec: Value) -> anyhow::Result<()> {
        self.cluster.patch(self.set, spec).await?;
        self.settle(self.pods).await
    }

    async fn settle(&self, pods: usize) -> anyhow::Result<()> {
        self.cluster.wait_until_rolled_out(self.set, i32::try_from(pods)?, STUCK).await
    }
}
