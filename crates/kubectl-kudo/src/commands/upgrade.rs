//! `upgrade`.

use anyhow::{Context as _, bail};
use go_template::compare_versions;
use kube::ResourceExt as _;
use kubectl_kudo::{
    cli::{Connection, PackageArgs},
    plans::Baseline,
    resolve::resolve,
    source::Source,
};
use serde_json::json;

use super::{
    given, move_to,
    versions::{self, plan_all},
    wait::wait_until_ready,
};
use crate::{cluster::Cluster, find::Finder, output::print_line};

/// Moves an Instance to a higher version of its package.
///
/// # Errors
///
/// If the version is not higher, the Instance is invalid, or the API server rejects an object.
pub(crate) async fn upgrade(connection: &Connection, upgrade: PackageArgs) -> anyhow::Result<()> {
    let argument = upgrade.named("upgrade")?;
    let message = "please use --instance and specify instance name. It cannot be empty";
    upgrade.instance.required(message)?;
    let cluster = Cluster::connect(connection).await?;
    let mut instance = cluster.instance(&upgrade.instance).await?;
    let current = cluster.version_of(&instance).await?;
    let finder = Finder::new(connection, &upgrade.search);
    let packages = resolve(&finder, &Source::parse(argument), &upgrade.search.versions())?;
    let package = packages.last().context("there is no package")?;
    check_order(
        [&current.spec.version, &package.operator.operator_version],
        [&current.spec.app_version, &package.operator.app_version],
    )?;
    let planned = plan_all(&cluster, packages, upgrade.replace_operatorversion).await?;
    let version = planned.last().context("there is no package")?.version().clone();
    let namespace = cluster.namespace.clone();
    let name = instance.name_any();
    let before = Baseline::of(&instance);
    let removed = move_to(&mut instance.spec, &version);
    let given = given(&upgrade.values)?;
    let mut patch = given.patch(&instance.spec);
    given.set(&mut instance.spec);
    let checked = cluster.check(&instance, &version).await;
    checked.with_context(|| format!("failed to update Instance {namespace}/{name}"))?;
    for planned in &planned {
        versions::write(&cluster, planned).await?;
    }
    patch["operatorVersion"] = json!({ "name": version.name_any(), "namespace": null });
    for name in removed {
        patch["parameters"][name] = json!(null);
    }
    let updated = cluster.patch(&name, patch).await?;
    print_line(&format!("instance {namespace}/{name} updated"))?;
    wait_until_ready(&cluster, &updated, before, upgrade.wait).await
}

/// Checks that the operator version is higher, or the same with a higher application version (K8).
fn check_order(operator: [&String; 2], app: [&String; 2]) -> anyhow::Result<()> {
    let [old, new] = operator;
    let order = compare_versions(new, old).then(compare_versions(app[1], app[0]));
    if order.is_le() {
        bail!(
            "upgraded version {new} is the same or smaller as current version {old} -> not upgrading"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// K8: KUDO compares only the operator version.
    #[test]
    fn another_version_of_the_application_is_higher() {
        let is_higher = |operator: [&str; 2], app: [&str; 2]| {
            let [operator, app] = [operator, app].map(|pair| pair.map(ToOwned::to_owned));
            check_order([&operator[0], &operator[1]], [&app[0], &app[1]]).is_ok()
        };
        assert!(is_higher(["0.1.0", "0.2.0"], ["1.0", "1.0"]));
        assert!(is_higher(["0.1.0", "0.1.0"], ["1.0", "1.1"]));
        assert!(!is_higher(["0.1.0", "0.1.0"], ["1.1", "1.1"]));
        assert!(!is_higher(["0.2.0", "0.1.0"], ["1.0", "1.1"]));
    }
}
