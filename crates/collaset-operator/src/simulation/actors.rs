//! Minimal models of scheduler, kubelet, lifecycle-operator and PVC protection, with only the steps
//! that are observable through the API.

use jiff::Timestamp;
use podops_api::{
    lifecycle::{COLLASET, LabelKind},
    well_known,
};
use serde_json::{Value, json};

use super::{Pod, World};

/// Image whose container never becomes ready.
const BROKEN_IMAGE: &str = "bad";
/// CPU request that exceeds every node's capacity.
const INFEASIBLE_CPU: &str = "99";

impl World {
    /// Runs one step of the kubelet for every Pod, and removes deleted claims that no Pod mounts.
    pub(super) fn kubelet(&mut self) {
        for pod in self.pods() {
            self.kubelet_of(&pod);
        }
        let mounted: Vec<String> = self.pods().iter().flat_map(Pod::mounts).collect();
        let claims: Vec<Value> = self.cluster.all("persistentvolumeclaims").cloned().collect();
        for claim in claims {
            let name = claim["metadata"]["name"].as_str().unwrap();
            let is_deleting = !claim["metadata"]["deletionTimestamp"].is_null();
            if is_deleting && !mounted.iter().any(|mounted| mounted == name) {
                self.cluster.remove("persistentvolumeclaims", name);
            }
        }
    }

    /// Runs one step of the kubelet for one Pod.
    pub(super) fn kubelet_of(&mut self, pod: &Pod) {
        let finalizers = pod.0["metadata"]["finalizers"].as_array();
        if pod.is_deleting() {
            if finalizers.is_none_or(Vec::is_empty) {
                self.cluster.remove("pods", pod.name());
            }
            return;
        }
        if pod.is_terminal() {
            return;
        }
        let container = &pod.0["spec"]["containers"][0];
        let (image, resources) = (pod.image().to_owned(), container["resources"].clone());
        let last = pod.0["status"]["containerStatuses"][0].clone();
        let infeasible = resources["requests"]["cpu"] == INFEASIBLE_CPU
            || resources["requests"]["cpu"] == format!("{INFEASIBLE_CPU}000m");
        // Binding the Pod to a node increments the generation, too.
        let is_bound = !pod.0["spec"]["nodeName"].is_null();
        let generation = pod.0["metadata"]["generation"].as_i64().unwrap_or_default();
        let generation = json!(generation + i64::from(!is_bound));
        let starts = last["image"] != json!(image) || last["containerID"].is_null();
        let run = if starts { self.now } else { last["run"].as_i64().unwrap_or_default() };
        let ready = image != BROKEN_IMAGE;
        let allocated = if infeasible { last["resources"].clone() } else { resources };
        let status = json!({
            "name": "c", "image": image, "imageID": format!("id-{image}"),
            "containerID": format!("run-{run}"), "run": run, "resources": allocated,
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
                "reason": "Infeasible", "message": "no node has enough CPU" }));
        }
        self.cluster.change("pods", pod.name(), |pod| {
            pod["spec"]["nodeName"] = json!("node");
            pod["status"]["conditions"] = json!(conditions);
            pod["status"]["containerStatuses"] = json!([status]);
            pod["status"]["observedGeneration"] = generation;
        });
    }

    /// Runs one step of the lifecycle-operator for every Pod.
    pub(super) fn lifecycle(&mut self) {
        for pod in self.pods() {
            self.lifecycle_of(&pod);
        }
    }

    /// Runs one step of the lifecycle-operator for one Pod.
    pub(super) fn lifecycle_of(&mut self, pod: &Pod) {
        let key = |kind: LabelKind| kind.key(COLLASET);
        let timestamp = format!("{}000000000", self.now);
        let has = |kind| pod.has(&key(kind));
        let mut changes: Vec<(String, Option<&str>)> = Vec::new();
        if pod.is_deleting() || pod.get(well_known::CONTROL) != Some(well_known::CONTROL_ON) {
            return;
        }
        if has(LabelKind::UndoOperationType) {
            let kinds = [
                LabelKind::Operating,
                LabelKind::OperationType,
                LabelKind::Operate,
                LabelKind::UndoOperationType,
            ];
            changes.extend(kinds.map(|kind| (key(kind), None)));
            changes.push((well_known::PREPARING_TO_DELETE.to_owned(), None));
        } else if has(LabelKind::Operating) && !has(LabelKind::Operate) {
            if pod.has(well_known::SERVICE_AVAILABLE) {
                changes.push((well_known::SERVICE_AVAILABLE.to_owned(), None));
            } else {
                changes.push((key(LabelKind::Operate), Some(&timestamp)));
            }
        } else if !has(LabelKind::Operating) && has(LabelKind::OperationType) {
            changes.extend(
                [LabelKind::OperationType, LabelKind::Operate].map(|kind| (key(kind), None)),
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
            changes.push((well_known::SERVICE_AVAILABLE.to_owned(), Some(&timestamp)));
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

    /// Permits the Pod's requested operation, in scenarios without a lifecycle-operator.
    pub(super) fn permit(&mut self, pod: &str) {
        let timestamp = format!("{}000000000", self.now);
        self.label(pod, &LabelKind::Operate.key(COLLASET), Some(&timestamp));
    }

    /// Marks the Pod as available, in scenarios without a lifecycle-operator.
    pub(super) fn make_available(&mut self, pod: &str) {
        let timestamp = format!("{}000000000", self.now);
        self.label(pod, well_known::SERVICE_AVAILABLE, Some(&timestamp));
        self.label(pod, well_known::CREATING, None);
    }
}
