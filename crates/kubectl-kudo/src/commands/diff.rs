//! `plan diff`.

use std::io::{self, Write as _};

use anyhow::{Context as _, anyhow};
use instance_operator::{
    object::ObjectId,
    object_write::ObjectWrite,
    redaction::Redaction,
    view::{Observed, version_key},
};
use kube::{Client, ResourceExt as _};
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
use serde_json::Value;
use uuid::Uuid;

use super::{given, move_to};
use crate::{
    cluster::{Cluster, instance_name},
    find::Finder,
    live::Live,
    output::print,
};

/// Maximum nesting of Instances in a preview.
const DEPTH_MAX: usize = 10;

/// Prints a preview of a change of an Instance.
///
/// # Errors
///
/// [`Failure::WouldNotEnd`] if a plan would fail or stop at a step, otherwise
/// [`Failure::Differences`] if an object would change; another error if the change is invalid, or a
/// read fails.
pub(crate) async fn diff(
    connection: &Connection,
    cluster: &Cluster,
    diff: Diff,
) -> anyhow::Result<()> {
    let format = Format::parse(diff.output.as_deref())?;
    let Changed { mut instance, version, resolved } = changed(connection, cluster, &diff).await?;
    let former = Redaction::of(&cluster.observe(&instance, &version).await?);
    given(&diff.values)?.set(&mut instance.spec);
    if let Some(plan) = diff.name {
        instance.spec.plan_execution.plan_name = plan;
        instance.spec.plan_execution.uid = Uuid::new_v4().to_string();
    }
    instance.metadata.generation = instance.metadata.generation.map(|known| known + 1);
    let observed = cluster.check(&instance, &version).await?;
    let live = Live::new(cluster.client.clone());
    let mut previews = Previews { cluster, resolved, former, live };
    let runs = previews.runs(observed, 0).await?;
    if format == Format::Text {
        print(&text(&runs))?;
    } else {
        print(&object(&runs, format)?)?;
    }
    if !runs.iter().all(PreviewedRun::would_end) {
        return Err(Failure::WouldNotEnd.into());
    }
    if runs.iter().any(PreviewedRun::has_effect) {
        return Err(Failure::Differences.into());
    }
    Ok(())
}

/// Instance to preview, and its OperatorVersion.
struct Changed {
    instance: Instance,
    version: OperatorVersion,
    /// OperatorVersions of the named package and its dependencies.
    resolved: Vec<OperatorVersion>,
}

/// Returns the Instance and its OperatorVersion; a named package becomes the package of the
/// Instance.
async fn changed(
    connection: &Connection,
    cluster: &Cluster,
    diff: &Diff,
) -> anyhow::Result<Changed> {
    let Some(argument) = &diff.package else {
        let instance = cluster.instance(&diff.instance).await?;
        let version = cluster.version_of(&instance).await?;
        return Ok(Changed { instance, version, resolved: Vec::new() });
    };
    let name = instance_name(&diff.instance)?;
    let finder = Finder::new(connection, &diff.search);
    let packages = resolve(&finder, &Source::parse(argument), &diff.search.versions())?;
    let mut resolved = Vec::new();
    for package in &packages {
        let mut version = convert::operator_version(package)?;
        version.metadata.namespace = Some(cluster.namespace.clone());
        // An existing OperatorVersion with the same content is used as it is.
        let installed = cluster.versions().get_opt(&version.name_any()).await?;
        resolved.push(installed.filter(|known| known.spec == version.spec).unwrap_or(version));
    }
    let version = resolved.last().context("there is no package")?.clone();
    let instance = cluster.instances().get_opt(name).await?;
    let mut instance = instance.unwrap_or_else(|| new_instance(name, &cluster.namespace));
    move_to(&mut instance.spec, &version);
    Ok(Changed { instance, version, resolved })
}

/// Returns an Instance that does not exist yet.
fn new_instance(name: &str, namespace: &str) -> Instance {
    let mut instance = Instance::new(name, InstanceSpec::default());
    instance.metadata.namespace = Some(namespace.to_owned());
    instance.metadata.uid = Some(Uuid::new_v4().to_string());
    instance.metadata.generation = Some(0);
    instance
}

/// Previews of an Instance and its children.
struct Previews<'a> {
    cluster: &'a Cluster,
    resolved: Vec<OperatorVersion>,
    /// Values of Secrets before the change.
    former: Redaction,
    live: Live,
}

impl Previews<'_> {
    /// Returns the previewed runs of an Instance, then those of its children, down to
    /// [`DEPTH_MAX`].
    ///
    /// # Errors
    ///
    /// If a read fails.
    async fn runs(
        &mut self,
        observed: Observed,
        depth: usize,
    ) -> anyhow::Result<Vec<PreviewedRun>> {
        self.live.try_as(self.writer_of(&observed).await?);
        let mut preview = Preview::new(observed, &self.former, podops_terminal::clock::now());
        complete(&mut preview, &mut self.live).await?;
        for child in preview.children() {
            let id = ObjectId::of(&child);
            let runs = if depth < DEPTH_MAX {
                Box::pin(self.runs_of_child(child, depth + 1)).await
            } else {
                Err(anyhow!("{DEPTH_MAX} Instances contain it, and no more are shown"))
            };
            let runs =
                runs.unwrap_or_else(|error| vec![PreviewedRun::unknown(format!("{error:#}"))]);
            preview.include(&id, runs);
        }
        Ok(preview.into_runs())
    }

    /// Returns a client that impersonates the ServiceAccount of an Instance, or the user's client
    /// if there is no ServiceAccount or the user may not impersonate it.
    async fn writer_of(&self, observed: &Observed) -> anyhow::Result<Client> {
        let own = self.cluster.client.clone();
        let account = observed.spec.service_account_name.as_str();
        if account.is_empty() {
            return Ok(own);
        }
        let client = Box::pin(self.cluster.client_as(account)).await?;
        Ok(client.unwrap_or_else(|| {
            // The preview is printed even if stderr is closed.
            let _ = writeln!(
                io::stderr(),
                "warning: you may not impersonate ServiceAccount {}/{account}, which writes the objects: what is \
                 rejected is what would be rejected for you",
                self.cluster.namespace
            );
            own
        }))
    }

    async fn runs_of_child(
        &mut self,
        child: Value,
        depth: usize,
    ) -> anyhow::Result<Vec<PreviewedRun>> {
        let instance: Instance = serde_json::from_value(child)?;
        let key = version_key(&instance.spec, &self.cluster.namespace);
        let resolved = self.resolved.iter().find(|version| key_of(version) == key);
        let version = match resolved {
            Some(version) => version.clone(),
            None => self.cluster.version_of(&instance).await?,
        };
        let observed = self.cluster.check(&instance, &version).await?;
        self.runs(observed, depth).await
    }
}

fn key_of(version: &OperatorVersion) -> String {
    format!("{}/{}", version.namespace().unwrap_or_default(), version.name_any())
}

/// Reads objects and tries writes until a preview is complete.
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
                        ObjectWrite::Delete { .. } => live.try_delete(&write.id()).await?,
                        // Not tried: a user who may delete the object may usually scale it too.
                        ObjectWrite::ScaleToZero { .. } => Ok(None),
                    };
                    preview.tried(&write, result);
                }
            }
        }
    }
}
