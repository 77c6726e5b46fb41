//! Discovers whether the API server serves a resource.

use kube::Client;
use tokio::sync::OnceCell;

use crate::write::Resource;

/// A resource that not every cluster serves. The answer is cached once discovery succeeded.
pub struct OptionalResource {
    client: Client,
    resource: Resource,
    served: OnceCell<bool>,
}

impl OptionalResource {
    /// The plural of a subresource includes that of the resource, for example `pods/resize`.
    #[must_use]
    pub fn new(client: Client, resource: Resource) -> Self {
        Self { client, resource, served: OnceCell::new() }
    }

    /// Returns whether the API server serves the resource.
    ///
    /// # Errors
    ///
    /// If discovery fails.
    pub async fn is_served(&self) -> kube::Result<bool> {
        self.served.get_or_try_init(|| self.discover()).await.copied()
    }

    async fn discover(&self) -> kube::Result<bool> {
        let Resource { group, version, plural } = self.resource;
        let list = if group.is_empty() {
            self.client.list_core_api_resources(version).await?
        } else {
            self.client.list_api_group_resources(&format!("{group}/{version}")).await?
        };
        Ok(list.resources.iter().any(|resource| resource.name == plural))
    }
}
