//! The frame of every reconcile. A [`Reconciler`] observes, plans, applies and reports; the frame
//! decodes its objects, waits for its caches and for its own writes, keeps its memory of an object
//! as long as the object exists, and requeues.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    fmt::Debug,
    future::Future,
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt as _, stream::BoxStream};
use kube::{
    Resource,
    runtime::{
        WatchStreamExt as _,
        reflector::{self, ObjectRef, Store},
        watcher::{self, Event},
    },
};
use parking_lot::Mutex;
use podops_client::{
    decode::{Decoded, InvalidObject},
    event::EventReason,
    object_key::ObjectKey,
    results::{UnfinishedWrites, WriteResults},
    shell::{
        events::Events,
        store::{WatchProgress, contains},
    },
};
use serde::de::DeserializeOwned;
use tracing::Instrument as _;

use crate::{
    controller::{self, ControllerConfig, Requeue},
    operator::Operator,
    process::Process,
    reconcile_error::{Cause, ReconcileError},
    writer::Writer,
};

/// Time until caches that are not complete yet are checked again.
const READINESS_INTERVAL: Duration = Duration::from_millis(100);

/// Object of a watch, which may be one that cannot be decoded.
pub trait Watched:
    Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static
{
    /// The decoded object.
    type Object: Send + Sync;

    /// Returns the object, or why it cannot be decoded.
    ///
    /// # Errors
    ///
    /// [`InvalidObject`] if it cannot be decoded.
    fn decoded(&self) -> Result<&Self::Object, &InvalidObject>;

    /// Kind of the object in logs.
    fn kind_name(&self) -> Cow<'_, str> {
        Self::kind(&())
    }
}

impl<K> Watched for Decoded<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    type Object = K;

    fn decoded(&self) -> Result<&K, &InvalidObject> {
        self.as_result()
    }
}

/// Reconciles the objects of one kind.
pub trait Reconciler: Send + Sync + 'static {
    /// Object as its watch delivers it.
    type Watched: Watched;
    /// Facts about one object that are not stored in the cluster. Dropped when the object is
    /// deleted, and not known after a restart.
    type Memory: Default + Send;

    /// Minimum interval between two reconciles of one object; batches the events of many Pods.
    const MIN_INTERVAL: Duration;
    /// Interval of reconciles when nothing changes; `None` for an object that needs none.
    const RESYNC: Option<Duration>;

    /// Sends the writes about the objects. An object is reconciled once the caches have observed
    /// the last ones.
    fn writer(&self) -> &Writer;

    /// Publishes the event of an object that cannot be decoded.
    fn events(&self) -> &Events;

    /// Reason of the event of an object that cannot be decoded; `None` if its watch skips such
    /// objects.
    fn invalid(&self) -> Option<&'static EventReason>;

    /// Caches that must be complete before the first reconcile.
    fn caches(&self) -> Vec<&WatchProgress>;

    /// Returns whether objects can be reconciled: whether [`caches`](Self::caches) are complete.
    ///
    /// # Errors
    ///
    /// If that cannot be determined.
    fn is_ready(&self) -> impl Future<Output = Result<bool, ReconcileError>> + Send {
        let are_complete = self.caches().iter().all(|cache| cache.version().lists_done > 0);
        std::future::ready(Ok(are_complete))
    }

    /// Updates the reconciler's own caches of the collection, after the cache of the watch has
    /// applied an event.
    fn observe(&self, event: &Event<Self::Watched>);

    /// Reconciles one object. Idempotent: it may be interrupted at any point and run again.
    ///
    /// # Errors
    ///
    /// If a read or a write failed and a retry may help; writes already made are kept.
    fn reconcile(
        &self,
        object: &<Self::Watched as Watched>::Object,
        memory: &mut Self::Memory,
    ) -> impl Future<Output = Result<Reconciled, ReconcileError>> + Send;

    /// Removes the metrics of an object that was deleted or cannot be decoded.
    fn forget_metrics(&self, _: &ObjectKey) {}

    /// Removes the state of a deleted object, except its metrics.
    fn forget(&self, _: &ObjectKey, _: Self::Memory) {}

    /// Removes metrics and state of objects whose deletion no event has reported.
    fn retain(&self, _: &dyn Fn(&ObjectKey) -> bool) {}
}

/// When an object that was reconciled is due again.
#[derive(Debug)]
pub enum Reconciled {
    /// With the next change: nothing is left to do.
    AwaitChange,
    /// At the first of these times, or after [`Reconciler::RESYNC`].
    Due(Due),
}

/// Times at which an object is due without a change, from now.
#[derive(Debug, Default)]
pub struct Due {
    /// Time until the status may be written.
    pub status: Option<Duration>,
    /// Time after which the plan changes.
    pub plan: Option<Duration>,
    /// Time until a rejected write may be sent again.
    pub retry_after: Option<Duration>,
    /// Writes to retry with backoff, which does not delay the status.
    pub unfinished: Option<UnfinishedWrites>,
}

impl Due {
    /// Adds the writes to send again.
    #[must_use]
    pub fn after_writes(self, results: WriteResults) -> Self {
        Self { retry_after: results.retry_after(), unfinished: results.into_unfinished(), ..self }
    }

    fn requeue(self, resync: Option<Duration>) -> Result<Requeue, ReconcileError> {
        let Self { status, plan, retry_after, unfinished } = self;
        if let Some(unfinished) = unfinished {
            return Err(Cause::from(unfinished).requeue_within(status));
        }
        let due = [status, plan, retry_after, resync].into_iter().flatten().min();
        Ok(due.map_or(Requeue::AwaitChange, Requeue::After))
    }
}

/// Watch of the objects to reconcile.
pub struct Objects<K: Watched> {
    /// Events of the collection.
    pub events: BoxStream<'static, watcher::Result<Event<K>>>,
    /// Cache of the watch, and its writer.
    pub store: (Store<K>, reflector::store::Writer<K>),
    /// Objects to reconcile because related objects changed.
    pub triggers: BoxStream<'static, ObjectRef<K>>,
}

/// Adds a controller to an operator.
pub fn start<R: Reconciler>(
    operator: &mut Operator,
    name: &'static str,
    objects: Objects<R::Watched>,
    reconciler: R,
) {
    let (config, frame) = frame(objects, reconciler);
    operator.controller(name, config, move |object| reconcile(object, frame.clone()));
}

/// Runs a controller until shutdown.
///
/// # Errors
///
/// Never; `Result` is the type of an operator's [task](Operator::task).
pub fn run<R: Reconciler>(
    process: Process,
    objects: Objects<R::Watched>,
    reconciler: R,
) -> impl Future<Output = Result<(), Infallible>> + Send {
    let (config, frame) = frame(objects, reconciler);
    controller::run(process, config, move |object| reconcile(object, frame.clone()))
}

fn frame<R: Reconciler>(
    objects: Objects<R::Watched>,
    reconciler: R,
) -> (ControllerConfig<R::Watched>, Arc<Frame<R>>) {
    let Objects { events, store: (store, writer), triggers } = objects;
    let frame = Arc::new(Frame { reconciler, store: store.clone(), memories: Memories::default() });
    let observed = frame.clone();
    let objects = events
        .reflect(writer)
        .inspect(move |event| event.iter().for_each(|event| observed.observe(event)))
        .touched_objects();
    let fresh = frame.clone();
    let config = ControllerConfig {
        objects: objects.boxed(),
        store,
        triggers,
        min_interval: R::MIN_INTERVAL,
        is_observed: Box::new(move |object| fresh.reconciler.writer().is_observed(object)),
    };
    (config, frame)
}

/// Memory of each object that is not being reconciled, with the UID of the object.
type Memories<M> = Mutex<BTreeMap<ObjectKey, (String, M)>>;

/// State that the reconciles of one controller share.
struct Frame<R: Reconciler> {
    reconciler: R,
    store: Store<R::Watched>,
    memories: Memories<R::Memory>,
}

/// Reconciles one object, in the span of its logs.
async fn reconcile<R: Reconciler>(
    object: Arc<R::Watched>,
    frame: Arc<Frame<R>>,
) -> Result<Requeue, ReconcileError> {
    let kind = object.kind_name();
    let metadata = object.meta();
    let namespace = metadata.namespace.clone();
    let name = metadata.name.clone();
    let span = tracing::info_span!("reconcile", %kind, namespace, name);
    frame.reconcile(&object).instrument(span).await
}

impl<R: Reconciler> Frame<R> {
    async fn reconcile(&self, object: &R::Watched) -> Result<Requeue, ReconcileError> {
        let key = ObjectKey::of(object);
        let decoded = match object.decoded() {
            Ok(decoded) => decoded,
            Err(invalid) => {
                self.reconciler.forget_metrics(&key);
                if let Some(reason) = self.reconciler.invalid() {
                    let event = reason.with(invalid.error.clone());
                    self.reconciler.events().publish(&object.object_ref(&()), &event).await;
                }
                return Ok(Requeue::AwaitChange);
            }
        };
        if !self.reconciler.is_ready().await? {
            return Ok(Requeue::After(READINESS_INTERVAL));
        }
        let mut taken = self.take(key, uid_of(object));
        match self.reconciler.reconcile(decoded, &mut taken.memory).await? {
            Reconciled::AwaitChange => Ok(Requeue::AwaitChange),
            Reconciled::Due(due) => due.requeue(R::RESYNC),
        }
    }

    /// Takes the memory of an object, until the returned value is dropped.
    fn take(&self, key: ObjectKey, uid: String) -> Taken<'_, R> {
        let kept = self.memories.lock().remove(&key).filter(|(of, _)| *of == uid);
        let memory = kept.map(|(_, memory)| memory).unwrap_or_default();
        Taken { frame: self, key, uid, memory }
    }

    fn observe(&self, event: &Event<R::Watched>) {
        self.reconciler.observe(event);
        match event {
            Event::Delete(object) => {
                let key = ObjectKey::of(object);
                let kept = self.memories.lock().remove(&key);
                self.forget(&key, &uid_of(object), kept.map(|(_, memory)| memory));
            }
            Event::InitDone => self.retain_existing(),
            Event::Init | Event::InitApply(_) | Event::Apply(_) => {}
        }
    }

    /// Forgets objects that do not exist any more.
    fn retain_existing(&self) {
        let existing: BTreeSet<String> =
            self.store.state().iter().map(|object| uid_of(&**object)).collect();
        // One lock: a reconcile must neither miss its memory nor have it replaced by an older one.
        let mut memories = self.memories.lock();
        let (kept, deleted): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut *memories)
            .into_iter()
            .partition(|(_, (uid, _))| existing.contains(uid));
        *memories = kept;
        drop(memories);
        for (key, (uid, memory)) in deleted {
            self.forget(&key, &uid, Some(memory));
        }
        self.reconciler.writer().retain(|uid| existing.contains(uid));
        self.reconciler.retain(&|key| contains(&self.store, key));
    }

    /// Returns whether the cache has the object, and not a new one of the same name.
    fn exists(&self, key: &ObjectKey, uid: &str) -> bool {
        let found = self.store.get(&ObjectRef::new(&key.name).within(&key.namespace));
        found.is_some_and(|object| uid_of(&*object) == uid)
    }

    fn forget(&self, key: &ObjectKey, uid: &str, memory: Option<R::Memory>) {
        self.reconciler.writer().forget(uid);
        self.reconciler.forget_metrics(key);
        self.reconciler.forget(key, memory.unwrap_or_default());
    }
}

fn uid_of(object: &impl Resource) -> String {
    object.meta().uid.clone().unwrap_or_default()
}

/// Memory of an object that is being reconciled; kept on drop, also if the reconcile exceeds its
/// deadline.
struct Taken<'a, R: Reconciler> {
    frame: &'a Frame<R>,
    key: ObjectKey,
    uid: String,
    memory: R::Memory,
}

impl<R: Reconciler> Drop for Taken<'_, R> {
    fn drop(&mut self) {
        let Self { frame, key, uid, memory } = self;
        let memory = std::mem::take(memory);
        let mut memories = frame.memories.lock();
        // The object may have been deleted during this reconcile, which has recorded metrics since.
        if !frame.exists(key, uid) {
            drop(memories);
            frame.forget(key, uid, Some(memory));
        } else if size_of::<R::Memory>() > 0 {
            memories.insert(key.clone(), (std::mem::take(uid), memory));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{Client, client::Body};
    use podops_client::{
        event::Severity,
        results::WriteResult,
        shell::{apply::Applier, metrics::Metrics},
        write::{FieldValidation, Outcome, PODS, Target, Write},
    };
    use prometheus::Registry;
    use serde_json::{Value, json};

    use super::*;

    static INVALID: EventReason = EventReason {
        name: "ConfigMapInvalid",
        severity: Severity::Warning,
        objects: "ConfigMap",
        meaning: "",
        is_limited: false,
    };

    /// Counts the reconciles of each object in its memory.
    struct Counter {
        writer: Writer,
        events: Events,
        cache: WatchProgress,
        forgotten: Mutex<Vec<u32>>,
        /// Called once, during a reconcile.
        meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    }

    impl Reconciler for Counter {
        type Watched = Decoded<ConfigMap>;
        type Memory = u32;

        const MIN_INTERVAL: Duration = Duration::ZERO;
        const RESYNC: Option<Duration> = Some(Duration::from_secs(600));

        fn writer(&self) -> &Writer {
            &self.writer
        }

        fn events(&self) -> &Events {
            &self.events
        }

        fn invalid(&self) -> Option<&'static EventReason> {
            Some(&INVALID)
        }

        fn caches(&self) -> Vec<&WatchProgress> {
            vec![&self.cache]
        }

        fn observe(&self, event: &Event<Decoded<ConfigMap>>) {
            self.cache.record(event);
        }

        async fn reconcile(
            &self,
            _: &ConfigMap,
            count: &mut u32,
        ) -> Result<Reconciled, ReconcileError> {
            *count += 1;
            if let Some(meanwhile) = self.meanwhile.lock().take() {
                meanwhile();
            }
            Ok(Reconciled::Due(Due { plan: Some(seconds(u64::from(*count))), ..Due::default() }))
        }

        fn forget(&self, _: &ObjectKey, count: u32) {
            self.forgotten.lock().push(count);
        }
    }

    /// A frame, the writer of its cache, and the number of requests that it has sent.
    struct Harness {
        frame: Arc<Frame<Counter>>,
        cache: Arc<Mutex<reflector::store::Writer<Decoded<ConfigMap>>>>,
        requests: Arc<AtomicUsize>,
    }

    impl Harness {
        fn new() -> Self {
            let requests = Arc::new(AtomicUsize::new(0));
            let counted = requests.clone();
            let server = tower::service_fn(move |_: http::Request<Body>| {
                counted.fetch_add(1, Ordering::Relaxed);
                let object = json!({ "metadata": { "name": "a" } }).to_string();
                let response = http::Response::new(Body::from(object.into_bytes()));
                std::future::ready(Ok::<_, tower::BoxError>(response))
            });
            let client = Client::new(server, "ns");
            let metrics = Metrics::register(&Registry::new()).unwrap();
            let progress = WatchProgress::default();
            let applier = Applier::new(client.clone(), "test", metrics, 1);
            let reconciler = Counter {
                writer: Writer::new(applier, &progress, &[]),
                events: Events::new(client, "test"),
                cache: progress,
                forgotten: Mutex::default(),
                meanwhile: Mutex::default(),
            };
            let (store, cache) = reflector::store();
            let frame = Arc::new(Frame { reconciler, store, memories: Memories::default() });
            Self { frame, cache: Arc::new(Mutex::new(cache)), requests }
        }

        /// Delivers the events of a list with these objects.
        fn list(&self, objects: &[Decoded<ConfigMap>]) {
            let listed = objects.iter().cloned().map(Event::InitApply);
            for event in [Event::Init].into_iter().chain(listed).chain([Event::InitDone]) {
                self.deliver(&event);
            }
        }

        fn deliver(&self, event: &Event<Decoded<ConfigMap>>) {
            self.cache.lock().apply_watcher_event(event);
            self.frame.observe(event);
        }

        /// Reconciles an object; returns the number of its reconciles so far.
        async fn reconcile(&self, object: &Decoded<ConfigMap>) -> u64 {
            match self.frame.reconcile(object).await.unwrap() {
                Requeue::After(wait) => wait.as_secs(),
                Requeue::AwaitChange => 0,
            }
        }

        fn forgotten(&self) -> Vec<u32> {
            self.frame.reconciler.forgotten.lock().clone()
        }
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn object(uid: &str, data: &Value) -> Decoded<ConfigMap> {
        let metadata =
            json!({ "name": "a", "namespace": "ns", "uid": uid, "resourceVersion": "1" });
        serde_json::from_value(json!({ "metadata": metadata, "data": data })).unwrap()
    }

    fn valid(uid: &str) -> Decoded<ConfigMap> {
        object(uid, &json!({}))
    }

    #[tokio::test]
    async fn memory_is_kept_until_the_object_is_deleted() {
        let harness = Harness::new();
        let object = valid("1");
        harness.list(std::slice::from_ref(&object));
        assert_eq!(harness.reconcile(&object).await, 1);
        assert_eq!(harness.reconcile(&object).await, 2);
        harness.deliver(&Event::Delete(object));
        assert_eq!(harness.forgotten(), [2]);
        assert!(harness.frame.memories.lock().is_empty());
    }

    #[tokio::test]
    async fn memory_is_dropped_if_the_object_is_deleted_meanwhile() {
        let harness = Arc::new(Harness::new());
        let object = valid("1");
        harness.list(std::slice::from_ref(&object));
        let deleting = harness.clone();
        let deleted = object.clone();
        let meanwhile = move || deleting.deliver(&Event::Delete(deleted));
        *harness.frame.reconciler.meanwhile.lock() = Some(Box::new(meanwhile));
        harness.reconcile(&object).await;
        // Of the event, which found none, and of the end of the reconcile.
        assert_eq!(harness.forgotten(), [0, 1]);
        assert!(harness.frame.memories.lock().is_empty());
    }

    #[tokio::test]
    async fn a_new_object_of_the_same_name_inherits_no_memory() {
        let harness = Harness::new();
        harness.list(&[valid("1")]);
        assert_eq!(harness.reconcile(&valid("1")).await, 1);
        harness.deliver(&Event::Apply(valid("2")));
        assert_eq!(harness.reconcile(&valid("2")).await, 1);
    }

    #[tokio::test]
    async fn memory_is_dropped_if_the_object_is_replaced_meanwhile() {
        let harness = Arc::new(Harness::new());
        let object = valid("1");
        harness.list(std::slice::from_ref(&object));
        let replacing = harness.clone();
        let replaced = object.clone();
        let meanwhile = move || {
            replacing.deliver(&Event::Delete(replaced));
            replacing.deliver(&Event::Apply(valid("2")));
        };
        *harness.frame.reconciler.meanwhile.lock() = Some(Box::new(meanwhile));
        harness.reconcile(&object).await;
        assert_eq!(harness.forgotten(), [0, 1]);
        assert!(harness.frame.memories.lock().is_empty());
    }

    #[tokio::test]
    async fn a_list_drops_the_memory_of_objects_that_it_lacks() {
        let harness = Harness::new();
        harness.list(&[valid("1")]);
        harness.reconcile(&valid("1")).await;
        harness.list(&[valid("1")]);
        assert_eq!(harness.forgotten(), [0; 0]);
        harness.list(&[]);
        assert_eq!(harness.forgotten(), [1]);
    }

    #[tokio::test]
    async fn an_object_waits_until_the_caches_are_complete() {
        let harness = Harness::new();
        let object = valid("1");
        harness.deliver(&Event::Init);
        harness.deliver(&Event::InitApply(object.clone()));
        let requeue = harness.frame.reconcile(&object).await.unwrap();
        assert_eq!(requeue, Requeue::After(READINESS_INTERVAL));
        harness.deliver(&Event::InitDone);
        assert_eq!(harness.reconcile(&object).await, 1);
    }

    #[tokio::test]
    async fn an_undecodable_object_is_reported_and_not_reconciled() {
        let harness = Harness::new();
        let object = object("1", &json!(1));
        harness.list(std::slice::from_ref(&object));
        assert_eq!(harness.reconcile(&object).await, 0);
        assert_eq!(harness.requests.load(Ordering::Relaxed), 1, "an event");
        assert!(harness.frame.memories.lock().is_empty(), "it is not reconciled");
    }

    #[test]
    fn an_object_is_due_at_the_first_time() {
        let due = Due {
            status: Some(seconds(3)),
            plan: Some(seconds(2)),
            retry_after: Some(seconds(4)),
            unfinished: None,
        };
        assert_eq!(due.requeue(Some(seconds(5))).unwrap(), Requeue::After(seconds(2)));
        assert_eq!(Due::default().requeue(Some(seconds(5))).unwrap(), Requeue::After(seconds(5)));
        assert_eq!(Due::default().requeue(None).unwrap(), Requeue::AwaitChange);
    }

    #[test]
    fn the_backoff_of_failed_writes_does_not_delay_the_status() {
        let target = Target::new(PODS, "ns", "web-1");
        let write =
            Write::Create { target, body: Value::Null, validation: FieldValidation::Strict };
        let failed = WriteResult { write, outcome: Ok(Outcome::AlreadyExists), retry_after: None };
        let due = Due { status: Some(seconds(3)), plan: Some(Duration::ZERO), ..Due::default() };
        let error = due.after_writes([failed].into_iter().collect()).requeue(None).unwrap_err();
        // Not the plan's time, which would retry without backoff.
        assert_eq!(error.requeue_within, Some(seconds(3)));
    }
}
