//! `init` and `init --uninstall`.

use std::{
    collections::BTreeSet,
    io::{self, Write as _},
    time::Duration,
};

use anyhow::{Context as _, bail};
use instance_operator::object::{ObjectId, label};
use k8s_openapi::api::{
    apps::v1::{Deployment, StatefulSet},
    core::v1::Service,
};
use kube::{
    Api,
    api::ListParams,
    runtime::wait::{await_condition, conditions::is_deployment_completed},
};
use kubectl_kudo::{
    cli::{Connection, Init},
    failure::Failure,
    manifests::{self, NAME, NAMESPACE_NAME, PART_OF, Part},
    text::{Format, list},
};
use podops_api::kudo::Instance;
use serde_json::Value;
use tokio::time::timeout;

use crate::{
    cluster::{Cluster, NOT_FOUND},
    live::Live,
    output::{print, print_line},
};

/// Image of instance-operator; `None` if this build is not a release.
const IMAGE: Option<&str> = option_env!("PODOPS_INSTANCE_OPERATOR_IMAGE");
/// Label of the objects that KUDO installs.
const OF_KUDO: (&str, &str) = ("app", "kudo-manager");

/// Installs instance-operator, or removes it.
///
/// # Errors
///
/// If the API server rejects an object, or the operator does not become available in time.
pub(crate) async fn init(mut connection: Connection, init: Init) -> anyhow::Result<()> {
    let format = Format::parse(init.output.as_deref())?;
    if init.wait.wait_time.is_some() && !init.wait.wait {
        return Err(Failure::Usage("--wait-timeout needs --wait".to_owned()).into());
    }
    // This command installs the kinds of KUDO.
    connection.validate_install = false;
    if init.uninstall {
        return uninstall(&Cluster::connect(&connection).await?, init.dry_run).await;
    }
    let parts = parts(&init)?;
    if format != Format::Text {
        let objects: Vec<Value> = parts.iter().flat_map(|part| part.objects.clone()).collect();
        print(&list(&objects, format)?)?;
    }
    if init.dry_run {
        let objects =
            parts.iter().flat_map(|part| &part.objects).filter(|_| format == Format::Text);
        for object in objects {
            print_line(&format!("{} would be installed", ObjectId::of(object)))?;
        }
        return Ok(());
    }
    let cluster = Cluster::connect(&connection).await?;
    let mut live = Live::new(cluster.client.clone());
    if !init.scope.crd_only {
        for removed in remove_kudo(&cluster, &mut live).await? {
            report(format, &format!("✅ removed {removed} of KUDO"))?;
        }
    }
    if init.scope.package_admin {
        live.delete(&manifests::editors()).await?;
    }
    for part in parts {
        for object in part.objects {
            live.apply(&object).await?;
        }
        report(format, &format!("✅ installed {}", part.name))?;
    }
    if init.wait.wait {
        wait(&cluster, format, init.wait.seconds()).await?;
    }
    Ok(())
}

/// Returns the parts to install, in order.
fn parts(init: &Init) -> anyhow::Result<Vec<Part>> {
    let mut parts = vec![manifests::definitions()?];
    if !init.scope.crd_only {
        let image = init.image.as_deref().or(IMAGE).ok_or_else(|| {
            let message = "this is no release, so it needs the image of instance-operator: --image";
            Failure::Usage(message.to_owned())
        })?;
        parts.extend(manifests::operator(image, init.scope.package_admin)?);
    }
    Ok(parts)
}

/// Reports progress on stdout, or on stderr if stdout has YAML or JSON.
fn report(format: Format, line: &str) -> anyhow::Result<()> {
    if format == Format::Text {
        return print_line(line);
    }
    Ok(writeln!(io::stderr(), "{line}")?)
}

/// Removes KUDO's managers from all namespaces, and KUDO's webhook; CustomResourceDefinitions and
/// their objects are kept. Returns the removed objects.
async fn remove_kudo(cluster: &Cluster, live: &mut Live) -> anyhow::Result<Vec<ObjectId>> {
    let mut removed = Vec::new();
    for id in manifests::of_kudo(&namespaces_of_kudo(cluster).await?) {
        let Some(object) = live.read(&id).await? else { continue };
        // Namespaced objects of other programs may have the same name; the cluster-scoped names are
        // specific to KUDO.
        if !id.namespace.is_empty() && label(&object, OF_KUDO.0) != Some(OF_KUDO.1) {
            continue;
        }
        live.delete(&id).await?;
        removed.push(id);
    }
    Ok(removed)
}

/// Returns the namespaces with a manager of KUDO.
async fn namespaces_of_kudo(cluster: &Cluster) -> anyhow::Result<BTreeSet<String>> {
    let labelled = ListParams::default().labels(&format!("{}={}", OF_KUDO.0, OF_KUDO.1));
    let managers: Api<StatefulSet> = Api::all(cluster.client.clone());
    let services: Api<Service> = Api::all(cluster.client.clone());
    let managers = managers.list_metadata(&labelled).await.context("cannot list StatefulSets")?;
    let services = services.list_metadata(&labelled).await.context("cannot list Services")?;
    let managers = managers.items.into_iter().filter_map(|found| found.metadata.namespace);
    let services = services.items.into_iter().filter_map(|found| found.metadata.namespace);
    Ok(managers.chain(services).collect())
}

async fn wait(cluster: &Cluster, format: Format, seconds: u64) -> anyhow::Result<()> {
    report(format, "⌛Waiting for KUDO controller to be ready in your cluster...")?;
    let deployments: Api<Deployment> = Api::namespaced(cluster.watching()?, NAMESPACE_NAME);
    let available = await_condition(deployments, NAME, is_deployment_completed());
    let Ok(waited) = timeout(Duration::from_secs(seconds), available).await else {
        let message =
            "watch timed out, readiness uncertain: Deployment instance-operator is not complete";
        return Err(Failure::TimedOut(message.to_owned()).into());
    };
    waited.context("cannot watch the Deployment")?;
    report(format, "✅ KUDO is ready!")
}

/// Removes the objects that `init` installs, the operator first. Keeps the
/// CustomResourceDefinitions while there are Instances, and shared objects while another Podops
/// operator is in the namespace.
async fn uninstall(cluster: &Cluster, is_dry_run: bool) -> anyhow::Result<()> {
    let mut live = Live::new(cluster.client.clone());
    let instances = count_instances(cluster).await?;
    let has_neighbours = has_neighbours(cluster).await?;
    let mut parts = manifests::operator("", true)?;
    if instances == 0 {
        parts.insert(0, manifests::definitions()?);
    } else {
        print_line(&format!(
            "the CustomResourceDefinitions of KUDO stay, because there are {instances} Instances"
        ))?;
    }
    let objects = parts.iter().rev().flat_map(|part| part.objects.iter().rev());
    for id in objects.map(ObjectId::of).chain([manifests::editors()]) {
        if has_neighbours && is_shared(&id) || live.read(&id).await?.is_none() {
            continue;
        }
        if !is_dry_run {
            live.delete(&id).await?;
        }
        let done = if is_dry_run { "would be removed" } else { "removed" };
        print_line(&format!("{id} {done}"))?;
    }
    Ok(())
}

/// Returns true for objects that all Podops operators share.
fn is_shared(id: &ObjectId) -> bool {
    let kind = id.object_type.kind.as_str();
    matches!(kind, "Namespace" | "NetworkPolicy" | "PodDisruptionBudget")
}

async fn count_instances(cluster: &Cluster) -> anyhow::Result<usize> {
    let instances: Api<Instance> = Api::all(cluster.client.clone());
    match instances.list_metadata(&ListParams::default()).await {
        Ok(list) => Ok(list.items.len()),
        Err(kube::Error::Api(status)) if status.code == NOT_FOUND => Ok(0),
        Err(error) => bail!(anyhow::Error::from(error).context("cannot list Instances")),
    }
}

/// Returns true if another Podops operator is in the namespace.
async fn has_neighbours(cluster: &Cluster) -> anyhow::Result<bool> {
    let deployments: Api<Deployment> = Api::namespaced(cluster.client.clone(), NAMESPACE_NAME);
    let of_podops = ListParams::default().labels(&format!("{}={}", PART_OF.0, PART_OF.1));
    let found = deployments.list_metadata(&of_podops).await.context("cannot list Deployments")?;
    Ok(found.items.iter().any(|found| found.metadata.name.as_deref() != Some(NAME)))
}
