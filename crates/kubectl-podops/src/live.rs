//! Follows the objects of a namespace.

use std::{fmt::Debug, future::ready, sync::Arc, time::Duration};

use futures::StreamExt as _;
use k8s_openapi::{NamespaceResourceScope, api::core::v1::Pod};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    runtime::{
        WatchStreamExt as _,
        reflector::{self, Store, store::WriterDropped},
        watcher::{self, watcher},
    },
};
use parking_lot::Mutex;
use podops_api::{
    collaset::CollaSet, operation_job::OperationJob, pod_decoration::PodDecoration,
    transition_rule::PodTransitionRule, well_known,
};
use serde::de::DeserializeOwned;
use tokio::{sync::Notify, task::JoinSet, time::sleep};

use crate::{clock, explain::Facts, facts::absent_operators};

/// Interval at which the Leases of the operators are read.
const LEASE_INTERVAL: Duration = Duration::from_secs(10);

/// The objects of a namespace, kept up to date until this is dropped.
pub struct Live {
    sets: Store<CollaSet>,
    pods: Store<Pod>,
    rules: Store<PodTransitionRule>,
    decorations: Store<PodDecoration>,
    jobs: Store<OperationJob>,
    absent_operators: Arc<Mutex<Vec<String>>>,
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
        let (changed, mut tasks) = (Arc::new(Notify::new()), JoinSet::new());
        let controlled = watcher::Config::default().labels(well_known::CONTROLLED);
        let all = watcher::Config::default();
        let mut follower =
            Follower { client, namespace, changed: changed.clone(), tasks: &mut tasks };
        let live = Self {
            sets: follower.follow(all.clone()),
            pods: follower.follow(controlled),
            rules: follower.follow(all.clone()),
            decorations: follower.follow(all.clone()),
            jobs: follower.follow(all),
            absent_operators: Arc::default(),
            operator_namespace: operator_namespace.to_owned(),
            changed,
            _tasks: JoinSet::new(),
        };
        let (absent, client) = (live.absent_operators.clone(), client.clone());
        let operator_namespace = operator_namespace.to_owned();
        tasks.spawn(async move {
            loop {
                if let Ok(operators) = absent_operators(&client, &operator_namespace).await {
                    *absent.lock() = operators;
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
        Facts {
            sets: values(&self.sets),
            pods: self.pods.state(),
            rules: values(&self.rules),
            decorations: values(&self.decorations),
            jobs: values(&self.jobs),
            absent_operators: self.absent_operators.lock().clone(),
            operator_namespace: self.operator_namespace.clone(),
            now: clock::now(),
        }
    }
}

fn values<K: Resource<DynamicType = ()> + Clone + 'static>(store: &Store<K>) -> Vec<K> {
    store.state().iter().map(|object| (**object).clone()).collect()
}

/// Starts watches.
struct Follower<'a> {
    client: &'a Client,
    namespace: &'a str,
    changed: Arc<Notify>,
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
            .reflect(writer)
            .touched_objects();
        let changed = self.changed.clone();
        self.tasks.spawn(events.for_each(move |_| {
            changed.notify_one();
            ready(())
        }));
        store
    }
}
