//! OperatorVersions of the cluster, converted for planning.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kube::{Api, Client};
use parking_lot::Mutex;
use podops_api::kudo::OperatorVersion;
use podops_client::{
    decode::Decoded,
    object_key::{ObjectKey, is_path_segment},
    shell::store::{IndexedStore, WatchProgress},
};

use crate::{
    dependencies,
    view::{Dependencies, Observed, Version},
};

/// OperatorVersions of the cluster.
pub(super) struct Versions {
    client: Client,
    store: Arc<IndexedStore<OperatorVersion>>,
    /// OperatorVersions that Instances have used, each once in memory.
    known: Mutex<BTreeMap<ObjectKey, Arc<Version>>>,
}

impl Versions {
    pub(super) fn new(client: Client, store: Arc<IndexedStore<OperatorVersion>>) -> Self {
        Self { client, store, known: Mutex::default() }
    }

    /// Progress of the watch of OperatorVersions.
    pub(super) fn progress(&self) -> &WatchProgress {
        &self.store.progress
    }

    /// Adds the OperatorVersion of an Instance, and its dependencies.
    ///
    /// # Errors
    ///
    /// If the OperatorVersion is not in the cache and cannot be read.
    pub(super) async fn add_to(&self, observed: &mut Observed) -> kube::Result<()> {
        let key = observed.version_key();
        let (namespace, name) = key.split_once('/').unwrap_or_default();
        observed.version = self.find(&ObjectKey::new(namespace, name));
        // The watch event of an OperatorVersion created just before the Instance may arrive later.
        if observed.version.is_none() && is_path_segment(namespace) && is_path_segment(name) {
            let versions: Api<Decoded<OperatorVersion>> =
                Api::namespaced(self.client.clone(), namespace);
            let found = versions.get_opt(name).await?.and_then(Decoded::ok);
            observed.version = found.map(|found| Arc::new(Version::of(namespace, &found)));
        }
        observed.dependencies = self.dependencies(observed.version.as_deref());
        Ok(())
    }

    /// Returns the direct and indirect dependencies of an OperatorVersion.
    fn dependencies(&self, version: Option<&Version>) -> Dependencies {
        let mut found = Dependencies::new();
        let mut open: BTreeSet<String> =
            version.map(dependencies::direct).into_iter().flatten().collect();
        while let Some(key) = open.pop_first() {
            let (namespace, name) = key.split_once('/').unwrap_or_default();
            let Some(version) = self.find(&ObjectKey::new(namespace, name)) else { continue };
            let needed = dependencies::direct(&version);
            found.insert(key, version);
            open.extend(needed.into_iter().filter(|key| !found.contains_key(key)));
        }
        found
    }

    fn find(&self, key: &ObjectKey) -> Option<Arc<Version>> {
        let mut known = self.known.lock();
        let Some(stored) = self.store.get(key) else {
            known.remove(key);
            return None;
        };
        let identity = Version::identity_of(&stored);
        if let Some(version) = known.get(key).filter(|version| version.identity == identity) {
            return Some(version.clone());
        }
        let version = Arc::new(Version::of(&key.namespace, &stored));
        known.insert(key.clone(), version.clone());
        Some(version)
    }
}
