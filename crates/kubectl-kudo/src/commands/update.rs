//! `update`.

use anyhow::Context as _;
use kube::ResourceExt as _;
use kubectl_kudo::{cli::Update, failure::Failure, plans::Baseline};

use super::{given, wait::wait_until_ready};
use crate::{cluster::Cluster, output::print_line};

/// Changes parameters of an Instance.
///
/// # Errors
///
/// If a value is invalid, or the API server rejects the change.
pub(crate) async fn update(cluster: &Cluster, update: Update) -> anyhow::Result<()> {
    let mut instance = cluster.instance(&update.instance).await?;
    let given = given(&update.values)?;
    if given.is_empty() {
        let message = "need to specify at least one parameter to override via -p otherwise there is \
                       nothing to update";
        return Err(Failure::Usage(message.to_owned()).into());
    }
    let version = cluster.version_of(&instance).await?;
    let namespace = &cluster.namespace;
    let name = instance.name_any();
    let before = Baseline::of(&instance);
    let patch = given.patch(&instance.spec);
    given.set(&mut instance.spec);
    let checked = cluster.check(&instance, &version).await;
    checked.with_context(|| format!("failed to update Instance {namespace}/{name}"))?;
    let updated = cluster.patch(&name, patch).await?;
    print_line(&format!("Instance {name} was updated."))?;
    wait_until_ready(cluster, &updated, before, update.wait).await
}
