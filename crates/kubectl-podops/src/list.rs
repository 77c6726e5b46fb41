//! The workloads whose Pods are protected: CollaSets, and owners of other Pods under control. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use podops_api::{collaset::CollaSet, condition, lifecycle};
use podops_terminal::table::Table;
use serde::Serialize;

use crate::{names::Names, pods};

/// Label of the Pods of a Deployment with the last part of the name of their ReplicaSet.
const TEMPLATE_HASH: &str = "pod-template-hash";

/// Workloads of one namespace, or of all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct List {
    /// The workloads, by namespace, then CollaSets first, then by name.
    pub workloads: Vec<Workload>,
}

/// Workload whose Pods are under control.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Workload {
    /// Namespace.
    pub namespace: String,
    /// Kind in lower case, and name.
    pub name: String,
    /// Number of Pods in service.
    pub in_service: usize,
    /// Number of Pods; of a CollaSet, the desired number.
    pub pods: usize,
    /// Number of Pods at the updated revision; `None` of other kinds than CollaSets.
    pub updated: Option<usize>,
    /// Number of Pods with an operation in progress.
    pub operations: usize,
    /// Reason of the condition Ready of a CollaSet; empty of other kinds.
    pub status: String,
}

/// Lists CollaSets, and the owners of the other Pods under control.
#[must_use]
pub fn list(sets: &[CollaSet], pods: &[Pod]) -> List {
    let mut by_owner: BTreeMap<Owner, Workload> = BTreeMap::new();
    for set in sets {
        let status = set.status.clone().unwrap_or_default();
        let ready = condition::find(&status.conditions, "Ready");
        let count = |number: i32| usize::try_from(number).unwrap_or_default();
        let workload = Workload {
            in_service: count(status.available_replicas),
            pods: count(set.spec.replicas.unwrap_or_default()),
            updated: Some(count(status.updated_replicas)),
            status: ready.and_then(|ready| ready.reason.clone()).unwrap_or_default(),
            ..Workload::default()
        };
        by_owner.insert(Owner::new(set.namespace(), "collaset", set.name_any()), workload);
    }
    for pod in pods.iter().filter(|pod| pods::is_controlled(pod)) {
        let owner = owner(pod);
        let is_set = owner.kind == "collaset";
        // The owner may have been deleted since it was listed.
        if is_set && !by_owner.contains_key(&owner) {
            continue;
        }
        let workload = by_owner.entry(owner).or_default();
        workload.operations += usize::from(lifecycle::is_operated_on(&pods::labels(pod)));
        if !is_set {
            workload.pods += 1;
            workload.in_service += usize::from(pods::is_in_service(pod));
        }
    }
    let workloads = by_owner.into_iter().map(|(owner, workload)| {
        let name = format!("{}/{}", owner.kind, owner.name);
        Workload { namespace: owner.namespace, name, ..workload }
    });
    List { workloads: workloads.collect() }
}

/// Owner of Pods, in the order of the list.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Owner {
    namespace: String,
    is_other: bool,
    kind: String,
    name: String,
}

impl Owner {
    fn new(namespace: Option<String>, kind: &str, name: String) -> Self {
        Self {
            namespace: namespace.unwrap_or_default(),
            is_other: kind != "collaset",
            kind: kind.to_owned(),
            name,
        }
    }
}

/// Returns the workload of a Pod: the Deployment of a ReplicaSet, or else the controller, or the Pod
/// itself.
fn owner(pod: &Pod) -> Owner {
    let references = pod.metadata.owner_references.iter().flatten();
    let controller = references.into_iter().find(|owner| owner.controller == Some(true));
    let Some(controller) = controller else {
        return Owner::new(pod.namespace(), "pod", pod.name_any());
    };
    let hash = pods::label(pod, TEMPLATE_HASH);
    let of_deployment = hash
        .filter(|_| controller.kind == "ReplicaSet")
        .and_then(|hash| controller.name.strip_suffix(&format!("-{hash}")));
    if let Some(name) = of_deployment {
        return Owner::new(pod.namespace(), "deployment", name.to_owned());
    }
    Owner::new(pod.namespace(), &controller.kind.to_lowercase(), controller.name.clone())
}

/// Returns the lines of the table, with the namespaces if there may be several.
#[must_use]
pub fn lines(list: &List, with_namespaces: bool) -> Vec<String> {
    let mut columns = vec!["NAME", "IN SERVICE", "UPDATED", "OPERATIONS", "STATUS"];
    if with_namespaces {
        columns.insert(0, "NAMESPACE");
    }
    let mut table = Table::new(&columns);
    for workload in &list.workloads {
        let updated = workload.updated.map_or_else(|| "-".to_owned(), |n| n.to_string());
        let mut row = vec![
            workload.name.clone(),
            format!("{}/{}", workload.in_service, workload.pods),
            updated,
            workload.operations.to_string(),
            if workload.status.is_empty() { "-".to_owned() } else { workload.status.clone() },
        ];
        if with_namespaces {
            row.insert(0, workload.namespace.clone());
        }
        table.add(row);
    }
    table.to_string().lines().map(ToOwned::to_owned).collect()
}

impl Names for List {
    fn names(&self) -> Vec<String> {
        self.workloads.iter().map(|workload| workload.name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use podops_api::well_known;
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, owner: &Value, labels: &Value) -> Pod {
        let mut pod = json!({
            "metadata": { "name": name, "namespace": "shop", "labels": { well_known::CONTROL: "true" } },
            "spec": { "containers": [] },
        });
        json_patch::merge(&mut pod, &json!({ "metadata": { "labels": labels } }));
        if !owner.is_null() {
            pod["metadata"]["ownerReferences"] = json!([owner]);
        }
        serde_json::from_value(pod).unwrap()
    }

    fn reference(kind: &str, name: &str) -> Value {
        json!({ "apiVersion": "v1", "kind": kind, "name": name, "uid": "u", "controller": true })
    }

    #[test]
    fn pods_are_listed_by_their_workload() {
        let set = json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet",
            "metadata": { "name": "web", "namespace": "shop" },
            "spec": { "replicas": 3, "selector": {}, "template": {} },
            "status": {
                "availableReplicas": 2, "updatedReplicas": 1,
                "conditions": [{ "type": "Ready", "status": "False", "reason": "RolloutHalted" }],
            },
        });
        let set: CollaSet = serde_json::from_value(set).unwrap();
        let operating = json!({ lifecycle::LabelKind::Operating.key("a"): "1" });
        let hash = json!({ TEMPLATE_HASH: "5f7" });
        let pods = [
            pod("web-1", &reference("CollaSet", "web"), &operating),
            pod("api-1", &reference("ReplicaSet", "api-5f7"), &hash),
            pod("api-2", &reference("ReplicaSet", "api-5f7"), &hash),
            pod("db-0", &reference("StatefulSet", "db"), &json!({})),
            pod("free", &reference("Job", "x"), &json!({ well_known::CONTROL: null })),
            pod("gone-1", &reference("CollaSet", "gone"), &json!({})),
        ];
        let lines = lines(&list(&[set], &pods), false);
        let words: Vec<Vec<&str>> = lines.iter().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(words[1], ["collaset/web", "2/3", "1", "1", "RolloutHalted"]);
        assert_eq!(words[2], ["deployment/api", "0/2", "-", "0", "-"]);
        assert_eq!(words[3], ["statefulset/db", "0/1", "-", "0", "-"]);
        assert_eq!(words.len(), 4, "{lines:?}");
    }
}
