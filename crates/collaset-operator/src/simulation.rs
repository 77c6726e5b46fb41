//! Simulates the operator against an in-memory API server: observe → plan → render → apply on real
//! objects as JSON, with minimal models of scheduler, kubelet, lifecycle-operator and users.
//!
//! Nothing between an object and a write is mocked, so the scenarios and properties tested here
//! cover everything except the network.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::needless_pass_by_value,
    reason = "tests fail by panicking; values keep the calls short"
)]

mod actors;
mod cluster;
mod decorations;
mod faults;
mod kuperator;
mod losses;
mod operator;
mod pace;
mod rollouts;
mod staged;

use std::collections::BTreeMap;

use jiff::Timestamp;
use podops_api::{
    GROUP, VERSION,
    lifecycle::{COLLASET, LabelKind},
    well_known,
};
use serde_json::{Value, json};

use cluster::Cluster;
use operator::Operator;

/// Name of the CollaSet under test.
const SET: &str = "web";

/// A cluster with one CollaSet, and the operator that reconciles it.
#[derive(Clone, Debug)]
struct World {
    cluster: Cluster,
    operator: Operator,
    /// Simulated time, in seconds since the Unix epoch.
    now: i64,
}

impl World {
    /// Creates a cluster with a CollaSet; `spec` is merged over a spec with a template of one
    /// container.
    fn with(spec: Value) -> Self {
        let mut set = json!({
            "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "CollaSet",
            "metadata": { "name": SET, "namespace": "ns", "generation": 1 },
            "spec": {
                "selector": { "matchLabels": { "app": SET } },
                "template": template("v1"),
                "historyLimit": 20,
            },
        });
        json_patch::merge(&mut set["spec"], &spec);
        let mut cluster = Cluster::default();
        cluster.put("collasets", set);
        Self { cluster, operator: Operator::default(), now: 1_000 }
    }

    fn time(&self) -> Timestamp {
        Timestamp::from_second(self.now).unwrap()
    }

    /// Merges a user's change into the CollaSet's spec and increments its generation.
    fn edit(&mut self, spec: Value) {
        self.cluster.change("collasets", SET, |set| {
            json_patch::merge(&mut set["spec"], &spec);
            set["metadata"]["generation"] =
                json!(set["metadata"]["generation"].as_i64().unwrap() + 1);
        });
    }

    /// Replaces the CollaSet's Pod template, see [`template`].
    fn set_image(&mut self, image: &str) {
        self.edit(json!({ "template": template(image) }));
    }

    /// Sets an annotation of the CollaSet.
    fn annotate_set(&mut self, key: &str, value: Value) {
        let change = json!({ "metadata": { "annotations": { key: value } } });
        self.cluster.change("collasets", SET, |set| json_patch::merge(set, &change));
    }

    /// Sets a label of a Pod, or removes it if `value` is `None`.
    fn label(&mut self, pod: &str, key: &str, value: Option<&str>) {
        let change = json!({ "metadata": { "labels": { key: value } } });
        self.cluster.change("pods", pod, |pod| json_patch::merge(pod, &change));
    }

    fn pods(&self) -> Vec<Pod> {
        self.cluster.all("pods").map(|pod| Pod(pod.clone())).collect()
    }

    /// Pods that the CollaSet owns and that are neither terminating nor failed.
    fn live(&self) -> Vec<Pod> {
        self.pods().into_iter().filter(Pod::is_live).collect()
    }

    fn pod(&self, name: &str) -> Option<Pod> {
        self.pods().into_iter().find(|pod| pod.name() == name)
    }

    fn set(&self) -> &Value {
        self.cluster.get("collasets", SET).expect("the CollaSet exists")
    }

    fn status(&self) -> &Value {
        &self.set()["status"]
    }

    /// A numeric status field; 0 if it is not set.
    fn count(&self, field: &str) -> i64 {
        self.status()[field].as_i64().unwrap_or_default()
    }

    /// Entries of the ResourceContext, by instance ID.
    fn contexts(&self) -> BTreeMap<i64, Value> {
        let record = self.cluster.get("resourcecontexts", SET);
        let entries = record.and_then(|r| r["spec"]["contexts"].as_array()).into_iter().flatten();
        entries.map(|e| (e["id"].as_i64().unwrap(), e["data"].clone())).collect()
    }

    /// PersistentVolumeClaims that are not being deleted.
    fn claims(&self) -> Vec<Value> {
        let claims = self.cluster.all("persistentvolumeclaims");
        claims.filter(|claim| claim["metadata"]["deletionTimestamp"].is_null()).cloned().collect()
    }

    /// Runs one complete reconcile of the operator.
    fn reconcile(&mut self) {
        self.observe_and_plan();
        self.apply_plan(usize::MAX);
    }

    /// Runs operator, kubelets and lifecycle in turn, `rounds` times, without advancing the time.
    fn run_rounds(&mut self, rounds: usize) {
        for _ in 0..rounds {
            self.reconcile();
            self.reconcile_decoration();
            self.kubelet();
            self.lifecycle();
        }
    }

    /// Runs one round and advances the time by one second.
    fn tick(&mut self) {
        self.run_rounds(1);
        self.now += 1;
    }

    /// Runs rounds, one per second, until no object changes for 16 seconds.
    ///
    /// # Panics
    ///
    /// If objects still change after 600 seconds.
    fn converge(&mut self) {
        let mut quiet = 0;
        for _ in 0..600 {
            let before = self.cluster.version();
            self.tick();
            quiet = if self.cluster.version() == before { quiet + 1 } else { 0 };
            // Longer than every delay and backoff in these scenarios.
            if quiet > 15 {
                return;
            }
        }
        panic!("not converged; last plan: {}", self.operator.last_plan);
    }

    /// Runs operator and kubelets for 20 seconds without a lifecycle-operator.
    fn converge_without_lifecycle(&mut self) {
        for _ in 0..20 {
            self.reconcile();
            self.kubelet();
            self.now += 1;
        }
    }
}

/// Pod template with one container, written
/// `<image>[+<env value>][#<annotation>][@<CPU request>][!<time of restart>]`.
fn template(image: &str) -> Value {
    if let Some((image, restarted_at)) = image.split_once('!') {
        let mut template = template(image);
        template["metadata"]["annotations"][well_known::RESTARTED_AT] = json!(restarted_at);
        return template;
    }
    let (image, cpu) = image.split_once('@').unwrap_or((image, "1"));
    let (image, annotation) = image.split_once('#').unwrap_or((image, "none"));
    let (image, env) = image.split_once('+').unwrap_or((image, "none"));
    json!({
        "metadata": { "labels": { "app": SET }, "annotations": { "note": annotation } },
        "spec": { "containers": [{
            "name": "c", "image": image, "env": [{ "name": "A", "value": env }],
            "resources": { "requests": { "cpu": cpu } },
        }] },
    })
}

/// A Pod object.
#[derive(Clone, Debug, PartialEq)]
struct Pod(Value);

impl Pod {
    fn name(&self) -> &str {
        self.0["metadata"]["name"].as_str().unwrap()
    }

    fn get(&self, label: &str) -> Option<&str> {
        self.0["metadata"]["labels"][label].as_str()
    }

    fn has(&self, label: &str) -> bool {
        self.get(label).is_some()
    }

    /// Returns whether the Pod has the CollaSet's lifecycle label of this kind.
    fn has_kind(&self, kind: LabelKind) -> bool {
        self.has(&kind.key(COLLASET))
    }

    fn id(&self) -> i64 {
        self.get(well_known::INSTANCE_ID).unwrap().parse().unwrap()
    }

    fn revision(&self) -> &str {
        self.get(well_known::REVISION).unwrap_or_default()
    }

    fn image(&self) -> &str {
        self.0["spec"]["containers"][0]["image"].as_str().unwrap()
    }

    fn is_deleting(&self) -> bool {
        !self.0["metadata"]["deletionTimestamp"].is_null()
    }

    fn is_live(&self) -> bool {
        !self.is_deleting() && !self.is_terminal() && self.is_owned()
    }

    fn is_terminal(&self) -> bool {
        self.0["status"]["phase"] == "Failed" || self.0["status"]["phase"] == "Succeeded"
    }

    fn is_owned(&self) -> bool {
        let owners = self.0["metadata"]["ownerReferences"].as_array();
        owners.into_iter().flatten().any(|owner| owner["name"] == SET)
    }

    fn is_ready(&self) -> bool {
        let conditions = self.0["status"]["conditions"].as_array().into_iter().flatten();
        conditions.into_iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
    }

    /// Names of the PersistentVolumeClaims that the Pod mounts.
    fn mounts(&self) -> Vec<String> {
        let volumes = self.0["spec"]["volumes"].as_array().into_iter().flatten();
        let names = volumes.filter_map(|v| v["persistentVolumeClaim"]["claimName"].as_str());
        names.map(ToOwned::to_owned).collect()
    }
}
