//! Kubelets, traffic adapters and the protection of PersistentVolumeClaims, as far as the operators
//! observe them.

use std::collections::{BTreeMap, BTreeSet};

use podops_api::{availability::AvailableConditions, well_known};
use podops_simulated_api::Objects;
use serde_json::{Value, json};

use crate::operators::Api;

/// Operator of the traffic adapters.
const TRAFFIC_OPERATOR: &str = "consist-operator";

/// The kubelets of all nodes, which start every container at once.
#[derive(Debug, Default)]
pub(crate) struct Kubelets {
    /// Containers as they were started, by UID of the Pod.
    started: BTreeMap<String, Value>,
    /// Number of container starts, for unique IDs.
    starts: u64,
}

impl Kubelets {
    /// Returns kubelets on which the containers of ready Pods run as specified. Those of other Pods
    /// are started at once.
    pub(crate) fn running(objects: &Objects) -> Self {
        let runs = |pod: &&Value| {
            let reported = &pod["status"]["observedGeneration"];
            let is_current = reported.is_null() || *reported == pod["metadata"]["generation"];
            is_true(pod, "ContainersReady") && is_current
        };
        let pods = objects.all("pods").filter(runs);
        let started = pods.map(|pod| (uid(pod), pod["spec"]["containers"].clone())).collect();
        Self { started, starts: 0 }
    }

    /// Starts containers that changed, reports readiness, and removes deleted Pods and claims.
    pub(crate) fn step(&mut self, objects: &mut Objects) {
        let pods: Vec<Value> = objects.all("pods").cloned().collect();
        for pod in &pods {
            let name = name(pod);
            if !pod["metadata"]["deletionTimestamp"].is_null() {
                if pod["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty) {
                    objects.remove("pods", name);
                }
            } else if !matches!(pod["status"]["phase"].as_str(), Some("Failed" | "Succeeded")) {
                self.sync(objects, pod);
            }
        }
        remove_unused_claims(objects, &pods);
    }

    fn sync(&mut self, objects: &mut Objects, pod: &Value) {
        let containers = &pod["spec"]["containers"];
        let last = self.started.insert(uid(pod), containers.clone());
        let statuses = (last.as_ref() != Some(containers)).then(|| self.start(pod, last.as_ref()));
        let now = objects.now.to_string();
        objects.change("pods", name(pod), |pod| {
            if pod["spec"]["nodeName"].is_null() {
                pod["spec"]["nodeName"] = json!("node");
            }
            if let Some(statuses) = statuses {
                pod["status"]["containerStatuses"] = json!(statuses);
                pod["status"]["phase"] = json!("Running");
                set_condition(pod, "PodScheduled", true, &now);
                set_condition(pod, "ContainersReady", true, &now);
            }
            let gates = pod["spec"]["readinessGates"].as_array().cloned().unwrap_or_default();
            let types: Vec<&str> =
                gates.iter().filter_map(|gate| gate["conditionType"].as_str()).collect();
            // Other controllers report that the Pod is ready.
            for type_ in types.iter().filter(|type_| **type_ != well_known::SERVICE_READY) {
                if !has_condition(pod, type_) {
                    set_condition(pod, type_, true, &now);
                }
            }
            let is_ready =
                types.into_iter().chain(["ContainersReady"]).all(|type_| is_true(pod, type_));
            set_condition(pod, "Ready", is_ready, &now);
        });
        report_generation(objects, name(pod));
    }

    /// Status of each container; those whose image or resources changed are started again.
    fn start(&mut self, pod: &Value, last: Option<&Value>) -> Vec<Value> {
        let containers = pod["spec"]["containers"].as_array().cloned().unwrap_or_default();
        let statuses = containers.iter().map(|container| {
            let reported = find(&pod["status"]["containerStatuses"], container);
            let previous = last.map(|last| find(last, container)).unwrap_or_default();
            let mut status = reported;
            if previous["image"] != container["image"] {
                self.starts += 1;
                let image = container["image"].as_str().unwrap_or_default();
                status["imageID"] = json!(format!("simulated@{image}"));
                status["containerID"] = json!(format!("simulated://{}", self.starts));
            }
            status["name"] = container["name"].clone();
            status["image"] = container["image"].clone();
            status["resources"] = container["resources"].clone();
            status["ready"] = json!(true);
            status["state"] = json!({ "running": {} });
            status
        });
        statuses.collect()
    }
}

/// Reports the generation of the Pod as observed.
fn report_generation(objects: &mut Objects, pod: &str) {
    objects.change("pods", pod, |pod| {
        pod["status"]["observedGeneration"] = pod["metadata"]["generation"].clone();
    });
}

fn remove_unused_claims(objects: &mut Objects, pods: &[Value]) {
    const CLAIMS: &str = "persistentvolumeclaims";
    let volumes = pods.iter().filter_map(|pod| pod["spec"]["volumes"].as_array()).flatten();
    let mounted: BTreeSet<&str> = volumes
        .filter_map(|volume| volume["persistentVolumeClaim"]["claimName"].as_str())
        .collect();
    let deleted = objects.all(CLAIMS).filter(|c| !c["metadata"]["deletionTimestamp"].is_null());
    let names: Vec<String> = deleted.map(|claim| name(claim).to_owned()).collect();
    for claim in names.iter().filter(|claim| !mounted.contains(claim.as_str())) {
        objects.remove(CLAIMS, claim);
    }
}

/// Ends the traffic of Pods that leave service, and returns it to those that are ready: removes and
/// adds their protection finalizers.
pub(crate) fn switch_traffic(api: &mut Api) {
    let pods: Vec<Value> = api.objects.all("pods").cloned().collect();
    for pod in pods {
        let finalizers = pod["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        let is_protection = |finalizer: &Value| {
            finalizer.as_str().is_some_and(|f| f.starts_with(well_known::PROTECTION_FINALIZER))
        };
        let is_leaving = !is_in_service(&pod) || !pod["metadata"]["deletionTimestamp"].is_null();
        let kept: Vec<Value> = if is_leaving {
            finalizers.iter().filter(|finalizer| !is_protection(finalizer)).cloned().collect()
        } else if is_true(&pod, "Ready") {
            let missing = expected_finalizers(&pod).into_iter().map(Value::String);
            let missing = missing.filter(|finalizer| !finalizers.contains(finalizer));
            finalizers.iter().cloned().chain(missing).collect()
        } else {
            continue;
        };
        if kept != finalizers {
            if api.counts(&pod) {
                api.count_pod_write(TRAFFIC_OPERATOR);
            }
            api.objects
                .change("pods", name(&pod), |pod| pod["metadata"]["finalizers"] = json!(kept));
        }
    }
}

/// Returns whether Services may send traffic to a Pod, if it is ready.
pub(crate) fn is_in_service(pod: &Value) -> bool {
    !has_condition(pod, well_known::SERVICE_READY) || is_true(pod, well_known::SERVICE_READY)
}

fn expected_finalizers(pod: &Value) -> BTreeSet<String> {
    let text = pod["metadata"]["annotations"][well_known::AVAILABLE_CONDITIONS].as_str();
    let expected = text.and_then(|text| serde_json::from_str::<AvailableConditions>(text).ok());
    expected.into_iter().flat_map(|expected| expected.expected_finalizers.into_values()).collect()
}

pub(crate) fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn uid(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

/// Returns the item of a list with the name of `named`; null if the list has no such item.
fn find(list: &Value, named: &Value) -> Value {
    let items = list.as_array().into_iter().flatten();
    items.into_iter().find(|item| item["name"] == named["name"]).cloned().unwrap_or_default()
}

fn conditions(pod: &Value) -> impl Iterator<Item = &Value> {
    pod["status"]["conditions"].as_array().into_iter().flatten()
}

fn has_condition(pod: &Value, type_: &str) -> bool {
    conditions(pod).any(|condition| condition["type"] == type_)
}

fn is_true(pod: &Value, type_: &str) -> bool {
    conditions(pod).any(|condition| condition["type"] == type_ && condition["status"] == "True")
}

/// Sets a condition; its transition time changes only with its status.
fn set_condition(pod: &mut Value, type_: &str, is_true: bool, now: &str) {
    let status = if is_true { "True" } else { "False" };
    let mut list: Vec<Value> = conditions(pod).cloned().collect();
    let index = list.iter().position(|condition| condition["type"] == type_);
    if index.is_some_and(|index| list[index]["status"] == status) {
        return;
    }
    let condition = json!({ "type": type_, "status": status, "lastTransitionTime": now });
    match index {
        Some(index) => list[index] = condition,
        None => list.push(condition),
    }
    pod["status"]["conditions"] = json!(list);
}
