//! Follows the objects of a namespace.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    future::ready,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::StreamExt as _;
use k8s_openapi::{NamespaceResourceScope, api::core::v1::Pod};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    runtime::{
        WatchStreamExt as _,
        reflector::{self, Store, store::WriterDropped},
        watcher::{self, Event, watcher},
    },
};
use parking_lot::Mutex;
use podops_api::{
    collaset::CollaSet, operation_job::OperationJob, pod_decoration::PodDecoration,
    transition_rule::PodTransitionRule, well_known,
};
use podops_terminal::{clock, errors::one_line};
use serde::de::DeserializeOwned;
use tokio::{sync::Notify, task::JoinSet, time::sleep};

use crate::{
    answer::{is_not_found, rejection},
    explain::Facts,
    facts::{self, Operators},
};

/// Interval at which the Leases of the operators are read.
const LEASE_INTERVAL: Duration = Duration::from_secs(10);

/// Time for which a watch must fail before it is reported: a watch that has expired is started
/// again at once.
const REPORT_AFTER: Duration = Duration::from_secs(5);

/// The objects of a namespace, kept up to date until this is dropped.
pub struct Live {
    sets: Store<CollaSet>,
    pods: Store<Pod>,
    rules: Store<PodTransitionRule>,
    decorations: Store<PodDecoration>,
    jobs: Store<OperationJob>,
    operators: Arc<Mutex<Option<Operators>>>,
    failing: Failing,
    operator_namespace: String,
    changed: Arc<Notify>,
    _tasks: JoinSet<()>,
}

impl Live {
    /// Starts to follow the objects, and waits for the first list of CollaSets and Pods.
    ///
    /// # Errors
    ///
    /// If a watch ends, which does not happen.
    pub async fn start(
        client: &Client,
        namespace: &str,
        operator_namespace: &str,
    ) -> Result<Self, WriterDropped> {
        let changed = Arc::new(Notify::new());
        let mut tasks = JoinSet::new();
        let controlled = watcher::Config::default().labels(well_known::CONTROLLED);
        let all = watcher::Config::default();
        let failing = Failing::default();
        let mut follower = Follower {
            client,
            namespace,
            changed: changed.clone(),
            failing: failing.clone(),
            tasks: &mut tasks,
        };
        let live = Self {
            sets: follower.follow(all.clone()),
            pods: follower.follow(controlled),
            rules: follower.follow(all.clone()),
            decorations: follower.follow(all.clone()),
            jobs: follower.follow(all),
            operators: Arc::default(),
            failing,
            operator_namespace: operator_namespace.to_owned(),
            changed,
            _tasks: JoinSet::new(),
        };
        let operators = live.operators.clone();
        let client = client.clone();
        let operator_namespace = operator_namespace.to_owned();
        tasks.spawn(async move {
            loop {
                if let Ok(read) = facts::operators(&client, &operator_namespace).await {
                    *operators.lock() = Some(read);
                }
                sleep(LEASE_INTERVAL).await;
            }
        });
        live.sets.wait_until_ready().await?;
        live.pods.wait_until_ready().await?;
        Ok(Self { _tasks: tasks, ..live })
    }

    /// Waits until an object has changed since the last call.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The objects as they are now.
    #[must_use]
    pub fn facts(&self) -> Facts {
        let operators = self.operators.lock();
        let unknown = operators.as_ref().and_then(|known| known.unknown.clone());
        Facts {
            sets: values(&self.sets),
            pods: self.pods.state(),
            rules: values(&self.rules),
            decorations: values(&self.decorations),
            jobs: values(&self.jobs),
            absent_operators: operators.as_ref().map(Operators::known_absent).unwrap_or_default(),
            operator_namespace: self.operator_namespace.clone(),
            unknown: unknown.into_iter().chain(self.failing.reports(Instant::now())).collect(),
            now: clock::now(),
        }
    }
}

/// Watches that fail, by resource: since when, and the error.
#[derive(Clone, Default)]
struct Failing(Arc<Mutex<BTreeMap<String, (Instant, String)>>>);

impl Failing {
    /// Records an event of the watch of a resource, or its error.
    fn record<T>(&self, resource: &str, event: Result<Event<T>, watcher::Error>) {
        let mut failing = self.0.lock();
        match event {
            Err(error) if !is_not_served(&error) => {
                let since = failing.get(resource).map_or_else(Instant::now, |(since, _)| *since);
                failing.insert(resource.to_owned(), (since, one_line(&error.into())));
            }
            // Another attempt begins.
            Ok(Event::Init) => {}
            Err(_) | Ok(_) => drop(failing.remove(resource)),
        }
    }

    /// Returns a sentence for each resource whose watch has failed for longer than
    /// [`REPORT_AFTER`].
    fn reports(&self, now: Instant) -> Vec<String> {
        let failing = self.0.lock();
        let long = failing
            .iter()
            .filter(|(_, (since, _))| now.saturating_duration_since(*since) > REPORT_AFTER);
        let reports = long.map(|(resource, (_, error))| {
            format!("{resource} may be out of date, because they cannot be watched: {error}")
        });
        reports.collect()
    }
}

fn is_not_served(error: &watcher::Error) -> bool {
    rejection(error).is_some_and(is_not_found)
}

fn values<K: Resource<DynamicType = ()> + Clone + 'static>(store: &Store<K>) -> Vec<K> {
    store.state().iter().map(|object| (**object).clone()).collect()
}

/// Starts watches.
struct Follower<'a> {
    client: &'a Client,
    namespace: &'a str,
    changed: Arc<Notify>,
    failing: Failing,
    tasks: &'a mut JoinSet<()>,
}

impl Follower<'_> {
    /// Watches a collection.
    fn follow<K>(&mut self, config: watcher::Config) -> Store<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Debug
            + Send
            + Sync
            + 'static,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), self.namespace);
        let (store, writer) = reflector::store();
        let events = watcher(api, config)
            .default_backoff()
            .modify(|object| object.managed_fields_mut().clear())
            .reflect(writer);
        let changed = self.changed.clone();
        let failing = self.failing.clone();
        self.tasks.spawn(events.for_each(move |event| {
            failing.record(&K::plural(&()), event);
            changed.notify_one();
            ready(())
        }));
        store
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn error(code: u16) -> Result<Event<Pod>, watcher::Error> {
        let status = Status { code, message: "pods is forbidden".to_owned(), ..Status::default() };
        Err(watcher::Error::InitialListFailed(kube::Error::Api(status.boxed())))
    }

    #[test]
    fn a_watch_that_fails_for_some_time_is_reported() {
        let failing = Failing::default();
        let later = Instant::now() + REPORT_AFTER * 2;
        failing.record("pods", error(403));
        failing.record("pods", Ok(Event::<Pod>::Init));
        assert_eq!(failing.reports(Instant::now()), Vec::<String>::new());
        let report = failing.reports(later).concat();
        assert!(report.starts_with("pods may be out of date") && report.contains("forbidden"));
        failing.record("pods", Ok(Event::<Pod>::InitDone));
        failing.record("operationjobs", error(404));
        assert_eq!(failing.reports(later), Vec::<String>::new());
    }
}
