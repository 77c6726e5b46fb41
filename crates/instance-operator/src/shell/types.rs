//! Discovery of the types that the API server serves: once for each API version, and again for an
//! unknown type.

use std::{collections::BTreeMap, time::Duration};

use kube::{Client, core::ApiResource};
use parking_lot::Mutex;
use tokio::time::timeout;

use crate::object::{ObjectType, Scope};

/// Timeout of one request; the API server's is 60 s.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// HTTP status Not Found.
pub(super) const NOT_FOUND: u16 = 404;

/// Maximum number of cached API versions.
const CAPACITY: usize = 256;

/// A type that is served.
#[derive(Clone, Debug)]
pub(super) struct ServedType {
    /// Path of the type, without namespace.
    pub(super) resource: ApiResource,
    /// Scope of the type.
    pub(super) scope: Scope,
}

/// Types that were discovered, by API version.
pub(super) struct Types {
    client: Client,
    known: Mutex<BTreeMap<String, Vec<ServedType>>>,
}

impl Types {
    pub(super) fn new(client: Client) -> Self {
        Self { client, known: Mutex::default() }
    }

    /// Returns a discovered type; `None` if not discovered.
    pub(super) fn known(&self, object_type: &ObjectType) -> Option<ServedType> {
        let known = self.known.lock();
        let types = known.get(&object_type.api_version)?;
        types.iter().find(|known| known.resource.kind == object_type.kind).cloned()
    }

    /// Returns a type, or `None` if it is not served.
    ///
    /// # Errors
    ///
    /// If discovery fails.
    pub(super) async fn find(&self, object_type: &ObjectType) -> kube::Result<Option<ServedType>> {
        if let Some(known) = self.known(object_type) {
            return Ok(Some(known));
        }
        if !object_type.has_valid_version() {
            return Ok(None);
        }
        let discovered = timeout(REQUEST_TIMEOUT, self.discover(object_type)).await;
        let types = discovered.map_err(|elapsed| kube::Error::Service(elapsed.into()))??;
        let found = types.iter().find(|served| served.resource.kind == object_type.kind).cloned();
        let mut known = self.known.lock();
        if known.len() >= CAPACITY {
            // Those that are not served first.
            let unserved = known.iter().find(|(_, types)| types.is_empty());
            let evicted = unserved.or_else(|| known.iter().next());
            if let Some(version) = evicted.map(|(version, _)| version.clone()) {
                known.remove(&version);
            }
        }
        known.insert(object_type.api_version.clone(), types);
        Ok(found)
    }

    /// Removes the types of an API version, because a request failed as if they were no longer
    /// served.
    pub(super) fn forget(&self, api_version: &str) {
        self.known.lock().remove(api_version);
    }

    async fn discover(&self, object_type: &ObjectType) -> kube::Result<Vec<ServedType>> {
        let api_version = &object_type.api_version;
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let list = if group.is_empty() {
            self.client.list_core_api_resources(version).await
        } else {
            self.client.list_api_group_resources(api_version).await
        };
        let list = match list {
            // For an unknown API group, the response is not a Status.
            Err(kube::Error::Api(status)) if status.code == NOT_FOUND => return Ok(Vec::new()),
            list => list?,
        };
        let types = list.resources.into_iter().filter(|found| !found.name.contains('/'));
        let types = types.map(|found| ServedType {
            resource: ApiResource {
                group: group.to_owned(),
                version: version.to_owned(),
                api_version: api_version.clone(),
                kind: found.kind,
                plural: found.name,
            },
            scope: if found.namespaced { Scope::Namespaced } else { Scope::Cluster },
        });
        Ok(types.collect())
    }
}
