//! Runs a reconcile function over a collection: kube's Controller, with what it lacks.
//!
//! Added are a deadline for each reconcile, back-off by kind of failure, a pause between two
//! reconciles of one object, waiting for the Lease, the depth of the queue, and an end that comes
//! even if a watch never got ready.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    future::{Future, poll_fn},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{Stream, StreamExt as _, stream};
use kube::{
    Resource,
    runtime::{
        Controller,
        controller::{self, Action},
        reflector::{ObjectRef, Store},
        watcher,
    },
};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout};

use super::{
    lease::Leadership,
    metrics::Metrics,
    operator::Shutdown,
    store::{Key, key},
};
use crate::backoff;

/// When to look at an object again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requeue {
    /// When something changes.
    AwaitChange,
    /// When something changes, and after this time.
    After(Duration),
    /// The cache has not seen the last write: nothing was decided.
    AwaitCache,
}

/// A reconcile that came to nothing.
#[derive(Debug)]
pub struct ReconcileError {
    /// Which wait it asks for.
    pub kind: backoff::Kind,
    /// Its name in metrics: from a closed set.
    pub class: &'static str,
    /// What happened.
    pub error: anyhow::Error,
    /// The longest wait, if something else is due before.
    pub requeue_within: Option<Duration>,
}

impl ReconcileError {
    /// One that trying again may mend.
    #[must_use]
    pub fn transient(class: &'static str, error: impl Into<anyhow::Error>) -> Self {
        Self { kind: backoff::Kind::Transient, class, error: error.into(), requeue_within: None }
    }

    /// A write that the server refuses, in these words.
    #[must_use]
    pub fn refused(message: String) -> Self {
        let error = anyhow::anyhow!(message).context("the write was refused");
        Self { kind: backoff::Kind::Rejected, class: "refused", error, requeue_within: None }
    }

    /// The same, with something else due after this time.
    #[must_use]
    pub fn requeue_within(self, requeue_within: Option<Duration>) -> Self {
        Self { requeue_within, ..self }
    }
}

/// How long to wait for the cache to see a write before looking without it: an event can be lost.
const CACHE_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest time between two reconciles of one object that changes all the time.
const MIN_INTERVAL_MAX: Duration = Duration::from_millis(500);

/// What is driven, and how.
pub struct ControllerConfig<K: Resource<DynamicType = ()> + 'static> {
    /// Tells when an object changed; keeps `store` up to date.
    pub objects: futures::stream::BoxStream<'static, Result<K, watcher::Error>>,
    /// The objects.
    pub store: Store<K>,
    /// Names objects that other things changed for.
    pub triggers: futures::stream::BoxStream<'static, ObjectRef<K>>,
    /// How many objects are reconciled at a time.
    pub concurrency: u16,
    /// The shortest time between two reconciles of one object.
    pub min_interval: Duration,
    /// How long a reconcile may take.
    pub deadline: Duration,
    /// How long reconciles under way may take to end.
    pub grace_period: Duration,
    /// Whether to act.
    pub lease: Leadership,
    /// Where work is counted.
    pub metrics: Metrics,
}

#[derive(Default)]
struct QueueState {
    failures: BTreeMap<Key, u32>,
    not_before: BTreeMap<Key, Instant>,
    waiting: BTreeSet<Key>,
}

struct Context {
    state: Mutex<QueueState>,
    min_interval: Duration,
    deadline: Duration,
    lease: Leadership,
    metrics: Metrics,
}

impl Context {
    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enqueue(&self, key: Key) {
        let mut state = self.state();
        state.waiting.insert(key);
        self.metrics.queue_depth.set(i64::try_from(state.waiting.len()).unwrap_or(i64::MAX));
    }

    /// Takes an object off the queue; tells how much longer it has to pause.
    fn dequeue(&self, key: &Key) -> Option<Duration> {
        let mut state = self.state();
        let left =
            state.not_before.get(key).and_then(|at| at.checked_duration_since(Instant::now()));
        if left.is_none() {
            state.waiting.remove(key);
            self.metrics.queue_depth.set(i64::try_from(state.waiting.len()).unwrap_or(i64::MAX));
        }
        left.filter(|left| !left.is_zero())
    }

    /// Forgets an object that was gone by its turn.
    fn forget(&self, key: &Key) {
        let mut state = self.state();
        state.failures.remove(key);
        state.not_before.remove(key);
        state.waiting.remove(key);
        self.metrics.queue_depth.set(i64::try_from(state.waiting.len()).unwrap_or(i64::MAX));
    }

    /// Notes how a reconcile ended, and says when to come back.
    fn finish(&self, key: Key, busy: Duration, result: Result<Requeue, ReconcileError>) -> Action {
        let class = match &result {
            Ok(Requeue::AwaitCache) => "stale",
            Ok(Requeue::AwaitChange | Requeue::After(_)) => "done",
            Err(failure) => failure.class,
        };
        self.metrics.reconciles.with_label_values(&[class]).inc();
        let mut state = self.state();
        if !self.min_interval.is_zero() {
            // What takes much work to look at is looked at less often, so that one giant does not
            // take the whole processor. Waiting for answers is no work.
            let interval = self.min_interval.max((busy * 2).min(MIN_INTERVAL_MAX));
            state.not_before.insert(key.clone(), Instant::now() + interval);
            if state.not_before.len() > state.waiting.len() + 1000 {
                state.not_before.retain(|_, at| *at > Instant::now());
            }
        }
        match result {
            Ok(next) => {
                state.failures.remove(&key);
                match next {
                    Requeue::AwaitChange => Action::await_change(),
                    Requeue::After(wait) => Action::requeue(wait),
                    Requeue::AwaitCache => {
                        self.metrics.stale_skips.inc();
                        Action::requeue(CACHE_TIMEOUT)
                    }
                }
            }
            Err(failure) => {
                let count = state.failures.entry(key).or_default();
                *count = count.saturating_add(1);
                let wait = backoff::wait(failure.kind, *count);
                let wait = failure.requeue_within.map_or(wait, |limit| wait.min(limit));
                tracing::warn!(
                    error = format!("{:#}", failure.error),
                    class = failure.class,
                    ?wait,
                    "Trying again"
                );
                Action::requeue(wait)
            }
        }
    }
}

/// Reconciles until told to stop.
///
/// # Errors
///
/// If a stream ends before that.
pub async fn run<K, F, Fut>(
    config: ControllerConfig<K>,
    stop: Shutdown,
    reconcile: F,
) -> anyhow::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    F: Fn(Arc<K>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Requeue, ReconcileError>> + Send + 'static,
{
    let context = Arc::new(Context {
        state: Mutex::default(),
        min_interval: config.min_interval,
        deadline: config.deadline,
        lease: config.lease.clone(),
        metrics: config.metrics,
    });
    let reconcile = Arc::new(reconcile);
    let (shutdown, grace_period) = (stop.clone(), config.grace_period);
    let run = Controller::for_stream(enqueue_objects(config.objects, &context), config.store)
        .with_config(controller::Config::default().concurrency(config.concurrency))
        .reconcile_on(config.triggers.inspect({
            let context = context.clone();
            move |object| {
                context
                    .enqueue((object.namespace.clone().unwrap_or_default(), object.name.clone()));
            }
        }))
        .reconcile_all_on(stream::once(config.lease.wait()))
        .graceful_shutdown_on(stop.wait())
        .run(
            move |object: Arc<K>, context: Arc<Context>| {
                let reconcile = reconcile.clone();
                async move {
                    Ok::<_, std::convert::Infallible>(
                        reconcile_once(object, &context, &*reconcile).await,
                    )
                }
            },
            |_, impossible, _| match *impossible {},
            context.clone(),
        )
        .for_each(|result| {
            match result {
                Ok(_) => {}
                // An everyday thing.
                Err(controller::Error::ObjectNotFound(not_found)) => {
                    context.forget(&(not_found.namespace.unwrap_or_default(), not_found.name));
                }
                Err(error) => tracing::debug!(%error, "Skipping"),
            }
            std::future::ready(())
        });
    // The controller's own shutdown waits for ever for a watch that never got ready.
    tokio::select! {
        () = run => Ok(()),
        () = async { shutdown.wait().await; tokio::time::sleep(grace_period).await } => Ok(()),
    }
}

fn enqueue_objects<K: Resource<DynamicType = ()>>(
    objects: impl Stream<Item = Result<K, watcher::Error>> + Send + 'static,
    context: &Arc<Context>,
) -> impl Stream<Item = Result<K, watcher::Error>> + Send + 'static {
    let context = context.clone();
    objects.inspect(move |object| {
        if let Ok(object) = object {
            context.enqueue(key(object));
        }
    })
}

async fn reconcile_once<K, F, Fut>(object: Arc<K>, context: &Context, reconcile: &F) -> Action
where
    K: Resource<DynamicType = ()>,
    F: Fn(Arc<K>) -> Fut,
    Fut: Future<Output = Result<Requeue, ReconcileError>>,
{
    let key = key(&*object);
    if !context.lease.is_leader() {
        return Action::await_change();
    }
    if let Some(remaining) = context.dequeue(&key) {
        return Action::requeue(remaining);
    }
    let (began, mut busy) = (Instant::now(), Duration::ZERO);
    let mut work = pin!(reconcile(object));
    let timed = poll_fn(|cx| {
        let began = Instant::now();
        let polled = work.as_mut().poll(cx);
        busy += began.elapsed();
        polled
    });
    let result = timeout(context.deadline, timed).await.unwrap_or_else(|_| {
        Err(ReconcileError {
            kind: backoff::Kind::Transient,
            class: "timeout",
            error: anyhow::anyhow!("no end within {:?}", context.deadline),
            requeue_within: None,
        })
    });
    context.metrics.reconcile_seconds.observe(began.elapsed().as_secs_f64());
    context.finish(key, busy, result)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::runtime::{WatchStreamExt as _, reflector, watcher::Event};
    use prometheus::Registry;

    use super::*;

    const GRACE: Duration = Duration::from_secs(5);

    /// What a watch says that delivers these events and nothing more.
    fn config(events: Vec<Event<ConfigMap>>) -> ControllerConfig<ConfigMap> {
        let (store, writer) = reflector::store();
        let events = stream::iter(events.into_iter().map(Ok)).chain(stream::pending());
        ControllerConfig {
            objects: events.reflect(writer).touched_objects().boxed(),
            store,
            triggers: stream::pending().boxed(),
            concurrency: 1,
            min_interval: Duration::ZERO,
            deadline: Duration::from_secs(60),
            grace_period: GRACE,
            lease: Leadership::always(),
            metrics: Metrics::register(&Registry::new()).unwrap(),
        }
    }

    /// Trap 1 of kube 5: its own graceful shutdown waits for such a watch for ever.
    #[tokio::test(start_paused = true)]
    async fn ends_in_time_though_a_watch_never_got_ready() {
        let (end, stop) = Shutdown::new();
        let driven = run(config(Vec::new()), stop, |_| async { Ok(Requeue::AwaitChange) });
        end.send_replace(true);
        let began = Instant::now();
        timeout(GRACE * 10, driven).await.expect("it hangs").unwrap();
        assert_eq!(began.elapsed().as_secs(), GRACE.as_secs());
    }

    /// Trap 8: without a deadline a request that is never answered holds its object for ever.
    #[tokio::test(start_paused = true)]
    async fn a_reconcile_without_end_is_given_up_and_tried_again() {
        let mut object = ConfigMap::default();
        object.metadata.name = Some("a".to_owned());
        let config = config(vec![Event::Init, Event::InitApply(object), Event::InitDone]);
        let reconciles = config.metrics.reconciles.clone();
        let (end, stop) = Shutdown::new();
        let (end, tries) = (Arc::new(end), Arc::new(AtomicU32::new(0)));
        let driven = run(config, stop, move |_| {
            let (end, tries) = (end.clone(), tries.clone());
            async move {
                if tries.fetch_add(1, Ordering::Relaxed) == 0 {
                    std::future::pending::<()>().await;
                }
                end.send_replace(true);
                Ok(Requeue::AwaitChange)
            }
        });
        timeout(Duration::from_secs(300), driven).await.expect("it hangs").unwrap();
        assert_eq!(reconciles.with_label_values(&["timeout"]).get(), 1);
        assert_eq!(reconciles.with_label_values(&["done"]).get(), 1);
    }
}
