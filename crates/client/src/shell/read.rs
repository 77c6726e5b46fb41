//! Reads single objects from the API server, where a cache does not suffice.

use kube::{
    Client, Resource as _,
    api::GetParams,
    core::{PartialObjectMeta, Request},
};

use crate::{decode::Decoded, write::Target};

/// Returns the UIDs of the owners of an object; `None` if it does not exist. The owners of an object
/// whose metadata cannot be decoded are unknown, and none is returned.
///
/// # Errors
///
/// If the request fails.
pub async fn owner_uids(client: &Client, target: &Target) -> kube::Result<Option<Vec<String>>> {
    let request = Request::new(target.resource.path(&target.namespace));
    let request = request.get_metadata(&target.name, &GetParams::default());
    let request = request.map_err(kube::Error::BuildRequest)?;
    match client.request::<Decoded<PartialObjectMeta>>(request).await {
        Ok(object) => {
            let owners = object.meta().owner_references.iter().flatten();
            Ok(Some(owners.map(|owner| owner.uid.clone()).collect()))
        }
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}
