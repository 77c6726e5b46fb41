//! Scheduler, kubelet, lifecycle and the protection of claims, each in the fewest steps that can be
//! told apart from outside.

use jiff::Timestamp;
use podops_api::{
    lifecycle::{COLLASET, LabelKind},
    well_known,
};
use serde_json::{Value, json};

use super::{Pod, World};

/// A Pod whose image has this tag never runs.
const BAD: &str = "bad";
/// More CPUs than any node has.
const TOO_MUCH: &str = "99";

impl World {
    /// Every kubelet takes one step with each of its Pods, and claims that nobody mounts go.
    pub(super) fn kubelet(&mut self) {
        for pod in self.pods() {
            self.kubelet_of(&pod);
        }
        let mounted: Vec<String> = self.pods().iter().flat_map(Pod::mounts).collect();
        let claims: Vec<Value> = self.cluster.all("persistentvolumeclaims").cloned().collect();
        for claim in claims {
            let name = claim["metadata"]["name"].as_str().unwrap();
            let going = !claim["metadata"]["deletionTimestamp"].is_null();
            if going && !mounted.iter().any(|known| known == name) {
                self.cluster.remove("persistentvolumeclaims", name);
            }
        }
    }

    /// One step of one kubelet.
    pub(super) fn kubelet_of(&mut self, pod: &Pod) {
        let held = pod.0["metadata"]["finalizers"].as_array().is_some_and(|f| !f.is_empty());
        if pod.is_deleting() {
            if !held {
                self.cluster.remove("pods", pod.name());
            }
            return;
        }
        if pod.0["status"]["phase"] == "Failed" {
            return;
        }
        let wanted = &pod.0["spec"]["containers"][0];
        let (image, resources) = (pod.image().to_owned(), wanted["resources"].clone());
        let was = pod.0["status"]["containerStatuses"][0].clone();
        let infeasible = resources["requests"]["cpu"] == TOO_MUCH
            || resources["requests"]["cpu"] == format!("{TOO_MUCH}000m");
        // Binding is a change of the spec, too.
        let is_bound = !pod.0["spec"]["nodeName"].is_null();
        let generation = pod.0["metadata"]["generation"].as_i64().unwrap_or_default();
        let generation = json!(generation + i64::from(!is_bound));
        let restarts = was["image"] != json!(image);
        let runs = restarts || was["containerID"].is_null();
        let run = if runs { self.now } else { was["run"].as_i64().unwrap_or_default() };
        let ready = image != BAD;
        let given = if infeasible { was["resources"].clone() } else { resources };
        let status = json!({
            "name": "c", "image": image, "imageID": format!("id-{image}"),
            "containerID": format!("run-{run}"), "run": run, "resources": given,
        });
        let since = Timestamp::from_second(self.now).unwrap().to_string();
        let since = if pod.is_ready() == ready {
            pod.0["status"]["conditions"][0]["lastTransitionTime"].clone()
        } else {
            json!(since)
        };
        let mut conditions = vec![
            json!({ "type": "Ready", "status": if ready { "True" } else { "False" }, "lastTransitionTime": since }),
            json!({ "type": "PodScheduled", "status": "True" }),
        ];
        if infeasible {
            conditions.push(json!({ "type": "PodResizePending", "status": "True",
                "reason": "Infeasible", "message": "no node has so much" }));
        }
        self.cluster.change("pods", pod.name(), |pod| {
            pod["spec"]["nodeName"] = json!("node");
            pod["status"]["conditions"] = json!(conditions);
            pod["status"]["containerStatuses"] = json!([status]);
            pod["status"]["observedGeneration"] = generation;
        });
    }

    /// Every Pod is moved a step through its lifecycle.
    pub(super) fn lifecycle(&mut self) {
        for pod in self.pods() {
            self.lifecycle_of(&pod);
        }
    }

    /// One step of the lifecycle of one Pod.
    pub(super) fn lifecycle_of(&mut self, pod: &Pod) {
        let key = |word: LabelKind| word.key(COLLASET);
        let stamp = format!("{}000000000", self.now);
        let has = |word| pod.has(&key(word));
        let mut changes: Vec<(String, Option<&str>)> = Vec::new();
        if pod.is_deleting() {
            return;
        }
        if has(LabelKind::UndoOperationType) {
            let words = [
                LabelKind::Operating,
                LabelKind::OperationType,
                LabelKind::Operate,
                LabelKind::UndoOperationType,
            ];
            changes.extend(words.map(|word| (key(word), None)));
            changes.push((well_known::PREPARING_TO_DELETE.to_owned(), None));
        } else if has(LabelKind::Operating) && !has(LabelKind::Operate) {
            if pod.has(well_known::SERVICE_AVAILABLE) {
                changes.push((well_known::SERVICE_AVAILABLE.to_owned(), None));
            } else {
                changes.push((key(LabelKind::Operate), Some(&stamp)));
            }
        } else if !has(LabelKind::Operating) && has(LabelKind::OperationType) {
            changes.extend(
                [LabelKind::OperationType, LabelKind::Operate].map(|word| (key(word), None)),
            );
            changes.push((well_known::PREPARING_TO_DELETE.to_owned(), None));
        } else if pod.has(well_known::TO_DELETE) {
            if pod.has(well_known::SERVICE_AVAILABLE) {
                changes.push((well_known::SERVICE_AVAILABLE.to_owned(), None));
            } else {
                self.cluster.delete("pods", pod.name());
                return;
            }
        } else if !has(LabelKind::Operating)
            && pod.is_ready()
            && !pod.has(well_known::SERVICE_AVAILABLE)
        {
            changes.push((well_known::SERVICE_AVAILABLE.to_owned(), Some(&stamp)));
            changes.extend(
                [well_known::CREATING, well_known::COMPLETING].map(|key| (key.to_owned(), None)),
            );
        }
        for (key, value) in changes {
            if pod.has(&key) || value.is_some() {
                self.label(pod.name(), &key, value);
            }
        }
    }

    /// Lets a Pod's update go on, or its scale-in, in the name of a lifecycle that is not there.
    pub(super) fn permit(&mut self, pod: &str) {
        let stamp = format!("{}000000000", self.now);
        self.label(pod, &LabelKind::Operate.key(COLLASET), Some(&stamp));
    }

    /// Lets a Pod serve in the name of a lifecycle that is not there.
    pub(super) fn serve(&mut self, pod: &str) {
        let stamp = format!("{}000000000", self.now);
        self.label(pod, well_known::SERVICE_AVAILABLE, Some(&stamp));
        self.label(pod, well_known::CREATING, None);
    }
}
