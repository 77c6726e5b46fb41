//! CollaSets of the benchmark.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use kube::{
    ResourceExt as _,
    api::{DeleteParams, ListParams},
};
use podops_test_cluster::cluster::{TestCluster, eventually, is_rolled_out};

/// Number of Pods of the small CollaSet, for cost per Pod.
pub(super) const SMALL: usize = 100;
/// Timeout of each wait.
pub(super) const WAIT_TIMEOUT: Duration = Duration::from_secs(900);

/// Waits until a CollaSet is rolled out, and shows a progress bar.
pub(super) async fn wait_until_rolled_out(
    cluster: &TestCluster,
    name: &str,
    replicas: usize,
) -> anyhow::Result<()> {
    let bar = ProgressBar::new(replicas as u64);
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} Pods {elapsed}")?);
    let all = i32::try_from(replicas)?;
    cluster
        .wait_for_status(name, WAIT_TIMEOUT, |status| {
            bar.set_position(u64::try_from(status.updated_available_replicas).unwrap_or_default());
            is_rolled_out(status, all)
        })
        .await?;
    bar.finish_and_clear();
    Ok(())
}

/// Deletes all CollaSets, and waits until none exists.
pub(super) async fn delete_all_sets(cluster: &TestCluster) -> anyhow::Result<()> {
    let all = ListParams::default();
    for set in cluster.sets().list(&all).await?.items {
        cluster.sets().delete(&set.name_any(), &DeleteParams::default()).await?;
    }
    eventually(WAIT_TIMEOUT, async || Ok(cluster.sets().list(&all).await?.items.is_empty())).await
}
