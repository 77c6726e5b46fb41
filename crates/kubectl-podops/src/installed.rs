//! Reads the [`Installation`] of Podops from a cluster.

use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject},
    core::GroupVersionKind,
};
use podops_terminal::clock;

use crate::{
    answer::is_not_found,
    facts::operators,
    installation::{Installation, Kind, Object, Scope, kinds},
    inventory,
};

/// Reads the installation from a cluster; of each kind the objects that `is_read` returns true for.
///
/// # Errors
///
/// If a list fails, except if the cluster does not serve the resource.
pub async fn read(
    client: &Client,
    operator_namespace: &str,
    is_read: fn(&Object) -> bool,
) -> kube::Result<Installation> {
    // Read first: an operator that is absent now writes nothing that the lists below do not have.
    let absent_operators = operators(client, operator_namespace).await?.absent;
    let mut objects = Vec::new();
    for kind in kinds() {
        let api = api(client, kind, operator_namespace);
        let list = inventory::list(&api, "", |value| is_read(&Object::new(kind, value.clone())));
        match list.await {
            Ok(list) => objects.extend(list.into_iter().map(|value| Object::new(kind, value))),
            Err(kube::Error::Api(status)) if is_not_found(&status) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Installation {
        objects,
        absent_operators,
        operator_namespace: operator_namespace.to_owned(),
        server_minor: inventory::server_minor(client).await?,
        now: clock::now(),
    })
}

/// Objects of a kind, as far as they are read.
fn api(client: &Client, kind: &Kind, operator_namespace: &str) -> Api<DynamicObject> {
    let resource = resource(kind);
    match kind.scope {
        Scope::OperatorNamespace => {
            Api::namespaced_with(client.clone(), operator_namespace, &resource)
        }
        Scope::Namespaces | Scope::Cluster => Api::all_with(client.clone(), &resource),
    }
}

/// API of one object.
#[must_use]
pub fn api_of(client: &Client, object: &Object) -> Api<DynamicObject> {
    let resource = resource(object.kind);
    match &object.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

fn resource(kind: &Kind) -> ApiResource {
    let id = GroupVersionKind::gvk(kind.group, kind.version, kind.name);
    ApiResource::from_gvk_with_plural(&id, kind.plural)
}
