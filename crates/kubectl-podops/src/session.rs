//! The cluster and namespace that commands are about.

use std::time::Duration;

use anyhow::{Context as _, bail};
use kube::{Api, Client, Config, Resource, core::NamespaceResourceScope};
use kubectl_podops::cli::Connection;
use tokio::time::timeout;

/// Time in which the API server must answer the first request.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// A client, and the namespace that commands are about.
pub(crate) struct Session {
    pub(crate) client: Client,
    config: Config,
    pub(crate) namespace: String,
    pub(crate) operator_namespace: String,
}

/// Reads the kubeconfig, and checks that the API server answers.
///
/// # Errors
///
/// If it cannot be read, or the API server cannot be reached or does not answer.
pub(crate) async fn connect(connection: Connection) -> anyhow::Result<Session> {
    let Connection { context, as_user, as_group, request_timeout, operator_namespace } = connection;
    let mut config = context.config().await?;
    config.read_timeout = Some(request_timeout).filter(|timeout| !timeout.is_zero());
    if let Some(user) = as_user {
        config.auth_info.impersonate = Some(user);
        config.auth_info.impersonate_groups = Some(as_group).filter(|groups| !groups.is_empty());
    }
    let namespace = context.namespace.unwrap_or_else(|| config.default_namespace.clone());
    let server = config.cluster_url.clone();
    let client = Client::try_from(config.clone())?;
    match timeout(ANSWER_WITHIN, client.apiserver_version()).await {
        // A rejection, such as Forbidden, also shows that the cluster answers.
        Ok(Ok(_) | Err(kube::Error::Api(_))) => {}
        Ok(Err(error)) => {
            return Err(error).with_context(|| format!("no cluster: {server} cannot be reached"));
        }
        Err(_) => bail!(
            "no cluster: {server} does not answer within {}s; see kubectl cluster-info",
            ANSWER_WITHIN.as_secs()
        ),
    }
    Ok(Session { client, config, namespace, operator_namespace })
}

impl Session {
    /// Returns the objects of a type in the namespace, or in all namespaces.
    pub(crate) fn api<K>(&self, all_namespaces: bool) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType: Default>,
    {
        let client = self.client.clone();
        if all_namespaces { Api::all(client) } else { Api::namespaced(client, &self.namespace) }
    }

    /// Returns a client for requests that are rejected until something has happened: it does not
    /// repeat them, which may take minutes.
    ///
    /// # Errors
    ///
    /// If the kubeconfig is invalid.
    pub(crate) fn client_without_retries(&self) -> kube::Result<Client> {
        let mut config = self.config.clone();
        config.default_retry = false;
        Client::try_from(config)
    }
}
