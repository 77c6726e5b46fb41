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
    lease::Held,
    metrics::Metrics,
    operator::Stop,
    watch::{Key, key},
};
use crate::backoff;

/// When to look at an object again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// When something changes.
    OnChange,
    /// When something changes, and after this time.
    After(Duration),
    /// The cache has not seen the last write: nothing was decided.
    Stale,
}

/// A reconcile that came to nothing.
#[derive(Debug)]
pub struct Failure {
    /// Which wait it asks for.
    pub kind: backoff::Kind,
    /// Its name in metrics: from a closed set.
    pub class: &'static str,
    /// What happened.
    pub error: anyhow::Error,
    /// The longest wait, if something else is due before.
    pub within: Option<Duration>,
}

impl Failure {
    /// One that trying again may mend.
    #[must_use]
    pub fn transient(class: &'static str, error: impl Into<anyhow::Error>) -> Self {
        Self { kind: backoff::Kind::Transient, class, error: error.into(), within: None }
    }

    /// A write that the server refuses, in these words.
    #[must_use]
    pub fn refused(message: String) -> Self {
        let error = anyhow::anyhow!(message).context("the write was refused");
        Self { kind: backoff::Kind::Refused, class: "refused", error, within: None }
    }

    /// The same, with something else due after this time.
    #[must_use]
    pub fn within(self, within: Option<Duration>) -> Self {
        Self { within, ..self }
    }
}

/// How long to wait for the cache to see a write before looking without it: an event can be lost.
const STALE_WAIT: Duration = Duration::from_secs(5);

/// The longest time between two reconciles of one object that changes all the time.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// What is driven, and how.
pub struct Drive<K: Resource<DynamicType = ()> + 'static> {
    /// Tells when an object changed; keeps `store` up to date.
    pub objects: futures::stream::BoxStream<'static, Result<K, watcher::Error>>,
    /// The objects.
    pub store: Store<K>,
    /// Names objects that other things changed for.
    pub triggers: futures::stream::BoxStream<'static, ObjectRef<K>>,
    /// How many objects are reconciled at a time.
    pub concurrency: u16,
    /// The shortest time between two reconciles of one object.
    pub pause: Duration,
    /// How long a reconcile may take.
    pub deadline: Duration,
    /// How long reconciles under way may take to end.
    pub grace: Duration,
    /// Whether to act.
    pub lease: Held,
    /// Where work is counted.
    pub metrics: Metrics,
}

#[derive(Default)]
struct Memory {
    failures: BTreeMap<Key, u32>,
    not_before: BTreeMap<Key, Instant>,
    waiting: BTreeSet<Key>,
}

struct Context {
    memory: Mutex<Memory>,
    pause: Duration,
    deadline: Duration,
    lease: Held,
    metrics: Metrics,
}

impl Context {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enqueue(&self, key: Key) {
        let mut memory = self.memory();
        memory.waiting.insert(key);
        self.metrics.queue_depth.set(i64::try_from(memory.waiting.len()).unwrap_or(i64::MAX));
    }

    /// Takes an object off the queue; tells how much longer it has to pause.
    fn dequeue(&self, key: &Key) -> Option<Duration> {
        let mut memory = self.memory();
        let left =
            memory.not_before.get(key).and_then(|at| at.checked_duration_since(Instant::now()));
        if left.is_none() {
            memory.waiting.remove(key);
            self.metrics.queue_depth.set(i64::try_from(memory.waiting.len()).unwrap_or(i64::MAX));
        }
        left.filter(|left| !left.is_zero())
    }

    /// Forgets an object that was gone by its turn.
    fn forget(&self, key: &Key) {
        let mut memory = self.memory();
        memory.failures.remove(key);
        memory.not_before.remove(key);
        memory.waiting.remove(key);
        self.metrics.queue_depth.set(i64::try_from(memory.waiting.len()).unwrap_or(i64::MAX));
    }

    /// Notes how a reconcile ended, and says when to come back.
    fn conclude(&self, key: Key, busy: Duration, result: Result<Next, Failure>) -> Action {
        let class = match &result {
            Ok(Next::Stale) => "stale",
            Ok(Next::OnChange | Next::After(_)) => "done",
            Err(failure) => failure.class,
        };
        self.metrics.reconciles.with_label_values(&[class]).inc();
        let mut memory = self.memory();
        if !self.pause.is_zero() {
            // What takes much work to look at is looked at less often, so that one giant does not
            // take the whole processor. Waiting for answers is no work.
            let pause = self.pause.max((busy * 2).min(LONGEST_PAUSE));
            memory.not_before.insert(key.clone(), Instant::now() + pause);
            if memory.not_before.len() > memory.waiting.len() + 1000 {
                memory.not_before.retain(|_, at| *at > Instant::now());
            }
        }
        match result {
            Ok(next) => {
                memory.failures.remove(&key);
                match next {
                    Next::OnChange => Action::await_change(),
                    Next::After(wait) => Action::requeue(wait),
                    Next::Stale => {
                        self.metrics.stale_skips.inc();
                        Action::requeue(STALE_WAIT)
                    }
                }
            }
            Err(failure) => {
                let count = memory.failures.entry(key).or_default();
                *count = count.saturating_add(1);
                let wait = backoff::wait(failure.kind, *count);
                let wait = failure.within.map_or(wait, |within| wait.min(within));
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
pub async fn drive<K, F, Fut>(drive: Drive<K>, stop: Stop, reconcile: F) -> anyhow::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    F: Fn(Arc<K>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Next, Failure>> + Send + 'static,
{
    let context = Arc::new(Context {
        memory: Mutex::default(),
        pause: drive.pause,
        deadline: drive.deadline,
        lease: drive.lease.clone(),
        metrics: drive.metrics,
    });
    let reconcile = Arc::new(reconcile);
    let (ends, grace) = (stop.clone(), drive.grace);
    let run = Controller::for_stream(queued(drive.objects, &context), drive.store)
        .with_config(controller::Config::default().concurrency(drive.concurrency))
        .reconcile_on(drive.triggers.inspect({
            let context = context.clone();
            move |object| {
                context
                    .enqueue((object.namespace.clone().unwrap_or_default(), object.name.clone()));
            }
        }))
        .reconcile_all_on(stream::once(drive.lease.wait()))
        .graceful_shutdown_on(stop.wait())
        .run(
            move |object: Arc<K>, context: Arc<Context>| {
                let reconcile = reconcile.clone();
                async move {
                    Ok::<_, std::convert::Infallible>(once(object, &context, &*reconcile).await)
                }
            },
            |_, impossible, _| match *impossible {},
            context.clone(),
        )
        .for_each(|result| {
            match result {
                Ok(_) => {}
                // An everyday thing.
                Err(controller::Error::ObjectNotFound(gone)) => {
                    context.forget(&(gone.namespace.unwrap_or_default(), gone.name));
                }
                Err(error) => tracing::debug!(%error, "Skipping"),
            }
            std::future::ready(())
        });
    // The controller's own shutdown waits for ever for a watch that never got ready.
    tokio::select! {
        () = run => Ok(()),
        () = async { ends.wait().await; tokio::time::sleep(grace).await } => Ok(()),
    }
}

fn queued<K: Resource<DynamicType = ()>>(
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

async fn once<K, F, Fut>(object: Arc<K>, context: &Context, reconcile: &F) -> Action
where
    K: Resource<DynamicType = ()>,
    F: Fn(Arc<K>) -> Fut,
    Fut: Future<Output = Result<Next, Failure>>,
{
    let key = key(&*object);
    if !context.lease.is_held() {
        return Action::await_change();
    }
    if let Some(pause) = context.dequeue(&key) {
        return Action::requeue(pause);
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
        Err(Failure {
            kind: backoff::Kind::Transient,
            class: "timeout",
            error: anyhow::anyhow!("no end within {:?}", context.deadline),
            within: None,
        })
    });
    context.metrics.reconcile_seconds.observe(began.elapsed().as_secs_f64());
    context.conclude(key, busy, result)
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
    fn work(events: Vec<Event<ConfigMap>>) -> Drive<ConfigMap> {
        let (store, writer) = reflector::store();
        let events = stream::iter(events.into_iter().map(Ok)).chain(stream::pending());
        Drive {
            objects: events.reflect(writer).touched_objects().boxed(),
            store,
            triggers: stream::pending().boxed(),
            concurrency: 1,
            pause: Duration::ZERO,
            deadline: Duration::from_secs(60),
            grace: GRACE,
            lease: Held::always(),
            metrics: Metrics::register(&Registry::new()).unwrap(),
        }
    }

    /// Trap 1 of kube 5: its own graceful shutdown waits for such a watch for ever.
    #[tokio::test(start_paused = true)]
    async fn ends_in_time_though_a_watch_never_got_ready() {
        let (end, stop) = Stop::new();
        let driven = drive(work(Vec::new()), stop, |_| async { Ok(Next::OnChange) });
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
        let work = work(vec![Event::Init, Event::InitApply(object), Event::InitDone]);
        let reconciles = work.metrics.reconciles.clone();
        let (end, stop) = Stop::new();
        let (end, tries) = (Arc::new(end), Arc::new(AtomicU32::new(0)));
        let driven = drive(work, stop, move |_| {
            let (end, tries) = (end.clone(), tries.clone());
            async move {
                if tries.fetch_add(1, Ordering::Relaxed) == 0 {
                    std::future::pending::<()>().await;
                }
                end.send_replace(true);
                Ok(Next::OnChange)
            }
        });
        timeout(Duration::from_secs(300), driven).await.expect("it hangs").unwrap();
        assert_eq!(reconciles.with_label_values(&["timeout"]).get(), 1);
        assert_eq!(reconciles.with_label_values(&["done"]).get(), 1);
    }
}
