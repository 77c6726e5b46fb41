//! Reads the objects that the preflight checks.

use k8s_openapi::api::{
    admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    apps::v1::Deployment,
    core::v1::{PersistentVolumeClaim, Pod, Service},
};
use kube::{
    Api, Client, Resource,
    api::{ApiResource, DynamicObject, ListParams},
    core::GroupVersionKind,
};
use podops_api::{GROUP, VERSION, well_known};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{answer::is_not_found, preflight::Inventory};

/// Objects of one page of a list.
const PAGE_SIZE: u32 = 500;

/// Reads the inventory of a cluster.
///
/// # Errors
///
/// If a list fails, except if the cluster does not serve the resource.
pub async fn read(client: &Client) -> kube::Result<Inventory> {
    let controlled = format!("{}={}", well_known::CONTROL, well_known::CONTROL_ON);
    Ok(Inventory {
        server_minor: server_minor(client).await?,
        sets: custom(client, "CollaSet", "collasets").await?,
        decorations: custom(client, "PodDecoration", "poddecorations").await?,
        rules: custom(client, "PodTransitionRule", "podtransitionrules").await?,
        jobs: custom(client, "OperationJob", "operationjobs").await?,
        pods: typed::<Pod>(client, &controlled).await?,
        claims: typed::<PersistentVolumeClaim>(client, "").await?,
        services: typed::<Service>(client, &controlled).await?,
        deployments: typed::<Deployment>(client, "").await?,
        mutating_webhooks: typed::<MutatingWebhookConfiguration>(client, "").await?,
        validating_webhooks: typed::<ValidatingWebhookConfiguration>(client, "").await?,
    })
}

/// Minor version of the API server.
pub(crate) async fn server_minor(client: &Client) -> kube::Result<u32> {
    let version = client.apiserver_version().await?;
    let minor: String = version.minor.chars().take_while(char::is_ascii_digit).collect();
    Ok(minor.parse().unwrap_or_default())
}

/// Lists a custom resource as JSON, so that an object which Podops cannot decode is listed as well;
/// empty if the cluster does not serve it.
async fn custom(client: &Client, kind: &str, plural: &str) -> kube::Result<Vec<Value>> {
    let kind = GroupVersionKind::gvk(GROUP, VERSION, kind);
    let api: Api<DynamicObject> =
        Api::all_with(client.clone(), &ApiResource::from_gvk_with_plural(&kind, plural));
    match list(&api, "", |_| true).await {
        Err(kube::Error::Api(status)) if is_not_found(&status) => Ok(Vec::new()),
        listed => listed,
    }
}

async fn typed<K>(client: &Client, labels: &str) -> kube::Result<Vec<Value>>
where
    K: Resource<DynamicType = ()>,
{
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::erase::<K>(&()));
    list(&api, labels, |_| true).await
}

/// Lists the objects of a resource that `is_needed`, page by page, without `managedFields`.
///
/// # Errors
///
/// If a list fails.
pub async fn list<K>(
    api: &Api<K>,
    labels: &str,
    is_needed: impl Fn(&Value) -> bool,
) -> kube::Result<Vec<Value>>
where
    K: Clone + DeserializeOwned + std::fmt::Debug + serde::Serialize,
{
    let mut params = ListParams::default().labels(labels).limit(PAGE_SIZE);
    let mut objects = Vec::new();
    loop {
        let page = api.list(&params).await?;
        for object in &page.items {
            let mut object = serde_json::to_value(object).map_err(kube::Error::SerdeError)?;
            if let Some(metadata) = object["metadata"].as_object_mut() {
                metadata.remove("managedFields");
            }
            if is_needed(&object) {
                objects.push(object);
            }
        }
        let Some(token) = page.metadata.continue_.filter(|token| !token.is_empty()) else {
            return Ok(objects);
        };
        params = params.continue_token(&token);
    }
}
