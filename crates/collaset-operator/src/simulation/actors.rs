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

/// Digest reference that a kubelet reports for an image.
pub(super) fn image_id(image: &str) -> String {
    let repository = image.split(['@', ':']).next().unwrap_or_default();
    if let Some((_, digest)) = image.split_once("@sha256:") {
        return format!("{repository}@sha256:{digest}");
    }
    let number = image.bytes().fold(0_u128, |number, byte| number * 257 + u128::from(byte));
    format!("{repository}@sha256:{number:064x}")
}

/// Returns whether a container requests more than any node has.
fn is_infeasible(container: &Value) -> bool {
    let cpu = &container["resources"]["requests"]["cpu"];
    *cpu == INFEASIBLE_CPU || *cpu == format!("{INFEASIBLE_CPU}000m")
}

/// Returns the next status of a container, which restarts if its image has changed.
fn container_status(pod: &Pod, container: &Value, now: i64) -> Value {
    let statuses = pod.0["status"]["containerStatuses"].as_array().into_iter().flatten();
    let last = statuses.into_iter().find(|status| status["name"] == container["name"]);
    let last = last.cloned().unwrap_or_default();
    let image = container["image"].as_str().unwrap();
    let starts = last["image"] != json!(image) || last["containerID"].is_null();
    let run = if starts { now } else { last["run"].as_i64().unwrap_or_default() };
    let ready = image != BROKEN_IMAGE;
    let resources =
        if is_infeasible(container) { &last["resources"] } else { &container["resources"] };
    let waiting = json!({ "waiting": { "reason": "ImagePullBackOff" } });
    json!({
        "name": container["name"], "image": image, "run": run, "resources": resources,
        "imageID": if ready { image_id(image) } else { String::new() },
        "containerID": if ready { format!("run-{run}") } else { String::new() },
        "state": if ready { json!({}) } else { waiting },
    })
}

impl World {
    /// Runs one step of the kubelet for every Pod, binds claims, and removes deleted ones that no
    /// Pod mounts.
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
            } else if claim["status"]["phase"].is_null() {
                self.cluster.change("persistentvolumeclaims", name, |claim| {
                    claim["status"] = json!({ "phase": "Bound" });
                });
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
        // Binding the Pod to a node increments the generation, too.
        let is_bound = !pod.0["spec"]["nodeName"].is_null();
        let generation = pod.0["metadata"]["generation"].as_i64().unwrap_or_default();
        let generation = json!(generation + i64::from(!is_bound));
        let containers = pod.0["spec"]["containers"].as_array().unwrap();
        let statuses: Vec<Value> =
            containers.iter().map(|container| container_status(pod, container, self.now)).collect();
        let ready = containers.iter().all(|container| container["image"] != BROKEN_IMAGE);
        let infeasible = containers.iter().any(is_infeasible);
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
            pod["status"]["containerStatuses"] = json!(statuses);
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
        let timestamp = format!("{}000000000", self.now);
        let mut changes: Vec<(String, Option<&str>)> = Vec::new();
        if pod.is_deleting() || pod.get(well_known::CONTROL) != Some(well_known::CONTROL_ON) {
            return;
        }
        if pod.has_kind(LabelKind::UndoOperationType) {
            let kinds = [
                LabelKind::Operating,
                LabelKind::OperationType,
                LabelKind::Operate,
                LabelKind::UndoOperationType,
            ];
            changes.extend(kinds.map(|kind| (kind.key(COLLASET), None)));
            changes.push((well_known::PREPARING_TO_DELETE.to_owned(), None));
        } else if pod.has_kind(LabelKind::Operating) && !pod.has_kind(LabelKind::Operate) {
            if pod.has(well_known::SERVICE_AVAILABLE) {
                changes.push((well_known::SERVICE_AVAILABLE.to_owned(), None));
            } else {
                changes.push((LabelKind::Operate.key(COLLASET), Some(&timestamp)));
            }
        } else if !pod.has_kind(LabelKind::Operating) && pod.has_kind(LabelKind::OperationType) {
            changes.extend(
                [LabelKind::OperationType, LabelKind::Operate]
                    .map(|kind| (kind.key(COLLASET), None)),
            );
            changes.push((well_known::PREPARING_TO_DELETE.to_owned(), None));
        } else if pod.has(well_known::TO_DELETE) {
            if pod.has(well_known::SERVICE_AVAILABLE) {
                changes.push((well_known::SERVICE_AVAILABLE.to_owned(), None));
            } else {
                self.cluster.delete("pods", pod.name());
                return;
            }
        } else if !pod.has_kind(LabelKind::Operating)
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
