//! Caches of the watched kinds, kept up to date by watches.

use std::sync::Arc;

use futures::{StreamExt as _, stream, stream::BoxStream};
use kube::{
    Resource,
    runtime::{WatchStreamExt as _, reflector::ObjectRef, watcher},
};
use podops_api::{lifecycle::Labels, well_known};
use podops_client::{
    decode::Decoded,
    object_key::ObjectKey,
    shell::store::{IndexedStore, WatchProgress, reflect},
};
use podops_runtime::process::Process;

use crate::{
    observe::{
        DecodedRule, NamespaceObjects, SlimBudget, SlimNamespace, SlimNode, SlimPod, SlimSet,
        SlimStatefulSet, observe, trim_pod,
    },
    view::{Observed, RuleView},
};

/// Caches of the watched kinds, by namespace.
#[derive(Clone)]
pub(super) struct Caches {
    pub(super) rules: Arc<IndexedStore<DecodedRule>>,
    pub(super) pods: Arc<IndexedStore<SlimPod>>,
    sets: Arc<IndexedStore<SlimSet>>,
    stateful_sets: Arc<IndexedStore<SlimStatefulSet>>,
    budgets: Arc<IndexedStore<SlimBudget>>,
    nodes: Arc<IndexedStore<SlimNode>>,
}

/// Pods of a namespace and the resourceVersion at which they were observed.
pub(super) struct Pods {
    pub(super) pods: Vec<Arc<SlimPod>>,
    pub(super) version: u64,
}

impl Caches {
    pub(super) fn new() -> Self {
        Self {
            rules: IndexedStore::new(namespace),
            pods: IndexedStore::new(namespace),
            sets: IndexedStore::new(namespace),
            stateful_sets: IndexedStore::new(namespace),
            budgets: IndexedStore::new(namespace),
            nodes: IndexedStore::new(|_| None),
        }
    }

    /// Caches with the names of their resources.
    pub(super) fn parts(&self) -> [(&'static str, &WatchProgress); 6] {
        [
            ("podtransitionrules", &self.rules.progress),
            ("pods", &self.pods.progress),
            ("collasets", &self.sets.progress),
            ("statefulsets", &self.stateful_sets.progress),
            ("poddisruptionbudgets", &self.budgets.progress),
            ("nodes", &self.nodes.progress),
        ]
    }

    /// Names of the caches that are not synced yet.
    pub(super) fn unsynced(&self) -> Vec<&'static str> {
        let parts = self.parts().into_iter();
        parts
            .filter(|(_, progress)| progress.version().lists_done == 0)
            .map(|(part, _)| part)
            .collect()
    }

    /// Builds the observed state of a namespace from its rules and Pods and from the caches.
    pub(super) fn observe(&self, namespace: &str, rules: Vec<RuleView>, pods: Pods) -> Observed {
        let objects = NamespaceObjects {
            pods: pods.pods,
            pods_version: pods.version,
            sets: self.sets.find(namespace),
            stateful_sets: self.stateful_sets.find(namespace),
            budgets: self.budgets.find(namespace),
        };
        observe(rules, &objects, |node| self.node_labels(node))
    }

    fn node_labels(&self, name: &str) -> Option<Labels> {
        let node = self.nodes.get(&ObjectKey::new("", name))?;
        Some(node.metadata.labels.clone().unwrap_or_default())
    }

    /// Updates the caches from watches, and returns the namespaces of changed objects.
    pub(super) fn watch(&self, process: &Process) -> BoxStream<'static, ObjectRef<SlimNamespace>> {
        let controlled = watcher::Config::default().labels(well_known::CONTROLLED);
        let all = watcher::Config::default();
        let rule_events = process
            .watch_decoded(all.clone(), "podtransitionrules", &self.rules.progress)
            .modify(drop_annotations);
        let pod_events = process.watch(controlled, "pods", &self.pods.progress).modify(trim_pod);
        let set_events = process
            .watch(all.clone(), "collasets", &self.sets.progress)
            .modify(|set: &mut SlimSet| set.metadata.annotations = None);
        let stateful_set_events = process
            .watch(all.clone(), "statefulsets", &self.stateful_sets.progress)
            .modify(|set: &mut SlimStatefulSet| set.metadata.annotations = None);
        let budget_events = process
            .watch(all.clone(), "poddisruptionbudgets", &self.budgets.progress)
            .modify(|budget: &mut SlimBudget| budget.metadata.annotations = None);
        let node_events = process
            .watch(all, "nodes", &self.nodes.progress)
            .modify(|node: &mut SlimNode| node.metadata.annotations = None);
        stream::select_all([
            reflect(self.rules.clone(), rule_events).flat_map(|o| trigger(&*o)).boxed(),
            reflect(self.pods.clone(), pod_events).flat_map(|o| trigger(&*o)).boxed(),
            reflect(self.sets.clone(), set_events).flat_map(|o| trigger(&*o)).boxed(),
            reflect(self.stateful_sets.clone(), stateful_set_events)
                .flat_map(|o| trigger(&*o))
                .boxed(),
            reflect(self.budgets.clone(), budget_events).flat_map(|o| trigger(&*o)).boxed(),
            // Node changes trigger no reconcile: the labels are read with the next one.
            reflect(self.nodes.clone(), node_events).flat_map(|_| stream::empty()).boxed(),
        ])
        .boxed()
    }
}

/// Drops the annotations of a PodTransitionRule, which are not read.
fn drop_annotations(rule: &mut DecodedRule) {
    if let Decoded::Object(rule) = rule {
        Arc::make_mut(rule).metadata.annotations = None;
    }
}

/// Index of the caches: the namespace of an object.
fn namespace<K: Resource>(object: &K) -> Option<String> {
    object.meta().namespace.clone()
}

/// Namespace to reconcile after a change of the object.
fn trigger<K: Resource>(
    object: &K,
) -> stream::Iter<std::option::IntoIter<ObjectRef<SlimNamespace>>> {
    stream::iter(namespace(object).map(|name| ObjectRef::new(&name)))
}
