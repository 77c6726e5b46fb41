//! Caches that are kept up to date by watches, and how far they have followed them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::Arc,
    time::Duration,
};

use futures::{Stream, StreamExt as _, stream};
use kube::{
    Api, Resource,
    runtime::{
        WatchStreamExt as _,
        reflector::{ObjectRef, Store},
        watcher::{self, Event, watcher},
    },
};
use parking_lot::{Mutex, RwLock};
use serde::de::DeserializeOwned;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::{metrics::Metrics, watch_backoff::WatchBackoff};
use crate::{
    decode::{Decoded, InvalidObject},
    freshness::{CacheVersion, LastWrites},
    object_key::ObjectKey,
    write,
};

/// Number of objects per page of a list. A page is in memory twice while it is received, and an
/// object of the largest size that the API server stores takes 3 MB as JSON, so a page may take 96
/// MB; the smallest memory limit is 128 MiB.
///
/// The streaming lists of kube are no alternative: they are not consistent reads, and with a
/// resourceVersion that makes them consistent, kube ignores deletions that arrive before the list
/// is complete.
pub(super) const PAGE_SIZE: u32 = 16;

/// Number of objects per page after lists have expired repeatedly.
const PAGE_SIZE_MAX: u32 = 256;

/// Time after which a cache that does not contain a write is listed again: the event of the write
/// was lost, or the object left the selector of the watch.
const LIST_AGAIN_AFTER: Duration = Duration::from_secs(4);

/// Watches a collection while the stream is polled; errors are counted and retried with backoff.
/// Objects that cannot be decoded are counted and logged. The collection is listed again if
/// `progress` requests it.
///
/// Lists are consistent reads, never from the API server's cache, so that a restart does not
/// observe an older state.
pub fn decoded_events<K>(
    api: Api<Decoded<K>>,
    config: watcher::Config,
    resource: &'static str,
    metrics: &Metrics,
    progress: &WatchProgress,
) -> impl Stream<Item = Result<Event<Decoded<K>>, watcher::Error>> + Send + use<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let errors = metrics.watch_errors.with_label_values(&[resource]);
    let invalid_objects = metrics.invalid_objects.with_label_values(&[resource]);
    let progress = progress.clone();
    let watches = stream::repeat_with({
        let progress = progress.clone();
        move || {
            let list_again = progress.list_again.clone();
            let requested = Box::pin(async move { list_again.notified().await });
            let config = config.clone().page_size(progress.page_size());
            let backoff = WatchBackoff::default();
            let watch = watcher(api.clone(), config).inspect(backoff.observer());
            watch.backoff(backoff).take_until(requested).boxed()
        }
    });
    watches.flatten().inspect(move |event| match event {
        Ok(
            Event::InitApply(Decoded::Invalid(invalid))
            | Event::Apply(Decoded::Invalid(invalid))
            | Event::Delete(Decoded::Invalid(invalid)),
        ) => {
            invalid_objects.inc();
            let InvalidObject { metadata, error } = &**invalid;
            let namespace = &metadata.namespace;
            let name = &metadata.name;
            tracing::warn!(
                resource,
                namespace,
                name,
                error,
                "Object cannot be decoded; fix or delete it"
            );
        }
        Ok(_) => {}
        Err(error) => {
            errors.inc();
            tracing::warn!(%error, resource, "Watch failed; retrying");
            if has_expired(error) {
                progress.list_in_larger_pages();
            }
        }
    })
}

/// HTTP status of a request for a version that the API server no longer has.
const EXPIRED: u16 = 410;

/// Returns whether a list took longer than the API server keeps its version, 5 minutes by default.
fn has_expired(error: &watcher::Error) -> bool {
    matches!(
        error,
        watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.code == EXPIRED
    )
}

/// Watches a collection as [`decoded_events`], and skips objects that cannot be decoded: a cache
/// keeps the last version that could be decoded until the next list, which does not contain it.
pub fn events<K>(
    api: Api<Decoded<K>>,
    config: watcher::Config,
    resource: &'static str,
    metrics: &Metrics,
    progress: &WatchProgress,
) -> impl Stream<Item = Result<Event<K>, watcher::Error>> + Send + use<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let events = decoded_events(api, config, resource, metrics, progress);
    events.filter_map(|event| std::future::ready(event.map(valid).transpose()))
}

/// Returns the event of an object that could be decoded. The deletion of one that could not is an
/// event nevertheless, so that it does not remain in a cache.
#[must_use]
pub fn valid<K: Clone + DeserializeOwned>(event: Event<Decoded<K>>) -> Option<Event<K>> {
    match event {
        Event::Init => Some(Event::Init),
        Event::InitDone => Some(Event::InitDone),
        Event::InitApply(decoded) => decoded.ok().map(Event::InitApply),
        Event::Apply(decoded) => decoded.ok().map(Event::Apply),
        Event::Delete(decoded) => match decoded.into_result() {
            Ok(object) => Some(Event::Delete(object)),
            Err(invalid) => invalid.metadata_only().map(Event::Delete),
        },
    }
}

/// Returns whether a cache contains the object with this key.
#[must_use]
pub fn contains<K>(store: &Store<K>, key: &ObjectKey) -> bool
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    store.get(&ObjectRef::new(&key.name).within(&key.namespace)).is_some()
}

/// Converts the object of a watch event.
pub fn map_event<A, B>(event: Event<A>, convert: impl Fn(A) -> B) -> Event<B> {
    match event {
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
        Event::InitApply(object) => Event::InitApply(convert(object)),
        Event::Apply(object) => Event::Apply(convert(object)),
        Event::Delete(object) => Event::Delete(convert(object)),
    }
}

/// Progress of a watch: the version of its cache, and whether the first list is complete.
#[derive(Clone, Debug)]
pub struct WatchProgress {
    state: Arc<Mutex<WatchState>>,
    ready: Arc<watch::Sender<bool>>,
    /// Requests another list of the collection.
    list_again: Arc<Notify>,
}

#[derive(Debug)]
struct WatchState {
    version: CacheVersion,
    /// Highest resource version in the list in progress.
    listed: u64,
    /// Time since which the cache has not contained a write, without any event since then.
    behind_since: Option<Instant>,
    /// Number of objects per page of the next list.
    page_size: u32,
}

impl Default for WatchState {
    fn default() -> Self {
        Self {
            version: CacheVersion::default(),
            listed: 0,
            behind_since: None,
            page_size: PAGE_SIZE,
        }
    }
}

impl Default for WatchProgress {
    fn default() -> Self {
        Self {
            state: Arc::default(),
            ready: Arc::new(watch::channel(false).0),
            list_again: Arc::default(),
        }
    }
}

impl WatchProgress {
    /// Returns how far the cache has followed its watch.
    #[must_use]
    pub fn version(&self) -> CacheVersion {
        self.state.lock().version
    }

    /// Reports that the cache does not contain a write yet. If it receives no event for a while,
    /// the collection is listed again: the event of the write was lost, or the written object is no
    /// longer selected by the watch.
    pub fn report_behind(&self) {
        let mut state = self.state.lock();
        let since = *state.behind_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= LIST_AGAIN_AFTER {
            state.behind_since = None;
            self.list_again.notify_one();
        }
    }

    fn page_size(&self) -> u32 {
        self.state.lock().page_size
    }

    /// Lists the collection again, in pages of four times the size: a list of many small objects
    /// takes minutes on a busy API server, which then no longer has its version.
    fn list_in_larger_pages(&self) {
        let mut state = self.state.lock();
        state.page_size = (state.page_size * 4).min(PAGE_SIZE_MAX);
        self.list_again.notify_one();
    }

    /// Returns a channel that becomes true with the first complete list.
    #[must_use]
    pub fn ready(&self) -> watch::Receiver<bool> {
        self.ready.subscribe()
    }

    /// Records an event. Call it after the cache has applied the event.
    pub fn record<K: Resource>(&self, event: &Event<K>) {
        let mut state = self.state.lock();
        state.behind_since = None;
        match event {
            Event::Init => {
                state.version.lists_begun += 1;
                state.listed = 0;
            }
            // Until the list is complete, objects that are not listed yet may be older.
            Event::InitApply(object) => state.listed = state.listed.max(version_of(object)),
            Event::InitDone => {
                let WatchState { version, listed, .. } = &mut *state;
                version.lists_done = version.lists_begun;
                version.resource_version = version.resource_version.max(*listed);
                self.ready.send_replace(true);
            }
            Event::Apply(object) | Event::Delete(object) => {
                let version = &mut state.version.resource_version;
                *version = (*version).max(version_of(object));
            }
        }
    }
}

/// Returns whether the caches contain all writes, and reports those that do not as behind;
/// `progress` returns the progress of a collection's cache.
pub fn are_observed<'a>(
    writes: &LastWrites,
    progress: impl Fn(write::Resource) -> &'a WatchProgress,
) -> bool {
    let unobserved = writes.unobserved_by(|resource| progress(resource).version());
    for resource in &unobserved {
        progress(*resource).report_behind();
    }
    unobserved.is_empty()
}

fn version_of<K: Resource>(object: &K) -> u64 {
    let version = object.meta().resource_version.as_deref();
    version.and_then(|version| version.parse().ok()).unwrap_or_default()
}

struct Contents<K> {
    objects: BTreeMap<ObjectKey, Arc<K>>,
    by_index: BTreeMap<String, BTreeSet<ObjectKey>>,
    /// Keys received by the list in progress.
    listed: Option<BTreeSet<ObjectKey>>,
}

/// Cache with an index, so that the cost of a lookup depends on its result, not on the size of the
/// cache.
pub struct IndexedStore<K> {
    contents: RwLock<Contents<K>>,
    index: fn(&K) -> Option<String>,
    /// Progress of the watch.
    pub progress: WatchProgress,
}

impl<K: Resource + Clone> IndexedStore<K> {
    /// Creates an empty cache, indexed by the value that `index` returns for each object.
    #[must_use]
    pub fn new(index: fn(&K) -> Option<String>) -> Arc<Self> {
        let contents =
            Contents { objects: BTreeMap::new(), by_index: BTreeMap::new(), listed: None };
        Arc::new(Self {
            contents: RwLock::new(contents),
            index,
            progress: WatchProgress::default(),
        })
    }

    /// Returns the object with this key.
    #[must_use]
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.read(|contents| contents.objects.get(key).cloned())
    }

    /// Returns all objects of a namespace whose names start with `prefix`.
    #[must_use]
    pub fn with_name_prefix(&self, namespace: &str, prefix: &str) -> Vec<Arc<K>> {
        let first = ObjectKey::new(namespace, prefix);
        self.read(|contents| {
            let rest = contents.objects.range(first..);
            let matches =
                |key: &ObjectKey| key.namespace == namespace && key.name.starts_with(prefix);
            rest.take_while(|(key, _)| matches(key)).map(|(_, object)| object.clone()).collect()
        })
    }

    /// Returns all objects.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<K>> {
        self.read(|contents| contents.objects.values().cloned().collect())
    }

    /// Returns all objects with this index value, in the order of their keys.
    #[must_use]
    pub fn find(&self, value: &str) -> Vec<Arc<K>> {
        self.read(|contents| {
            let keys = contents.by_index.get(value).into_iter().flatten();
            keys.filter_map(|key| contents.objects.get(key).cloned()).collect()
        })
    }

    /// Applies an event; returns the objects whose owners should be reconciled. After a list these
    /// include the objects that were deleted while the watch was interrupted.
    #[allow(clippy::needless_pass_by_value, reason = "the event is consumed")]
    pub fn apply_event(&self, event: Event<K>) -> Vec<Arc<K>> {
        let mut contents = self.contents.write();
        let changed = match &event {
            Event::Init => {
                contents.listed = Some(BTreeSet::new());
                Vec::new()
            }
            Event::InitApply(object) => {
                if let Some(listed) = &mut contents.listed {
                    listed.insert(ObjectKey::of(object));
                }
                self.put(&mut contents, object)
            }
            Event::Apply(object) => self.put(&mut contents, object),
            Event::Delete(object) => self.drop(&mut contents, &ObjectKey::of(object)),
            Event::InitDone => {
                let listed = contents.listed.take().unwrap_or_default();
                let deleted: Vec<ObjectKey> =
                    contents.objects.keys().filter(|k| !listed.contains(*k)).cloned().collect();
                deleted.iter().flat_map(|key| self.drop(&mut contents, key)).collect()
            }
        };
        drop(contents);
        self.progress.record(&event);
        changed
    }

    fn put(&self, contents: &mut Contents<K>, object: &K) -> Vec<Arc<K>> {
        let key = ObjectKey::of(object);
        let mut changed = self.drop(contents, &key);
        if let Some(value) = (self.index)(object) {
            contents.by_index.entry(value).or_default().insert(key.clone());
        }
        let object = Arc::new(object.clone());
        contents.objects.insert(key, object.clone());
        // One reconcile covers both versions unless the index value, i.e. the owner, has changed.
        changed.retain(|old| (self.index)(old) != (self.index)(&object));
        changed.push(object);
        changed
    }

    fn drop(&self, contents: &mut Contents<K>, key: &ObjectKey) -> Vec<Arc<K>> {
        let Some(old) = contents.objects.remove(key) else { return Vec::new() };
        if let Some(value) = (self.index)(&old)
            && let Some(keys) = contents.by_index.get_mut(&value)
        {
            keys.remove(key);
            if keys.is_empty() {
                contents.by_index.remove(&value);
            }
        }
        vec![old]
    }

    fn read<T>(&self, read_contents: impl FnOnce(&Contents<K>) -> T) -> T {
        read_contents(&self.contents.read())
    }
}

/// Keeps a store up to date while the stream is polled; returns the changed objects as a stream.
pub fn reflect<K>(
    store: Arc<IndexedStore<K>>,
    events: impl Stream<Item = Result<Event<K>, watcher::Error>> + Send + 'static,
) -> impl Stream<Item = Arc<K>> + Send + 'static
where
    K: Resource + Clone + Send + Sync + 'static,
{
    events.flat_map(move |event| {
        stream::iter(event.map_or_else(|_| Vec::new(), |e| store.apply_event(e)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{Client, ResourceExt as _, client::Body};
    use prometheus::Registry;
    use serde_json::json;

    fn object(name: &str, owner: &str, version: u64) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.name = Some(name.to_owned());
        object.metadata.resource_version = Some(version.to_string());
        object.metadata.labels = Some(BTreeMap::from([("owner".to_owned(), owner.to_owned())]));
        object
    }

    fn store() -> Arc<IndexedStore<ConfigMap>> {
        let store =
            IndexedStore::new(|o: &ConfigMap| o.metadata.labels.as_ref()?.get("owner").cloned());
        for event in [
            Event::Init,
            Event::InitApply(object("a", "x", 1)),
            Event::InitApply(object("b", "x", 2)),
            Event::InitDone,
        ] {
            store.apply_event(event);
        }
        store
    }

    fn names(objects: &[Arc<ConfigMap>]) -> Vec<String> {
        objects.iter().map(|o| o.name_any()).collect()
    }

    #[test]
    fn a_relist_returns_objects_that_were_deleted_meanwhile() {
        let store = store();
        store.apply_event(Event::Init);
        store.apply_event(Event::InitApply(object("a", "x", 1)));
        assert_eq!(names(&store.apply_event(Event::InitDone)), ["b"]);
        assert_eq!(names(&store.find("x")), ["a"]);
    }

    #[test]
    fn a_changed_index_value_returns_both_versions() {
        let store = store();
        assert_eq!(store.apply_event(Event::Apply(object("a", "y", 3))).len(), 2);
        assert_eq!(names(&store.find("x")), ["b"]);
        assert_eq!(names(&store.find("y")), ["a"]);
    }

    #[test]
    fn objects_are_found_by_name_prefix() {
        let store = store();
        store.apply_event(Event::Apply(object("ab", "x", 3)));
        assert_eq!(names(&store.with_name_prefix("", "a")), ["a", "ab"]);
        assert!(store.with_name_prefix("other", "a").is_empty());
    }

    #[test]
    fn progress_follows_lists_and_resource_versions() {
        let store = store();
        assert_eq!(
            store.progress.version(),
            CacheVersion { resource_version: 2, lists_begun: 1, lists_done: 1 }
        );
        store.apply_event(Event::Delete(object("a", "x", 9)));
        assert_eq!(store.progress.version().resource_version, 9);
    }

    /// Objects of later pages are older than the list until they are listed.
    #[test]
    fn a_list_counts_only_when_it_is_complete() {
        let store = store();
        store.apply_event(Event::Init);
        store.apply_event(Event::InitApply(object("a", "x", 9)));
        assert_eq!(store.progress.version().resource_version, 2);
        store.apply_event(Event::InitApply(object("b", "x", 5)));
        store.apply_event(Event::InitDone);
        assert_eq!(store.progress.version().resource_version, 9);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cache_that_stays_behind_a_write_is_listed_again() {
        let store = store();
        let requested = || {
            let listed = store.progress.list_again.notified();
            futures::FutureExt::now_or_never(listed).is_some()
        };
        store.progress.report_behind();
        assert!(!requested(), "an event may be on its way");
        tokio::time::advance(LIST_AGAIN_AFTER).await;
        store.progress.report_behind();
        assert!(requested());
        // Not again at once, and not while events arrive.
        store.progress.report_behind();
        assert!(!requested());
        tokio::time::advance(LIST_AGAIN_AFTER).await;
        store.apply_event(Event::Apply(object("a", "x", 3)));
        store.progress.report_behind();
        assert!(!requested());
    }

    /// Returns a client of an API server that no longer has the version of a list at its second
    /// page, if a page has fewer than 256 objects; it records the limits.
    fn slow_server(limits: Arc<Mutex<Vec<String>>>) -> Client {
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            let parameters: BTreeMap<&str, &str> =
                query.split('&').filter_map(|parameter| parameter.split_once('=')).collect();
            let limit = parameters["limit"].to_owned();
            let is_first = !parameters.contains_key("continue");
            let answer = if is_first || limit == "256" {
                let token = if is_first { "next" } else { "" };
                limits.lock().push(limit);
                json!({
                    "apiVersion": "v1", "kind": "ConfigMapList",
                    "items": [{ "metadata": { "name": "a", "resourceVersion": "7" } }],
                    "metadata": { "resourceVersion": "7", "continue": token },
                })
            } else {
                json!({
                    "apiVersion": "v1", "kind": "Status", "status": "Failure",
                    "reason": "Expired", "code": 410, "message": "continue parameter is too old",
                })
            };
            let code = if answer["code"] == 410 { 410 } else { 200 };
            let response = http::Response::builder().status(code);
            let body = Body::from(answer.to_string().into_bytes());
            std::future::ready(response.body(body).map_err(tower::BoxError::from))
        });
        Client::new(service, "ns")
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_expires_is_repeated_in_larger_pages() {
        let limits = Arc::new(Mutex::default());
        let api: Api<Decoded<ConfigMap>> = Api::namespaced(slow_server(limits.clone()), "ns");
        let metrics = Metrics::register(&Registry::new()).unwrap();
        let progress = WatchProgress::default();
        let config = watcher::Config::default();
        let events = events(api, config, "configmaps", &metrics, &progress);
        let is_complete = |event: &Result<_, _>| !matches!(event, Ok(Event::InitDone));
        let listed = events.take_while(|event| std::future::ready(is_complete(event)));
        listed.for_each(|_| std::future::ready(())).await;
        assert_eq!(*limits.lock(), ["16", "64", "256", "256"]);
    }

    #[test]
    fn objects_stay_available_while_a_list_is_in_progress() {
        let store = store();
        store.apply_event(Event::Init);
        assert_eq!(store.find("x").len(), 2);
    }
}
