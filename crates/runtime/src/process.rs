//! State that the tasks of an operator's process share.

use std::fmt::Debug;

use futures::Stream;
use kube::{
    Api, Client, Resource,
    runtime::watcher::{self, Event},
};
use podops_client::{
    decode::Decoded,
    shell::{
        apply::Applier,
        events::Events,
        metrics::Metrics as ClientMetrics,
        store::{self, WatchProgress},
    },
};
use serde::de::DeserializeOwned;

use crate::{
    args::OperatorArgs, lease::Leadership, metrics::Metrics, shutdown::Shutdown, traces::Traces,
};

/// State that the tasks of an operator's process share; cheap to clone.
#[derive(Clone)]
pub struct Process {
    /// Name of the operator.
    pub name: &'static str,
    /// Flags that all operators share.
    pub args: OperatorArgs,
    /// Client of the API server.
    pub client: Client,
    /// True while this replica is the leader.
    pub lease: Leadership,
    /// Signal to stop, before the Lease is released.
    pub stop: Shutdown,
    /// Records spans of operations.
    pub traces: Traces,
    pub(crate) metrics: Metrics,
    pub(crate) client_metrics: ClientMetrics,
}

impl Process {
    /// Returns an applier that sends up to `concurrency` writes at once.
    #[must_use]
    pub fn applier(&self, concurrency: u16) -> Applier {
        Applier::new(self.client.clone(), self.name, self.client_metrics.clone(), concurrency)
    }

    /// Returns a publisher of the operator's events.
    #[must_use]
    pub fn events(&self) -> Events {
        Events::new(self.client.clone(), self.name)
    }

    /// Watches a collection in all namespaces; see [`store::events`].
    pub fn watch<K>(
        &self,
        config: watcher::Config,
        plural: &'static str,
        progress: &WatchProgress,
    ) -> impl Stream<Item = Result<Event<K>, watcher::Error>> + Send + use<K>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        self.watch_api(Api::all(self.client.clone()), config, plural, progress)
    }

    /// Watches a collection in all namespaces, with the objects that cannot be decoded; see
    /// [`store::decoded_events`].
    pub fn watch_decoded<K>(
        &self,
        config: watcher::Config,
        plural: &'static str,
        progress: &WatchProgress,
    ) -> impl Stream<Item = Result<Event<Decoded<K>>, watcher::Error>> + Send + use<K>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        let api = Api::all(self.client.clone());
        store::decoded_events(api, config, plural, &self.client_metrics, progress)
    }

    /// Watches a collection whose kind is known only at run time; see [`store::events`].
    pub fn watch_api<K>(
        &self,
        api: Api<Decoded<K>>,
        config: watcher::Config,
        plural: &'static str,
        progress: &WatchProgress,
    ) -> impl Stream<Item = Result<Event<K>, watcher::Error>> + Send + use<K>
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        store::events(api, config, plural, &self.client_metrics, progress)
    }
}
