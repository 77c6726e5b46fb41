//! Lists of a whole collection, page by page, so that large objects do not exhaust the memory.

use std::fmt::Debug;

use kube::{Api, Resource, ResourceExt as _, api::ListParams};
use serde::de::DeserializeOwned;

use super::store::PAGE_SIZE;
use crate::decode::Decoded;

/// Objects of a collection, as they were at one resourceVersion.
#[derive(Clone, Debug)]
pub struct Listed<K> {
    /// The objects that could be decoded, in the order of their namespaces and names.
    pub objects: Vec<K>,
    /// The resourceVersion of the list.
    pub version: Option<u64>,
}

/// Lists the objects that a label selector matches. `trim` removes unneeded fields of each object
/// as soon as it is received.
///
/// # Errors
///
/// If a request fails.
pub async fn list<K>(
    api: &Api<Decoded<K>>,
    label_selector: &str,
    trim: impl Fn(&mut K),
) -> kube::Result<Listed<K>>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let mut params = ListParams::default().labels(label_selector).limit(PAGE_SIZE);
    let mut objects = Vec::new();
    loop {
        let page = api.list(&params).await?;
        let mut decoded: Vec<K> = page.items.into_iter().filter_map(Decoded::ok).collect();
        decoded.iter_mut().for_each(&trim);
        objects.append(&mut decoded);
        let Some(token) = page.metadata.continue_.filter(|token| !token.is_empty()) else {
            let version = page.metadata.resource_version.as_deref();
            objects.sort_by_key(|object| (object.namespace(), object.name_any()));
            return Ok(Listed { objects, version: version.and_then(|v| v.parse().ok()) });
        };
        params = params.continue_token(&token);
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{Client, client::Body};
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn all_pages_are_listed() {
        let server = tower::service_fn(|request: http::Request<Body>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            let (name, token) =
                if query.contains("continue=next") { ("a", "") } else { ("b", "next") };
            let item = json!({ "metadata": { "name": name, "labels": { "x": "y" } } });
            let list = json!({
                "apiVersion": "v1", "kind": "ConfigMapList", "items": [item],
                "metadata": { "resourceVersion": "7", "continue": token },
            });
            assert!(query.contains("limit=16") && query.contains("labelSelector=x%3Dy"), "{query}");
            let body = Body::from(list.to_string().into_bytes());
            std::future::ready(Ok::<_, tower::BoxError>(http::Response::new(body)))
        });
        let api: Api<Decoded<ConfigMap>> = Api::namespaced(Client::new(server, "ns"), "ns");
        let listed = list(&api, "x=y", |object| object.metadata.labels = None).await.unwrap();
        let names: Vec<String> = listed.objects.iter().map(ConfigMap::name_any).collect();
        assert_eq!(
            (names.as_slice(), listed.version),
            (&["a".to_owned(), "b".to_owned()][..], Some(7))
        );
        assert!(listed.objects.iter().all(|object| object.metadata.labels.is_none()));
    }
}
