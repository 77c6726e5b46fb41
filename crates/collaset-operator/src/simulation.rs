//! The whole decision against a world in memory: real objects as JSON, observed, planned on, rendered
//! and written to as the shell does it; with kubelet, lifecycle and users as small as can be.
//!
//! Nothing is mocked on the way from an object to a write, so what a story or a property shows holds
//! for everything but the network.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::needless_pass_by_value,
    reason = "a test fails by panicking, and reads better with values"
)]

mod actors;
mod cluster;
mod kuperator;
mod operator;
mod pace;
mod rollouts;

use std::collections::BTreeMap;

use jiff::Timestamp;
use podops_api::{GROUP, VERSION, well_known};
use serde_json::{Value, json};

use cluster::Cluster;
use operator::Operator;

/// The set that everything is about.
const SET: &str = "web";

/// A cluster with one CollaSet, and who works on it.
#[derive(Clone, Debug)]
struct World {
    cluster: Cluster,
    operator: Operator,
    /// In seconds since the epoch.
    now: i64,
}

impl World {
    /// A world with a CollaSet of this spec, and of a template of one container unless it says
    /// otherwise.
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

    /// Merges a change into the set's spec, as its user.
    fn edit(&mut self, spec: Value) {
        self.cluster.change("collasets", SET, |set| {
            json_patch::merge(&mut set["spec"], &spec);
            set["metadata"]["generation"] =
                json!(set["metadata"]["generation"].as_i64().unwrap() + 1);
        });
    }

    /// Gives the set another image.
    fn image(&mut self, image: &str) {
        self.edit(json!({ "template": template(image) }));
    }

    /// Sets, or with `None` removes, a label of a Pod.
    fn label(&mut self, pod: &str, key: &str, value: Option<&str>) {
        let change = json!({ "metadata": { "labels": { key: value } } });
        self.cluster.change("pods", pod, |pod| json_patch::merge(pod, &change));
    }

    fn pods(&self) -> Vec<Pod> {
        self.cluster.all("pods").map(|pod| Pod(pod.clone())).collect()
    }

    /// The Pods that are neither on their way out nor ended.
    fn live(&self) -> Vec<Pod> {
        self.pods().into_iter().filter(Pod::is_live).collect()
    }

    fn pod(&self, name: &str) -> Option<Pod> {
        self.pods().into_iter().find(|pod| pod.name() == name)
    }

    fn set(&self) -> &Value {
        self.cluster.get("collasets", SET).expect("the set is there")
    }

    fn status(&self) -> &Value {
        &self.set()["status"]
    }

    /// A number of the status.
    fn count(&self, field: &str) -> i64 {
        self.status()[field].as_i64().unwrap_or_default()
    }

    /// The entries of the record of IDs.
    fn contexts(&self) -> BTreeMap<i64, Value> {
        let record = self.cluster.get("resourcecontexts", SET);
        let entries = record.and_then(|r| r["spec"]["contexts"].as_array()).into_iter().flatten();
        entries.map(|e| (e["id"].as_i64().unwrap(), e["data"].clone())).collect()
    }

    /// Claims that are not on their way out.
    fn claims(&self) -> Vec<Value> {
        let claims = self.cluster.all("persistentvolumeclaims");
        claims.filter(|claim| claim["metadata"]["deletionTimestamp"].is_null()).cloned().collect()
    }

    /// One look of the operator, and what it comes to.
    fn reconcile(&mut self) {
        self.look();
        self.act(usize::MAX);
    }

    /// Everybody works for so many rounds, in which no time passes.
    fn rounds(&mut self, rounds: usize) {
        for _ in 0..rounds {
            self.reconcile();
            self.kubelet();
            self.lifecycle();
        }
    }

    /// Everybody works for a second.
    fn second(&mut self) {
        self.rounds(1);
        self.now += 1;
    }

    /// Everybody works until nothing changes any more.
    ///
    /// # Panics
    ///
    /// If that does not come.
    fn converge(&mut self) {
        let mut quiet = 0;
        for _ in 0..600 {
            let before = self.cluster.version();
            self.second();
            quiet = if self.cluster.version() == before { quiet + 1 } else { 0 };
            // Longer than any delay or patience of a story.
            if quiet > 15 {
                return;
            }
        }
        panic!("there is no end of it: {}", self.operator.last_plan);
    }

    /// As [`converge`](Self::settle), but nobody moves Pods through their lifecycle.
    fn converge_without_lifecycle(&mut self) {
        for _ in 0..20 {
            self.reconcile();
            self.kubelet();
            self.now += 1;
        }
    }
}

/// A template of one container that runs this image; after a `+` its environment, after a `#` its
/// annotation, after a `@` its CPU.
fn template(image: &str) -> Value {
    let (image, cpu) = image.split_once('@').unwrap_or((image, "1"));
    let (image, note) = image.split_once('#').unwrap_or((image, "none"));
    let (image, env) = image.split_once('+').unwrap_or((image, "none"));
    json!({
        "metadata": { "labels": { "app": SET }, "annotations": { "note": note } },
        "spec": { "containers": [{
            "name": "c", "image": image, "env": [{ "name": "A", "value": env }],
            "resources": { "requests": { "cpu": cpu } },
        }] },
    })
}

/// A Pod as it stands in the cluster.
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
        !self.is_deleting() && self.0["status"]["phase"] != "Failed" && self.is_owned()
    }

    fn is_owned(&self) -> bool {
        self.0["metadata"]["ownerReferences"].as_array().is_some_and(|o| !o.is_empty())
    }

    fn is_ready(&self) -> bool {
        let conditions = self.0["status"]["conditions"].as_array().into_iter().flatten();
        conditions.into_iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
    }

    /// The claims that it mounts.
    fn mounts(&self) -> Vec<String> {
        let volumes = self.0["spec"]["volumes"].as_array().into_iter().flatten();
        let names = volumes.filter_map(|v| v["persistentVolumeClaim"]["claimName"].as_str());
        names.map(ToOwned::to_owned).collect()
    }
}
