//! The reconcile of transition-rule-operator.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use podops_api::{
    ids::{PodName, Uid},
    lifecycle::Labels,
};
use podops_simulated_api::Objects;
use serde::de::DeserializeOwned;
use serde_json::Value;
use transition_rule_operator::{
    observe::{NamespaceObjects, SlimNode, observe, read_rules, trim_pod},
    plan::{PodChange, plan},
    render,
    rules::Kind,
    status::statuses,
    view::PodView,
};

use super::{Api, controlled_pods};

const OPERATOR: &str = "transition-rule-operator";

/// Minimum time between two updates of the detail annotation of a waiting Pod.
const ANNOTATE_INTERVAL: SignedDuration = SignedDuration::from_secs(60);

/// The operator.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    node_labels: BTreeMap<String, Labels>,
    /// Time of the last detail annotation, by UID of the Pod.
    annotated_pods: BTreeMap<Uid, Timestamp>,
}

impl Rules {
    /// Returns an operator that has observed the nodes.
    ///
    /// # Errors
    ///
    /// If a Node violates its schema.
    pub(crate) fn new(nodes: Vec<Value>) -> serde_json::Result<Self> {
        let mut node_labels = BTreeMap::new();
        for node in nodes {
            let node: SlimNode = serde_json::from_value(node)?;
            let metadata = node.metadata;
            node_labels
                .insert(metadata.name.unwrap_or_default(), metadata.labels.unwrap_or_default());
        }
        Ok(Self { node_labels, annotated_pods: BTreeMap::new() })
    }

    /// Observes, decides and writes. Returns the time after which to reconcile again without an
    /// event.
    ///
    /// # Errors
    ///
    /// If an object violates the schema of its kind.
    pub(crate) fn reconcile(&mut self, api: &mut Api) -> serde_json::Result<Option<Duration>> {
        let rules = decoded(&api.objects, "podtransitionrules")?;
        if rules.is_empty() {
            return Ok(None);
        }
        let now = api.objects.now;
        let skipped = BTreeSet::from([Kind::Webhook.as_str().to_owned()]);
        let read = read_rules(rules, &skipped);
        // A rule that cannot be read permits nothing.
        if !read.invalid.is_empty() {
            return Ok(None);
        }
        let rules = read.rules;
        let objects = namespace_objects(&api.objects)?;
        let mut observed = observe(rules, &objects, |node| self.node_labels.get(node).cloned());
        for pod in observed.pods.iter_mut().filter(|pod| pod.is_waiting()) {
            pod.object = api.objects.get("pods", &pod.name).cloned().map(Arc::new);
        }
        let plan = plan(&observed, now);
        // Capacity is reserved before it is granted.
        let namespace = api.objects.namespace().to_owned();
        for new in statuses(&observed, &plan, now) {
            api.send(OPERATOR, &render::rule(&namespace, new.rule, &new.status));
        }
        let by_name: BTreeMap<&PodName, &PodView> =
            observed.pods.iter().map(|pod| (&pod.name, pod)).collect();
        for change in &plan.pods {
            if self.may_write(change, now)
                && let Some(pod) = by_name.get(&change.pod)
            {
                api.send(OPERATOR, &render::pod(&namespace, pod, change, now));
            }
        }
        Ok(plan.requeue_after)
    }

    /// Returns false if the change only annotates a Pod that was annotated recently.
    fn may_write(&mut self, change: &PodChange, now: Timestamp) -> bool {
        if !change.only_annotates() {
            return true;
        }
        let last = self.annotated_pods.get(&change.uid);
        let is_due = last.is_none_or(|at| now.duration_since(*at) >= ANNOTATE_INTERVAL);
        if is_due {
            self.annotated_pods.insert(change.uid.clone(), now);
        }
        is_due
    }
}

fn namespace_objects(objects: &Objects) -> serde_json::Result<NamespaceObjects> {
    let mut pods = Vec::new();
    for object in controlled_pods(objects) {
        let mut pod = serde_json::from_value(object)?;
        trim_pod(&mut pod);
        pods.push(Arc::new(pod));
    }
    Ok(NamespaceObjects {
        pods,
        pods_version: objects.version(),
        sets: decoded(objects, "collasets")?,
        stateful_sets: decoded(objects, "statefulsets")?,
        budgets: decoded(objects, "poddisruptionbudgets")?,
    })
}

fn decoded<K: DeserializeOwned>(
    objects: &Objects,
    plural: &str,
) -> serde_json::Result<Vec<Arc<K>>> {
    let objects = objects.all(plural);
    objects.map(|object| serde_json::from_value(object.clone()).map(Arc::new)).collect()
}
