//! Creates Operators and OperatorVersions.

use anyhow::{Context as _, bail};
use kube::{
    ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
};
use podops_api::kudo::OperatorVersion;
use podops_packages::{convert, package::Package};
use serde_json::json;

use crate::{
    cluster::{Cluster, MANAGER, NOT_FOUND},
    output::print_line,
};

/// What becomes of an OperatorVersion.
pub(super) enum Change {
    /// It is created.
    Create,
    /// Its content is replaced.
    Replace,
    /// It has this content already.
    Keep,
}

/// Operator and OperatorVersion of a package, and what is to be done.
pub(super) struct Planned {
    package: Package,
    version: OperatorVersion,
    change: Change,
}

impl Planned {
    /// Returns the OperatorVersion as it will be.
    pub(super) const fn version(&self) -> &OperatorVersion {
        &self.version
    }
}

/// Decides what is to be done for packages, and writes nothing.
///
/// # Errors
///
/// As [`plan`].
pub(super) async fn plan_all(
    cluster: &Cluster,
    packages: Vec<Package>,
    replace: bool,
) -> anyhow::Result<Vec<Planned>> {
    let mut planned = Vec::new();
    for package in packages {
        planned.push(plan(cluster, package, replace).await?);
    }
    Ok(planned)
}

/// Decides what is to be done for a package, and writes nothing. The API server checks the OperatorVersion.
///
/// # Errors
///
/// If there is an OperatorVersion of this name with another content (K46), unless it is to be replaced, or
/// if the API server would reject it.
async fn plan(cluster: &Cluster, package: Package, replace: bool) -> anyhow::Result<Planned> {
    let mut version = convert::operator_version(&package)?;
    version.metadata.namespace = Some(cluster.namespace.clone());
    let name = version.name_any();
    let change = match cluster.versions().get_opt(&name).await? {
        None => Change::Create,
        Some(found) if found.spec == version.spec => Change::Keep,
        Some(_) if replace => Change::Replace,
        Some(_) => bail!(
            "operatorversion {}/{name} has another content than the package; raise the package's \
             operatorVersion, or use --replace-operatorversion",
            cluster.namespace
        ),
    };
    let planned = Planned { package, version, change };
    match write_version(cluster, &planned, true).await {
        // The namespace is to be created.
        Err(kube::Error::Api(status)) if status.code == NOT_FOUND => {}
        checked => checked.with_context(|| format!("operatorversion {name} is invalid"))?,
    }
    Ok(planned)
}

/// Creates or replaces an OperatorVersion, or lets the API server check that it could.
///
/// # Errors
///
/// If the API server rejects it.
async fn write_version(
    cluster: &Cluster,
    planned: &Planned,
    dry_run: bool,
) -> Result<(), kube::Error> {
    let (versions, field_manager) = (cluster.versions(), Some(MANAGER.to_owned()));
    match planned.change {
        Change::Create => {
            let params = PostParams { dry_run, field_manager };
            versions.create(&params, &planned.version).await?;
        }
        Change::Replace => {
            let params = PatchParams { dry_run, field_manager, ..PatchParams::default() };
            let spec = serde_json::to_value(&planned.version.spec);
            let spec = spec.map_err(kube::Error::SerdeError)?;
            let patch = json!([{ "op": "replace", "path": "/spec", "value": spec }]);
            let patch = serde_json::from_value(patch).map_err(kube::Error::SerdeError)?;
            versions.patch(&planned.version.name_any(), &params, &Patch::Json::<()>(patch)).await?;
        }
        Change::Keep => {}
    }
    Ok(())
}

/// Creates the Operator if there is none, and creates or replaces the OperatorVersion.
///
/// # Errors
///
/// If the API server rejects one.
pub(super) async fn write(cluster: &Cluster, planned: &Planned) -> anyhow::Result<()> {
    let create = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    let operator = convert::operator(&planned.package);
    let (namespace, name) = (&cluster.namespace, operator.name_any());
    if cluster.operators().get_opt(&name).await?.is_none() {
        cluster.operators().create(&create, &operator).await?;
        print_line(&format!("operator {namespace}/{name} created"))?;
    }
    let name = planned.version.name_any();
    write_version(cluster, planned, false).await?;
    let done = match planned.change {
        Change::Create => "created",
        Change::Replace => "replaced",
        Change::Keep => "already installed",
    };
    print_line(&format!("operatorversion {namespace}/{name} {done}"))
}
