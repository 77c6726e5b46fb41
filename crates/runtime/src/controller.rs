//! Runs a reconcile function over a collection: extends kube's `Controller`.
//!
//! Adds a timeout for each reconcile, backoff by kind of failure, a minimum interval between two
//! reconciles of one object, fairness between namespaces, leader election, a queue depth metric,
//! and a shutdown that completes even if a watch never became ready.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    fmt::Debug,
    future::{Future, poll_fn},
    sync::Arc,
    time::Duration,
};

use futures::{
    Stream, StreamExt as _,
    channel::mpsc::{self, UnboundedSender},
    stream,
};
use kube::{
    Resource,
    runtime::{
        Controller,
        controller::{self, Action},
        reflector::{ObjectRef, Store},
        watcher,
    },
};
use parking_lot::Mutex;
use podops_client::{backoff, error::Chain, object_key::ObjectKey};
use serde::de::DeserializeOwned;
use tokio::{
    sync::oneshot,
    task::{JoinError, spawn_blocking},
    time::{Instant, sleep, timeout},
};

use crate::{
    lease::Leadership,
    metrics::Metrics,
    process::Process,
    reconcile_error::{Cause, ReconcileError},
    turns::Turns,
};

/// When to reconcile an object again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requeue {
    /// On the next change.
    AwaitChange,
    /// On the next change, and after this time.
    After(Duration),
}

/// Time to wait for the cache to observe a write before reconciling without it: an event can be
/// lost.
const CACHE_TIMEOUT: Duration = Duration::from_secs(5);

/// Time after which an object that waits for a reconcile tries again by itself.
const TURN_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum of the minimum interval between two reconciles of one object.
const MIN_INTERVAL_MAX: Duration = Duration::from_secs(30);

tokio::task_local! {
    /// Work of the current reconcile in other threads: each sends its duration at its end.
    static OFF_THREAD: RefCell<Vec<oneshot::Receiver<Duration>>>;
}

/// Runs, in its own thread, work that may take seconds and does not yield, so that other objects,
/// the Lease and the probes do not wait for it. Its duration is included in the busy time of the
/// reconcile. A thread cannot be ended: the object of a reconcile that has exceeded its deadline is
/// not reconciled again before the work has ended, so there are never more threads than reconciles.
///
/// # Errors
///
/// [`JoinError`] if the work panics.
pub async fn run_off_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let (ended, end) = oneshot::channel();
    let registered = OFF_THREAD.try_with(|running| running.borrow_mut().push(end));
    debug_assert!(registered.is_ok(), "called outside of a reconcile");
    let timed = move || {
        let started = Instant::now();
        let result = work();
        // There is no receiver outside of a reconcile.
        let _ = ended.send(started.elapsed());
        result
    };
    spawn_blocking(timed).await
}

/// Waits until the work of the current reconcile in other threads has ended, and returns its total
/// duration.
async fn off_thread_time() -> Duration {
    let mut total = Duration::ZERO;
    for end in OFF_THREAD.with(RefCell::take) {
        // The sender of work that panicked is dropped.
        total += end.await.unwrap_or_default();
    }
    total
}

/// Objects to reconcile, and the limits of the controller.
pub struct ControllerConfig<K: Resource<DynamicType = ()> + 'static> {
    /// Stream of changed objects, which also updates `store`.
    pub objects: futures::stream::BoxStream<'static, Result<K, watcher::Error>>,
    /// Cache of the objects.
    pub store: Store<K>,
    /// Stream of objects to reconcile because related objects changed.
    pub triggers: futures::stream::BoxStream<'static, ObjectRef<K>>,
    /// Minimum interval between two reconciles of one object.
    pub min_interval: Duration,
    /// Returns true if the caches have observed the operator's last writes for an object. Otherwise
    /// the object is not reconciled, because the decision would be based on its previous state.
    pub is_observed: IsObserved<K>,
}

/// See [`ControllerConfig::is_observed`].
pub type IsObserved<K> = Box<dyn Fn(&K) -> bool + Send + Sync>;

/// Where a controller takes the objects from that it reconciles.
struct Source<K: Resource<DynamicType = ()> + 'static> {
    store: Store<K>,
    is_observed: IsObserved<K>,
}

impl<K: Resource<DynamicType = ()> + Clone> Source<K> {
    /// Returns the object as the cache has it now; `None` until the cache has observed the last
    /// writes for it.
    ///
    /// kube's controller has read `object` before it was this reconcile's turn. The cache may have
    /// observed a write since, so it is read again once the write is observed.
    fn current(&self, object: Arc<K>) -> Option<Arc<K>> {
        let is_observed = (self.is_observed)(&object);
        is_observed.then(|| self.store.get(&ObjectRef::from_obj(&*object)).unwrap_or(object))
    }
}

#[derive(Default)]
struct QueueState {
    /// Consecutive failures by object.
    failures: BTreeMap<ObjectKey, u32>,
    /// Earliest time of the next reconcile by object.
    not_before: BTreeMap<ObjectKey, Instant>,
    /// Objects in the queue.
    waiting: BTreeSet<ObjectKey>,
}

struct Context {
    state: Mutex<QueueState>,
    turns: Mutex<Turns>,
    /// Where objects are sent whose turn it is.
    next: UnboundedSender<ObjectKey>,
    min_interval: Duration,
    deadline: Duration,
    lease: Leadership,
    metrics: Metrics,
}

impl Context {
    fn report_depth(&self, state: &QueueState) {
        self.metrics.queue_depth.set(i64::try_from(state.waiting.len()).unwrap_or(i64::MAX));
    }

    fn enqueue(&self, key: ObjectKey) {
        let mut state = self.state.lock();
        state.waiting.insert(key);
        self.report_depth(&state);
    }

    /// Removes an object from the queue, because another replica reconciles it.
    fn leave(&self, key: &ObjectKey) {
        self.stop_waiting(&mut self.state.lock(), key);
    }

    fn stop_waiting(&self, state: &mut QueueState, key: &ObjectKey) {
        state.waiting.remove(key);
        self.report_depth(state);
    }

    /// Removes an object from the queue; returns the rest of its minimum interval, if it is not
    /// over.
    fn dequeue(&self, key: &ObjectKey) -> Option<Duration> {
        let mut state = self.state.lock();
        let left =
            state.not_before.get(key).and_then(|at| at.checked_duration_since(Instant::now()));
        if left.is_none() {
            self.stop_waiting(&mut state, key);
        }
        left.filter(|left| !left.is_zero())
    }

    /// Removes the state of a deleted object.
    fn forget(&self, key: &ObjectKey) {
        let mut state = self.state.lock();
        state.failures.remove(key);
        state.not_before.remove(key);
        self.stop_waiting(&mut state, key);
        drop(state);
        // The deleted object may have been the next one.
        let next = self.turns.lock().next();
        self.trigger(next);
    }

    /// Queues an object whose turn it is.
    fn trigger(&self, next: Option<ObjectKey>) {
        if let Some(next) = next {
            // The receiver is gone after shutdown has begun.
            let _ = self.next.unbounded_send(next);
        }
    }

    /// Records that nothing was decided about an object, because the cache has not observed the
    /// last write for it.
    fn skip(&self, key: &ObjectKey) -> Action {
        self.metrics.reconciles.with_label_values(&["stale"]).inc();
        self.metrics.stale_skips.inc();
        self.end_turn(key);
        Action::requeue(CACHE_TIMEOUT)
    }

    /// Gives the turn of an object to the next one.
    fn end_turn(&self, key: &ObjectKey) {
        let next = self.turns.lock().finish(key);
        self.trigger(next);
    }

    /// Records the result of a reconcile, and returns when to requeue the object.
    fn finish(
        &self,
        key: ObjectKey,
        busy: Duration,
        result: Result<Requeue, ReconcileError>,
    ) -> Action {
        let class = match &result {
            Ok(Requeue::AwaitChange | Requeue::After(_)) => "success",
            Err(error) => error.cause.class(),
        };
        self.metrics.reconciles.with_label_values(&[class]).inc();
        let mut state = self.state.lock();
        if !self.min_interval.is_zero() {
            // Objects that are expensive to reconcile are reconciled less often, so that one object
            // uses at most a third of a CPU. Time spent waiting for responses is not included.
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
                }
            }
            Err(error) => {
                let count = state.failures.entry(key).or_default();
                *count = count.saturating_add(1);
                let wait = backoff::wait(error.cause.retry(), *count);
                let wait = error.requeue_within.map_or(wait, |limit| wait.min(limit));
                tracing::warn!(
                    error = %Chain(&error),
                    class = error.cause.class(),
                    ?wait,
                    "Reconcile failed; retrying"
                );
                Action::requeue(wait)
            }
        }
    }
}

/// Runs the controller until shutdown.
///
/// # Errors
///
/// Never; `Result` is the type of an operator's [task](super::operator::Operator::task).
pub async fn run<K, F, Fut>(
    process: Process,
    config: ControllerConfig<K>,
    reconcile: F,
) -> Result<(), Infallible>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    F: Fn(Arc<K>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Requeue, ReconcileError>> + Send + 'static,
{
    let Process { args, lease, metrics, stop, .. } = process;
    let (next, turns) = mpsc::unbounded::<ObjectKey>();
    let context = Arc::new(Context {
        state: Mutex::default(),
        turns: Mutex::new(Turns::new(args.max_concurrent_reconciles.into())),
        next,
        min_interval: config.min_interval,
        deadline: args.reconcile_timeout,
        lease: lease.clone(),
        metrics,
    });
    let source = Source { store: config.store.clone(), is_observed: config.is_observed };
    let reconcile = Arc::new((reconcile, source));
    let grace_period = args.shutdown_grace;
    let run = Controller::for_stream(enqueue_objects(config.objects, &context), config.store)
        // Unlimited: `turns` decides which objects are reconciled at a time.
        .with_config(controller::Config::default().concurrency(0))
        .reconcile_on(config.triggers.inspect({
            let context = context.clone();
            move |object| {
                context.enqueue(ObjectKey {
                    namespace: object.namespace.clone().unwrap_or_default(),
                    name: object.name.clone(),
                });
            }
        }))
        .reconcile_on(turns.map(|key| ObjectRef::new(&key.name).within(&key.namespace)))
        .reconcile_all_on(stream::once(lease.wait()))
        .graceful_shutdown_on(stop.clone().wait())
        .run(
            move |object: Arc<K>, context: Arc<Context>| {
                let reconcile = reconcile.clone();
                async move {
                    let (reconcile, source) = &*reconcile;
                    let done = reconcile_once(object, source, &context, reconcile).await;
                    Ok::<_, Infallible>(done)
                }
            },
            |_, impossible, _| match *impossible {},
            context.clone(),
        )
        .for_each(|result| {
            match result {
                Ok(_) => {}
                // Expected: the object was deleted while it was queued.
                Err(controller::Error::ObjectNotFound(not_found)) => {
                    let namespace = not_found.namespace.unwrap_or_default();
                    context.forget(&ObjectKey { namespace, name: not_found.name });
                }
                Err(error) => tracing::debug!(%error, "Ignoring a controller error"),
            }
            std::future::ready(())
        });
    // The graceful shutdown of kube's controller waits indefinitely for a watch that never became
    // ready.
    tokio::select! {
        () = run => Ok(()),
        () = async { stop.wait().await; sleep(grace_period).await } => Ok(()),
    }
}

fn enqueue_objects<K: Resource<DynamicType = ()>>(
    objects: impl Stream<Item = Result<K, watcher::Error>> + Send + 'static,
    context: &Arc<Context>,
) -> impl Stream<Item = Result<K, watcher::Error>> + Send + 'static {
    let context = context.clone();
    objects.inspect(move |object| {
        if let Ok(object) = object {
            context.enqueue(ObjectKey::of(object));
        }
    })
}

async fn reconcile_once<K, F, Fut>(
    object: Arc<K>,
    source: &Source<K>,
    context: &Context,
    reconcile: &F,
) -> Action
where
    K: Resource<DynamicType = ()> + Clone,
    F: Fn(Arc<K>) -> Fut,
    Fut: Future<Output = Result<Requeue, ReconcileError>>,
{
    let key = ObjectKey::of(&*object);
    if !context.lease.is_leader() {
        context.leave(&key);
        return Action::await_change();
    }
    if let Some(remaining) = context.dequeue(&key) {
        return Action::requeue(remaining);
    }
    if !context.turns.lock().start(&key) {
        context.enqueue(key);
        return Action::requeue(TURN_TIMEOUT);
    }
    let Some(object) = source.current(object) else { return context.skip(&key) };
    let started = Instant::now();
    let timed = async {
        let mut reconcile = Box::pin(reconcile(object));
        let mut busy = Duration::ZERO;
        let polled = poll_fn(|cx| {
            let poll_started = Instant::now();
            let polled = reconcile.as_mut().poll(cx);
            busy += poll_started.elapsed();
            polled
        });
        let result = timeout(context.deadline, polled).await;
        drop(reconcile);
        (result, busy + off_thread_time().await)
    };
    let (result, busy) = OFF_THREAD.scope(RefCell::default(), timed).await;
    let result = result.unwrap_or_else(|_| Err(Cause::Timeout(context.deadline).into()));
    context.metrics.reconcile_seconds.observe(started.elapsed().as_secs_f64());
    context.end_turn(&key);
    context.finish(key, busy, result)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use clap::Parser as _;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{
        Client,
        client::Body,
        runtime::{WatchStreamExt as _, reflector, watcher::Event},
    };
    use podops_client::shell::metrics::Metrics as ClientMetrics;
    use prometheus::Registry;

    use super::*;
    use crate::{args::OperatorArgs, shutdown::Shutdown, traces::Traces};

    /// Returns a process with default flags whose API server never answers.
    fn process(stop: Shutdown) -> Process {
        let registry = Registry::new();
        let hanging = tower::service_fn(|_: http::Request<Body>| {
            std::future::pending::<Result<http::Response<Body>, tower::BoxError>>()
        });
        Process {
            name: "test",
            args: Flags::parse_from(["test"]).shared,
            client: Client::new(hanging, "default"),
            lease: Leadership::always(),
            stop,
            metrics: Metrics::register(&registry, "test").unwrap(),
            client_metrics: ClientMetrics::register(&registry).unwrap(),
            traces: Traces::default(),
        }
    }

    #[derive(clap::Parser)]
    struct Flags {
        #[command(flatten)]
        shared: OperatorArgs,
    }

    /// Returns a configuration whose watch delivers these events and then stays silent.
    fn config(events: Vec<Event<ConfigMap>>) -> ControllerConfig<ConfigMap> {
        let (store, writer) = reflector::store();
        let events = stream::iter(events.into_iter().map(Ok)).chain(stream::pending());
        ControllerConfig {
            objects: events.reflect(writer).touched_objects().boxed(),
            store,
            triggers: stream::pending().boxed(),
            min_interval: Duration::ZERO,
            is_observed: Box::new(|_| true),
        }
    }

    /// The event of a write may arrive after kube's controller has read the object, and before the
    /// operator checks whether it has observed the write.
    #[tokio::test]
    async fn an_object_is_read_after_its_last_write_is_observed() {
        let (end, stop) = Shutdown::new();
        let mut object = object("a", 0);
        let mut config = config(Vec::new());
        let (store, mut writer) = reflector::store();
        for event in [Event::Init, Event::InitApply(object.clone()), Event::InitDone] {
            writer.apply_watcher_event(&event);
        }
        config.store = store;
        config.objects = stream::iter([Ok(object.clone())]).chain(stream::pending()).boxed();
        object.metadata.resource_version = Some("2".to_owned());
        let writer = Mutex::new(writer);
        config.is_observed = Box::new(move |_| {
            writer.lock().apply_watcher_event(&Event::Apply(object.clone()));
            true
        });
        let end = Arc::new(end);
        let versions = Arc::new(Mutex::new(Vec::new()));
        let seen = versions.clone();
        let controller = run(process(stop), config, move |object: Arc<ConfigMap>| {
            seen.lock().push(object.metadata.resource_version.clone());
            end.send_replace(true);
            async { Ok(Requeue::AwaitChange) }
        });
        timeout(Duration::from_secs(60), controller).await.expect("is not reconciled").unwrap();
        assert_eq!(*versions.lock(), [Some("2".to_owned())]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_waits_until_its_last_write_is_observed() {
        let (end, stop) = Shutdown::new();
        let mut config =
            config(vec![Event::Init, Event::InitApply(object("a", 0)), Event::InitDone]);
        let asked = AtomicU32::new(0);
        config.is_observed = Box::new(move |_| asked.fetch_add(1, Ordering::Relaxed) == 2);
        let process = process(stop);
        let reconciles = process.metrics.reconciles.clone();
        let skips = process.metrics.stale_skips.clone();
        let controller = run(process, config, move |_| {
            end.send_replace(true);
            async { Ok(Requeue::AwaitChange) }
        });
        timeout(CACHE_TIMEOUT * 3, controller).await.expect("is not reconciled").unwrap();
        assert_eq!(skips.get(), 2);
        assert_eq!(reconciles.with_label_values(&["stale"]).get(), 2);
        assert_eq!(reconciles.with_label_values(&["success"]).get(), 1);
    }

    /// The graceful shutdown of kube 5 waits indefinitely for such a watch.
    #[tokio::test(start_paused = true)]
    async fn shutdown_completes_if_a_watch_never_became_ready() {
        let (end, stop) = Shutdown::new();
        let process = process(stop);
        let grace_period = process.args.shutdown_grace;
        let reconcile = |_| async { Ok(Requeue::AwaitChange) };
        let controller = run(process, config(Vec::new()), reconcile);
        end.send_replace(true);
        let started = Instant::now();
        timeout(grace_period * 10, controller).await.expect("shutdown hangs").unwrap();
        assert_eq!(started.elapsed().as_secs(), grace_period.as_secs());
    }

    #[tokio::test]
    async fn time_in_other_threads_counts_as_busy() {
        let (end, stop) = Shutdown::new();
        let mut config = config(vec![
            Event::Init,
            Event::InitApply(ConfigMap {
                metadata: kube::core::ObjectMeta {
                    name: Some("a".to_owned()),
                    ..Default::default()
                },
                ..ConfigMap::default()
            }),
            Event::InitDone,
        ]);
        config.min_interval = Duration::from_millis(1);
        let end = Arc::new(end);
        let times = Arc::new(Mutex::new(Vec::new()));
        let recorded = times.clone();
        let controller = run(process(stop), config, move |_| {
            let end = end.clone();
            let times = recorded.clone();
            async move {
                times.lock().push(Instant::now());
                if times.lock().len() > 1 {
                    end.send_replace(true);
                }
                let busy = || std::thread::sleep(Duration::from_millis(200));
                run_off_thread(busy).await.map_err(Cause::Panic)?;
                Ok(Requeue::After(Duration::ZERO))
            }
        });
        timeout(Duration::from_secs(60), controller)
            .await
            .expect("is not reconciled again")
            .unwrap();
        let times = times.lock();
        assert!(times[1] - times[0] >= Duration::from_millis(600), "{times:?}");
    }

    #[tokio::test]
    async fn work_that_exceeds_the_deadline_runs_once_at_a_time() {
        let (end, stop) = Shutdown::new();
        let events = vec![Event::Init, Event::InitApply(object("a", 0)), Event::InitDone];
        let mut process = process(stop);
        process.args.reconcile_timeout = Duration::from_millis(20);
        let end = Arc::new(end);
        let running = Arc::new(AtomicU32::new(0));
        let most = Arc::new(AtomicU32::new(0));
        let runs = Arc::new(AtomicU32::new(0));
        let seen = most.clone();
        let counted = runs.clone();
        let controller = run(process, config(events), move |_| {
            let end = end.clone();
            let running = running.clone();
            let seen = seen.clone();
            let counted = counted.clone();
            async move {
                if counted.fetch_add(1, Ordering::Relaxed) == 2 {
                    end.send_replace(true);
                }
                let work = move || {
                    seen.fetch_max(running.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                    // Longer than the deadline and the delay after a failure together.
                    std::thread::sleep(Duration::from_secs(2));
                    running.fetch_sub(1, Ordering::Relaxed);
                };
                run_off_thread(work).await.map_err(Cause::Panic)?;
                Ok(Requeue::AwaitChange)
            }
        });
        timeout(Duration::from_secs(60), controller).await.expect("does not end").unwrap();
        assert_eq!(most.load(Ordering::Relaxed), 1, "{runs:?} runs");
    }

    /// One tenant's objects may be many, and their requests may hang.
    #[tokio::test(start_paused = true)]
    async fn one_namespace_does_not_keep_another_waiting() {
        let objects = (0..100).map(|n| object("a", n)).chain([object("b", 0)]);
        let events = [Event::Init].into_iter().chain(objects.map(Event::InitApply));
        let config = config(events.chain([Event::InitDone]).collect());
        let (end, stop) = Shutdown::new();
        let end = Arc::new(end);
        let started = Instant::now();
        let controller = run(process(stop), config, move |object| {
            let end = end.clone();
            async move {
                if object.metadata.namespace.as_deref() == Some("a") {
                    std::future::pending::<()>().await;
                }
                end.send_replace(true);
                Ok(Requeue::AwaitChange)
            }
        });
        timeout(Duration::from_secs(300), controller).await.expect("b is not reconciled").unwrap();
        // The shutdown waits for the reconciles in progress.
        let waited = started.elapsed();
        assert!(waited < Duration::from_secs(15), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_follower_reports_an_empty_queue() {
        let objects = (0..10).map(|n| Event::InitApply(object("a", n)));
        let events = [Event::Init].into_iter().chain(objects).chain([Event::InitDone]);
        let config = config(events.collect());
        let (end, stop) = Shutdown::new();
        let mut process = process(stop);
        process.lease = Leadership::never();
        let depth = process.metrics.queue_depth.clone();
        // A value that only a report replaces.
        depth.set(-1);
        let reconcile = |_| async { panic!("a follower reconciles nothing") };
        let controller = run(process, config, reconcile);
        let stop = async {
            sleep(Duration::from_secs(5)).await;
            let reported = depth.get();
            end.send_replace(true);
            reported
        };
        let (result, reported) = tokio::join!(controller, stop);
        result.unwrap();
        assert_eq!(reported, 0);
    }

    /// kube's queue returns the object that was queued last first.
    #[tokio::test]
    async fn constant_changes_in_one_namespace_delay_no_other() {
        let objects = [object("b", 0)].into_iter().chain((0..1000).map(|n| object("a", n)));
        let events = [Event::Init].into_iter().chain(objects.map(Event::InitApply));
        let mut config = config(events.chain([Event::InitDone]).collect());
        let changes = stream::iter(0..).then(|n: usize| async move {
            tokio::task::yield_now().await;
            ObjectRef::new(&(n % 1000).to_string()).within("a")
        });
        config.triggers = changes.boxed();
        let (end, stop) = Shutdown::new();
        let end = Arc::new(end);
        let others = Arc::new(AtomicU32::new(0));
        let count = others.clone();
        let controller = run(process(stop), config, move |object| {
            let end = end.clone();
            let others = others.clone();
            async move {
                sleep(Duration::from_millis(1)).await;
                if object.metadata.namespace.as_deref() == Some("b") {
                    end.send_replace(true);
                } else {
                    others.fetch_add(1, Ordering::Relaxed);
                }
                Ok(Requeue::AwaitChange)
            }
        });
        timeout(Duration::from_secs(60), controller).await.expect("b is not reconciled").unwrap();
        let others = count.load(Ordering::Relaxed);
        assert!(others < 500, "b waited for {others} reconciles");
    }

    #[tokio::test(start_paused = true)]
    async fn objects_that_wait_for_their_turn_are_reconciled() {
        let objects = (0..100).map(|n| Event::InitApply(object("a", n)));
        let events = [Event::Init].into_iter().chain(objects).chain([Event::InitDone]);
        let config = config(events.collect());
        let (end, stop) = Shutdown::new();
        let end = Arc::new(end);
        let done = Arc::new(AtomicU32::new(0));
        let started = Instant::now();
        let controller = run(process(stop), config, move |_| {
            let end = end.clone();
            let done = done.clone();
            async move {
                sleep(Duration::from_secs(1)).await;
                if done.fetch_add(1, Ordering::Relaxed) == 99 {
                    end.send_replace(true);
                }
                Ok(Requeue::AwaitChange)
            }
        });
        timeout(Duration::from_secs(300), controller).await.expect("an object waits").unwrap();
        // 12 at a time, none of them by the timeout.
        let waited = started.elapsed();
        assert!(waited < Duration::from_secs(20), "{waited:?}");
    }

    fn object(namespace: &str, n: usize) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.namespace = Some(namespace.to_owned());
        object.metadata.name = Some(n.to_string());
        object
    }

    /// Without a timeout, a request without a response would block its object indefinitely.
    #[tokio::test(start_paused = true)]
    async fn a_reconcile_that_hangs_times_out_and_is_retried() {
        let mut object = ConfigMap::default();
        object.metadata.name = Some("a".to_owned());
        let config = config(vec![Event::Init, Event::InitApply(object), Event::InitDone]);
        let (end, stop) = Shutdown::new();
        let process = process(stop);
        let reconciles = process.metrics.reconciles.clone();
        let end = Arc::new(end);
        let tries = Arc::new(AtomicU32::new(0));
        let controller = run(process, config, move |_| {
            let end = end.clone();
            let tries = tries.clone();
            async move {
                if tries.fetch_add(1, Ordering::Relaxed) == 0 {
                    std::future::pending::<()>().await;
                }
                end.send_replace(true);
                Ok(Requeue::AwaitChange)
            }
        });
        timeout(Duration::from_secs(300), controller).await.expect("reconcile hangs").unwrap();
        assert_eq!(reconciles.with_label_values(&["timeout"]).get(), 1);
        assert_eq!(reconciles.with_label_values(&["success"]).get(), 1);
    }
}
