//! The cluster and namespace that commands are about.

use anyhow::Context as _;
use kube::{Client, Config, config::KubeConfigOptions};
use kubectl_podops::cli::Connection;

/// A client, and the namespace that commands are about.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) operator_namespace: String,
}

/// Reads the kubeconfig.
///
/// # Errors
///
/// If it cannot be read.
pub(crate) async fn connect(connection: Connection) -> anyhow::Result<Session> {
    let Connection { context, namespace, operator_namespace } = connection;
    let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
    let config = match options.context {
        None => Config::infer().await.map_err(anyhow::Error::from),
        Some(_) => Config::from_kubeconfig(&options).await.map_err(anyhow::Error::from),
    };
    let config = config.context("no cluster: the kubeconfig cannot be read")?;
    let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
    Ok(Session { client: Client::try_from(config)?, namespace, operator_namespace })
}
