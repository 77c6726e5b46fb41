//! `plan diff`.

use anyhow::Context as _;
use instance_operator::{object::ObjectId, object_write::ObjectWrite};
use kube::ResourceExt as _;
use kubectl_kudo::{
    cli::{Connection, Diff},
    failure::Failure,
    preview::{Preview, PreviewedRun, Turn, text},
    resolve::resolve,
    source::Source,
    text::{Format, object},
};
use podops_api::kudo::{Instance, InstanceSpec, OperatorVersion};
use podops_packages::convert;
use uuid::Uuid;

use super::{given, move_to};
use crate::{
    clock,
    cluster::{Cluster, instance_name},
    find::Finder,
    live::Live,
    output::print,
};

/// Shows what a change of an Instance would do.
///
/// # Errors
///
/// [`Failure::Differences`] if an object would change; others if the change would be invalid, or something
/// cannot be read.
pub(crate) async fn diff(
    connection: &Connection,
    cluster: &Cluster,
    diff: Diff,
) -> anyhow::Result<()> {
    let format = Format::parse(diff.output.as_deref())?;
    let (mut instance, version) = changed(connection, cluster, &diff).await?;
    given(&diff.values)?.set(&mut instance.spec);
    if let Some(plan) = diff.name {
        instance.spec.plan_execution.plan_name = plan;
        instance.spec.plan_execution.uid = Uuid::new_v4().to_string();
    }
    instance.metadata.generation = instance.metadata.generation.map(|known| known + 1);
    let observed = cluster.check(&instance, &version).await?;
    let mut preview = Preview::new(observed, clock::now());
    complete(&mut preview, &mut Live::new(cluster.client.clone())).await?;
    let runs = preview.into_runs();
    let has_effect = runs.iter().any(PreviewedRun::has_effect);
    if format == Format::Text {
        print(&text(&runs))?;
    } else {
        print(&object(&runs, format)?)?;
    }
    if has_effect { Err(Failure::Differences.into()) } else { Ok(()) }
}

/// Returns the Instance, of the package that the command names, if it does, and its OperatorVersion.
async fn changed(
    connection: &Connection,
    cluster: &Cluster,
    diff: &Diff,
) -> anyhow::Result<(Instance, OperatorVersion)> {
    let Some(argument) = &diff.package else {
        let instance = cluster.instance(&diff.instance).await?;
        let version = cluster.version_of(&instance).await?;
        return Ok((instance, version));
    };
    let name = instance_name(&diff.instance)?;
    let finder = Finder::new(connection, &diff.search);
    let packages = resolve(&finder, &Source::parse(argument), &diff.search.versions())?;
    let package = packages.last().context("there is no package")?;
    let mut version = convert::operator_version(package)?;
    version.metadata.namespace = Some(cluster.namespace.clone());
    // With the same content, it is the one that exists.
    let installed = cluster.versions().get_opt(&version.name_any()).await?;
    let version = installed.filter(|known| known.spec == version.spec).unwrap_or(version);
    let instance = cluster.instances().get_opt(name).await?;
    let mut instance = instance.unwrap_or_else(|| new_instance(name, &cluster.namespace));
    move_to(&mut instance.spec, &version);
    Ok((instance, version))
}

/// An Instance that does not exist yet.
fn new_instance(name: &str, namespace: &str) -> Instance {
    let mut instance = Instance::new(name, InstanceSpec::default());
    instance.metadata.namespace = Some(namespace.to_owned());
    instance.metadata.uid = Some(Uuid::new_v4().to_string());
    instance.metadata.generation = Some(0);
    instance
}

/// Reads and tries what a preview needs, until it is complete.
async fn complete(preview: &mut Preview, live: &mut Live) -> anyhow::Result<()> {
    loop {
        match preview.turn() {
            Turn::End => return Ok(()),
            Turn::Read(needs) => {
                for object_type in needs.types {
                    let scope = live.scope(&object_type).await?;
                    preview.observed.types.insert(object_type, scope);
                }
                let ids: Vec<ObjectId> = needs.objects.into_iter().chain(needs.metadata).collect();
                for id in ids {
                    let object = live.read(&id).await?;
                    preview.observed.objects.insert(id, object.map(Into::into));
                }
            }
            Turn::Try(writes) => {
                for write in writes {
                    let result = match &write {
                        ObjectWrite::Apply { object, .. } if preview.is_deleted(&write.id()) => {
                            Ok(Some((**object).clone()))
                        }
                        ObjectWrite::Apply { object, .. } => live.try_apply(object).await?,
                        ObjectWrite::ScaleToZero { .. } | ObjectWrite::Delete { .. } => Ok(None),
                    };
                    preview.tried(&write, result);
                }
            }
        }
    }
}
