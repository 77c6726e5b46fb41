//! Reads single objects from the API server, where a cache does not suffice.

use k8s_openapi::{api::core::v1::Namespace, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Client, Resource as _,
    api::GetParams,
    core::{PartialObjectMeta, Request},
};

use crate::{decode::Decoded, write::Target};

/// Returns the metadata of an object, without managedFields; `None` if it does not exist. Of an
/// object that cannot be decoded, they are those that identify it.
///
/// # Errors
///
/// If the request fails.
pub async fn metadata(client: &Client, target: &Target) -> kube::Result<Option<ObjectMeta>> {
    let request = Request::new(target.resource.path(&target.namespace));
    let request = request.get_metadata(&target.name, &GetParams::default());
    let request = request.map_err(kube::Error::BuildRequest)?;
    match client.request::<Decoded<PartialObjectMeta>>(request).await {
        Ok(object) => Ok(Some(object.meta().clone())),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the UIDs of the owners of an object; `None` if it does not exist. The owners of an
/// object whose metadata cannot be decoded are unknown, and none is returned.
///
/// # Errors
///
/// If the request fails.
pub async fn owner_uids(client: &Client, target: &Target) -> kube::Result<Option<Vec<String>>> {
    let found = metadata(client, target).await?;
    Ok(found.map(|metadata| {
        let owners = metadata.owner_references.into_iter().flatten();
        owners.map(|owner| owner.uid).collect()
    }))
}

/// Returns the metadata of a namespace; `None` if it does not exist.
///
/// # Errors
///
/// If the request fails.
pub async fn namespace(client: &Client, name: &str) -> kube::Result<Option<ObjectMeta>> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    Ok(namespaces.get_metadata_opt(name).await?.map(|namespace| namespace.metadata))
}

#[cfg(test)]
mod tests {
    use kube::client::Body;
    use serde_json::json;

    use super::*;
    use crate::write::PODS;

    /// Any client may write such managed fields, and the API server accepts them.
    #[tokio::test]
    async fn managed_fields_are_not_read() {
        let server = tower::service_fn(|_: http::Request<Body>| {
            let object = json!({
                "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
                "metadata": {
                    "name": "a", "labels": { "x": "y" },
                    "managedFields": [{ "manager": "m", "time": "9999-12-31T23:59:59Z" }],
                },
            });
            let body = Body::from(object.to_string().into_bytes());
            std::future::ready(Ok::<_, tower::BoxError>(http::Response::new(body)))
        });
        let client = Client::new(server, "ns");
        let found = metadata(&client, &Target::new(PODS, "ns", "a")).await.unwrap().unwrap();
        assert_eq!(found.labels.unwrap()["x"], "y");
        assert_eq!(found.managed_fields, None);
    }
}
