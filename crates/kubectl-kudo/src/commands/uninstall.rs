//! `uninstall`.

use anyhow::bail;
use kube::api::DeleteParams;
use kubectl_kudo::cli::{InstanceName, Wait};

use super::wait::{Until, wait};
use crate::{
    cluster::{Cluster, NOT_FOUND, instance_name},
    output::print_line,
};

/// Deletes an Instance.
///
/// # Errors
///
/// If the Instance does not exist, or the API server rejects the deletion.
pub(crate) async fn uninstall(
    cluster: &Cluster,
    instance: &InstanceName,
    waiting: Wait,
) -> anyhow::Result<()> {
    let name = instance_name(instance)?;
    match cluster.instances().delete(name, &DeleteParams::background()).await {
        Err(kube::Error::Api(status)) if status.code == NOT_FOUND => {
            let namespace = &cluster.namespace;
            bail!("instance {name} in namespace {namespace} does not exist in the cluster");
        }
        result => drop(result?),
    }
    if waiting.wait {
        wait(cluster, name, Until::Deleted, waiting.seconds(), |_| Ok(())).await?;
    }
    print_line(&format!("instance.kudo.dev/v1beta1/{name} deleted\n"))
}
