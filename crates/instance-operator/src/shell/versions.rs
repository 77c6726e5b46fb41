//! OperatorVersions of the cluster, converted for planning.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
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
    /// Times at which ServiceAccounts were found to have the right to get OperatorVersions of other
    /// namespaces.
    permitted: Mutex<BTreeMap<String, Instant>>,
}

/// Time for which a right is not checked again.
const PERMISSION: Duration = Duration::from_secs(60);
/// Maximum number of rights in memory.
const PERMITTED_MAX: usize = 1_024;

impl Versions {
    pub(super) fn new(client: Client, store: Arc<IndexedStore<OperatorVersion>>) -> Self {
        Self { client, store, known: Mutex::default(), permitted: Mutex::default() }
    }

    /// Progress of the watch of OperatorVersions.
    pub(super) fn progress(&self) -> &WatchProgress {
        &self.store.progress
    }

    /// Adds the OperatorVersion of an Instance, and its dependencies. One of another namespace is
    /// added only if `reader`, the client of the Instance's ServiceAccount, may get it.
    ///
    /// # Errors
    ///
    /// If the OperatorVersion is not in the cache and cannot be read.
    pub(super) async fn add_to(
        &self,
        observed: &mut Observed,
        reader: Option<&Client>,
    ) -> kube::Result<()> {
        let key = observed.version_key();
        let (namespace, name) = key.split_once('/').unwrap_or_default();
        if let Some(reader) = reader.filter(|_| observed.is_version_foreign())
            && !self.is_readable(observed, reader, &key).await?
        {
            return Ok(());
        }
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

    /// Returns whether the ServiceAccount of an Instance may get an OperatorVersion of another
    /// namespace, as far as was known at most [`PERMISSION`] ago.
    async fn is_readable(
        &self,
        observed: &Observed,
        reader: &Client,
        key: &str,
    ) -> kube::Result<bool> {
        let account = &observed.spec.service_account_name;
        let request = format!("{}/{account} {key}", observed.namespace);
        let permitted = self.permitted.lock().get(&request).copied();
        if permitted.is_some_and(|since| since.elapsed() < PERMISSION) {
            return Ok(true);
        }
        let (namespace, name) = key.split_once('/').unwrap_or_default();
        if !is_path_segment(namespace) || !is_path_segment(name) {
            return Ok(false);
        }
        let versions: Api<OperatorVersion> = Api::namespaced(reader.clone(), namespace);
        match versions.get_metadata_opt(name).await {
            Ok(found) => {
                let mut permitted = self.permitted.lock();
                permitted.retain(|_, since| since.elapsed() < PERMISSION);
                if found.is_some() && permitted.len() < PERMITTED_MAX {
                    permitted.insert(request, Instant::now());
                }
                Ok(found.is_some())
            }
            Err(kube::Error::Api(status)) if status.is_forbidden() => Ok(false),
            Err(error) => Err(error),
        }
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
