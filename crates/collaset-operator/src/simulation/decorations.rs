//! PodDecorations in random rollouts: one decoration that adds a container or annotations.

use podops_api::{collaset::CollaSet, well_known};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{SET, World, operator::caches};
use crate::{
    decoration::{plan::plan, render, status::changed},
    shell::{cache::SlimDecoration, observe::decorations::observe_one},
};

/// Name of the decoration.
const DECORATION: &str = "log";
/// Plural of PodDecorations.
const PLURAL: &str = "poddecorations";
/// Images of the container that the decoration adds; the empty one adds an annotation instead.
const SIDECARS: [&str; 3] = ["log1", "log2", ""];

/// Change of the decoration in a random rollout.
#[derive(Clone, Copy, Debug)]
pub(super) enum DecorationEvent {
    Reconcile,
    /// Index into [`SIDECARS`] of the template that the decoration adds.
    Set(usize),
    Partition(Option<usize>),
    Delete,
}

pub(super) fn decoration_events() -> impl Strategy<Value = DecorationEvent> {
    prop_oneof![
        4 => Just(DecorationEvent::Reconcile),
        1 => (0..SIDECARS.len()).prop_map(DecorationEvent::Set),
        1 => prop::option::of(0..4_usize).prop_map(DecorationEvent::Partition),
        1 => Just(DecorationEvent::Delete),
    ]
}

/// Template of the decoration.
fn template(sidecar: &str) -> Value {
    if sidecar.is_empty() {
        let annotations = json!({ "example.com/decorated": "yes" });
        return json!({ "metadata": [{ "annotations": annotations }], "containers": [] });
    }
    let container =
        json!({ "name": "log", "image": sidecar, "injectPolicy": "AfterPrimaryContainer" });
    json!({ "containers": [container], "metadata": [] })
}

impl World {
    pub(super) fn apply_decoration_event(&mut self, event: DecorationEvent) {
        match event {
            DecorationEvent::Reconcile => self.reconcile_decoration(),
            DecorationEvent::Set(sidecar) => self.decorate(SIDECARS[sidecar]),
            DecorationEvent::Partition(partition) => self.set_decoration_partition(partition),
            DecorationEvent::Delete => self.delete_decoration(),
        }
    }

    /// Creates or updates the decoration.
    fn decorate(&mut self, sidecar: &str) {
        if self.cluster.get(PLURAL, DECORATION).is_none() {
            let selector = json!({ "matchLabels": { "app": SET } });
            self.cluster.put(
                PLURAL,
                json!({
                    "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodDecoration",
                    "metadata": { "name": DECORATION, "generation": 1 },
                    "spec": { "selector": selector, "template": template(sidecar) },
                }),
            );
        } else {
            self.edit_decoration(json!({ "template": template(sidecar) }));
        }
    }

    /// Limits the update of the decoration to all instances but this number.
    pub(super) fn set_decoration_partition(&mut self, partition: Option<usize>) {
        if self.cluster.get(PLURAL, DECORATION).is_some() {
            let rolling = json!({ "partition": partition });
            self.edit_decoration(json!({ "updateStrategy": { "rollingUpdate": rolling } }));
        }
    }

    fn edit_decoration(&mut self, spec: Value) {
        self.cluster.change(PLURAL, DECORATION, |decoration| {
            json_patch::merge(&mut decoration["spec"], &spec);
            let generation = decoration["metadata"]["generation"].as_i64().unwrap() + 1;
            decoration["metadata"]["generation"] = json!(generation);
        });
    }

    fn delete_decoration(&mut self) {
        if self.cluster.get(PLURAL, DECORATION).is_some() {
            self.cluster.delete(PLURAL, DECORATION);
        }
    }

    /// Runs one reconcile of the decoration.
    pub(super) fn reconcile_decoration(&mut self) {
        let Some(decoration) = self.cluster.get(PLURAL, DECORATION) else { return };
        let decoration: SlimDecoration = serde_json::from_value(decoration.clone()).unwrap();
        let set = self.cluster.get("collasets", SET);
        let set: Option<CollaSet> = set.map(|set| serde_json::from_value(set.clone()).unwrap());
        let observed = observe_one(&decoration, &caches(&self.cluster), |name| {
            set.clone().filter(|_| name == SET)
        });
        let mut is_removed = false;
        for action in plan(&observed) {
            if let Some(write) = render::render(&observed.decoration, &action) {
                self.cluster.apply(&write);
            }
            is_removed |= self.cluster.get(PLURAL, DECORATION).is_none();
        }
        if let Some(status) = changed(&observed, self.time())
            && !is_removed
        {
            self.cluster.apply(&render::status(&observed.decoration, &status));
        }
    }

    /// Asserts that all live Pods have the decoration's template, or none without a decoration.
    pub(super) fn assert_decorated(&self) {
        let decoration = self.cluster.get(PLURAL, DECORATION);
        let wanted = decoration.map(|d| d["spec"]["template"]["containers"][0]["image"].as_str());
        let label = format!("{}{DECORATION}", well_known::DECORATION_LABEL_PREFIX);
        for pod in self.live() {
            let containers = pod.0["spec"]["containers"].as_array().unwrap();
            let sidecar = containers.iter().find(|container| container["name"] == "log");
            // A restart adds the digest to the reference.
            let image = sidecar.and_then(|sidecar| sidecar["image"].as_str()?.split('@').next());
            assert_eq!(image, wanted.flatten(), "{}", pod.name());
            assert_eq!(pod.has(&label), wanted.is_some(), "{}: label {label}", pod.name());
            let note = &pod.0["metadata"]["annotations"]["example.com/decorated"];
            assert_eq!(!note.is_null(), wanted == Some(None), "{}", pod.name());
        }
    }
}
