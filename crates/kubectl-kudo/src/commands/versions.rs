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

/// Planned change of an OperatorVersion.
pub(super) enum Change {
    /// The OperatorVersion does not exist.
    Create,
    /// The content differs, and is replaced.
    Replace,
    /// The OperatorVersion has this content already.
    Keep,
}

/// Package with its OperatorVersion and the planned change.
pub(super) struct Planned {
    package: Package,
    version: OperatorVersion,
    change: Change,
}

impl Planned {
    /// Returns the OperatorVersion after the change.
    pub(super) const fn version(&self) -> &OperatorVersion {
        &self.version
    }
}

/// Plans the changes for packages, and writes nothing.
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

/// Plans the change for a package, and writes nothing. The API server validates the
/// OperatorVersion.
///
/// # Errors
///
/// If an OperatorVersion of this name has different content (K46) and must not be replaced, or if
/// the API server would reject the OperatorVersion.
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
        // The namespace has not been created yet.
        Err(kube::Error::Api(status)) if status.code == NOT_FOUND => {}
        checked => checked.with_context(|| format!("operatorversion {name} is invalid"))?,
    }
    Ok(planned)
}

/// Creates or replaces an OperatorVersion; with `dry_run`, the API server only validates the
/// request.
///
/// # Errors
///
/// If the API server rejects the OperatorVersion.
async fn write_version(
    cluster: &Cluster,
    planned: &Planned,
    dry_run: bool,
) -> Result<(), kube::Error> {
    let versions = cluster.versions();
    let field_manager = Some(MANAGER.to_owned());
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

/// Creates the Operator if it does not exist, and creates or replaces the OperatorVersion.
///
/// # Errors
///
/// If the API server rejects an object.
pub(super) async fn write(cluster: &Cluster, planned: &Planned) -> anyhow::Result<()> {
    let create = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    let operator = convert::operator(&planned.package);
    let namespace = &cluster.namespace;
    let name = operator.name_any();
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
