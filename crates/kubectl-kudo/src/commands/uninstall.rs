//! `uninstall`.

use anyhow::bail;
use instance_operator::{
    object::{
        ObjectId, items,
        retention::{is_kept, outlives_instance},
        text,
    },
    object_write::id_of,
};
use kube::api::DeleteParams;
use kubectl_kudo::cli::{InstanceName, Wait};
use serde_json::{Value, json};

use super::wait::{Until, wait};
use crate::{
    cluster::{Cluster, NOT_FOUND, instance_name},
    live::Live,
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
    let kept = kept_objects(cluster, name).await?;
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
    print_line(&format!("instance.kudo.dev/v1beta1/{name} deleted\n"))?;
    for id in kept {
        print_line(&format!("{id} is kept"))?;
    }
    Ok(())
}

/// Returns the objects of an Instance that outlive it; none of an Instance that does not exist.
/// Removes the Instance from their owners.
///
/// # Errors
///
/// If the Instance cannot be read, or is an owner that cannot be removed.
async fn kept_objects(cluster: &Cluster, name: &str) -> anyhow::Result<Vec<ObjectId>> {
    let Some(instance) = cluster.instances().get_opt(name).await? else { return Ok(Vec::new()) };
    let uid = instance.metadata.uid.unwrap_or_default();
    let status = instance.status.unwrap_or_default();
    let mut live = Live::new(cluster.client.clone());
    let mut kept = Vec::new();
    for entry in &status.inventory {
        let id = id_of(entry);
        // The user may have no right to read it; the deletion does not depend on it.
        let Ok(Some(object)) = live.read(&id).await else { continue };
        let is_cluster_scoped = id.namespace.is_empty();
        let outlives = if is_cluster_scoped {
            is_kept(&id.object_type, &object)
        } else {
            outlives_instance(&id.object_type, &object)
        };
        if !outlives || text(&object, "/metadata/uid") != entry.uid {
            continue;
        }
        let is_owner = |owner: &&Value| owner["uid"] == uid;
        if items(&object, "/metadata/ownerReferences").any(|owner| is_owner(&owner)) {
            // An earlier release has applied it: Kubernetes would delete it with the Instance.
            let owners = items(&object, "/metadata/ownerReferences");
            let others: Vec<&Value> = owners.filter(|owner| !is_owner(owner)).collect();
            let version = text(&object, "/metadata/resourceVersion");
            let metadata = json!({ "resourceVersion": version, "ownerReferences": others });
            live.merge(&id, &json!({ "metadata": metadata })).await?;
        }
        kept.push(id);
    }
    Ok(kept)
}
