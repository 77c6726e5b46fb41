//! Reconciles namespaces: observes, plans, applies, calls webhooks and reports.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use kube::{Client, runtime::watcher::Event};
use podops_client::{
    decode::InvalidObject,
    event::EventReason,
    shell::{discovery::OptionalResource, events::Events, store::WatchProgress},
};
use podops_runtime::{
    controller::run_off_thread,
    reconcile_error::{Cause, ReconcileError},
    reconciler::{Reconciled, Reconciler, Watched},
    traces::Traces,
    writer::Writer,
};

use super::{caches::Caches, metrics::Metrics, webhook_client::WebhookClient};
use crate::{
    events::{TargetedEvent, events, invalid_rule},
    namespace_state::{NamespaceState, Planned},
    observe::{SlimNamespace, has_operator_metadata, read_rules},
    view::RuleView,
};

/// The controller of namespaces.
pub(super) struct NamespaceController {
    pub(super) client: Client,
    pub(super) writer: Writer,
    pub(super) events: Events,
    pub(super) caches: Caches,
    /// CollaSets, which are optional in a cluster.
    pub(super) sets: OptionalResource,
    pub(super) webhooks: Arc<WebhookClient>,
    pub(super) skipped: Arc<BTreeSet<String>>,
    pub(super) metrics: Metrics,
    pub(super) traces: Traces,
}

impl Watched for SlimNamespace {
    type Object = Self;

    fn decoded(&self) -> Result<&Self, &InvalidObject> {
        Ok(self)
    }
}

impl Reconciler for NamespaceController {
    type Watched = SlimNamespace;
    type Memory = NamespaceState;

    const MIN_INTERVAL: Duration = Duration::from_millis(100);
    const RESYNC: Option<Duration> = Some(Duration::from_secs(600));

    fn writer(&self) -> &Writer {
        &self.writer
    }

    fn events(&self) -> &Events {
        &self.events
    }

    fn invalid(&self) -> Option<&'static EventReason> {
        None
    }

    /// Without the cache of CollaSets, which are optional.
    fn caches(&self) -> Vec<&WatchProgress> {
        let required = self.caches.parts().into_iter().filter(|(part, _)| *part != "collasets");
        required.map(|(_, progress)| progress).collect()
    }

    /// Without the CollaSet CRD its cache is not required, because rules also apply to Pods of
    /// other controllers.
    async fn is_ready(&self) -> Result<bool, ReconcileError> {
        let missing = self.caches.unsynced();
        if missing != ["collasets"] {
            return Ok(missing.is_empty());
        }
        Ok(!self.sets.is_served().await.map_err(Cause::Discovery)?)
    }

    fn observe(&self, _: &Event<SlimNamespace>) {}

    async fn reconcile(
        &self,
        namespace: &SlimNamespace,
        state: &mut NamespaceState,
    ) -> Result<Reconciled, ReconcileError> {
        let name = namespace.metadata.name.as_deref().unwrap_or_default();
        if !self.is_managed(name) {
            self.forget_namespace(name, std::mem::take(state));
            return Ok(Reconciled::AwaitChange);
        }
        self.release(namespace).await;
        let Some(rules) = self.read_rules(name).await? else {
            return Ok(Reconciled::AwaitChange);
        };
        let mut planned = self.observe_and_plan(name, rules, state).await?;
        self.begin_traces(name, &mut planned);
        self.record_metrics(name, &planned, state);
        let planned = self.call_webhooks(name, planned).await?;
        let due = self.apply(namespace, &planned, state).await;
        self.publish(events(name, &planned.observed, &planned.plan)).await;
        Ok(Reconciled::Due(due))
    }
}

impl NamespaceController {
    /// Queues the webhook calls of a plan. Calls that fail at once are observed.
    ///
    /// # Errors
    ///
    /// If preparing them panics.
    async fn call_webhooks(
        &self,
        namespace: &str,
        planned: Planned,
    ) -> Result<Planned, ReconcileError> {
        let Planned { observed, mut plan, now } = planned;
        let calls = std::mem::take(&mut plan.webhook_calls);
        let observed = self.webhooks.enqueue(namespace, observed, calls, now.timestamp).await;
        Ok(Planned { observed: observed.map_err(Cause::Panic)?, plan, now })
    }

    /// Returns true if the namespace has a rule, or a Pod with labels or annotations left by one.
    fn is_managed(&self, namespace: &str) -> bool {
        !self.caches.rules.find(namespace).is_empty()
            || self.caches.pods.find(namespace).iter().any(|pod| has_operator_metadata(pod))
    }

    /// Reads the rules of a namespace. Returns `None` and publishes an event if one is invalid,
    /// which the schema normally prevents.
    ///
    /// The Pods that an invalid rule selects are unknown, so all operations in the namespace are
    /// blocked and no gate is removed.
    ///
    /// # Errors
    ///
    /// If reading them panics.
    async fn read_rules(&self, namespace: &str) -> Result<Option<Vec<RuleView>>, ReconcileError> {
        let rules = self.caches.rules.find(namespace);
        let skipped = self.skipped.clone();
        // A namespace may have more expressions than are kept, which are parsed each time.
        let read = run_off_thread(move || read_rules(rules, &skipped)).await;
        let read = read.map_err(Cause::Panic)?;
        let is_valid = read.invalid.is_empty();
        self.publish(read.invalid.iter().map(invalid_rule)).await;
        Ok(is_valid.then_some(read.rules))
    }

    async fn publish(&self, events: impl IntoIterator<Item = TargetedEvent>) {
        for TargetedEvent { object, event } in events {
            self.events.publish(&object, &event).await;
        }
    }
}
