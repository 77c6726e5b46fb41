//! Renders changes of an Instance as API writes, each conditional on the observed state.

use podops_api::kudo::{GROUP, InstanceStatus, VERSION};
use podops_client::write::{Change, JsonPatch, Resource, Target, Write};
use serde_json::{Value, json};

use crate::{schedule::InstanceChange, view::Observed};

/// Resource of Instances.
pub const INSTANCES: Resource = Resource { group: GROUP, version: VERSION, plural: "instances" };

fn target(observed: &Observed) -> Target {
    Target::new(INSTANCES, &observed.namespace, &observed.name)
}

/// Renders the status. The write is conditional on the resourceVersion, because the status records
/// the observed input: for another spec, another run may be due.
#[must_use]
pub fn status(observed: &Observed, reported: &InstanceStatus, status: &InstanceStatus) -> Write {
    let mut change = Change::status(&observed.uid, reported, status);
    if let Change::Merge(body) = &mut change {
        body["metadata"]["resourceVersion"] = json!(observed.resource_version);
    }
    Write::Patch { target: target(observed).subresource("status"), change }
}

/// Renders a change of the Instance itself.
#[must_use]
pub fn change(observed: &Observed, change: &InstanceChange) -> Write {
    let change = match change {
        InstanceChange::AddFinalizer(finalizer) | InstanceChange::RemoveFinalizer(finalizer) => {
            let name = finalizer.as_str();
            let known = observed.finalizers.iter().filter(|known| *known != name);
            let mut finalizers: Vec<Value> = known.map(|known| json!(known)).collect();
            if matches!(change, InstanceChange::AddFinalizer(_)) {
                finalizers.push(json!(name));
            }
            merge(observed, &json!({ "finalizers": finalizers }), None)
        }
        InstanceChange::SetParameters(values) => {
            let values: serde_json::Map<_, _> =
                values.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
            merge(observed, &json!({}), Some(json!({ "parameters": values })))
        }
        InstanceChange::SetRequestUid(uid) => {
            merge(observed, &json!({}), Some(json!({ "planExecution": { "uid": uid } })))
        }
        // The status write has changed the resourceVersion. A new request changes the generation,
        // and is not removed.
        InstanceChange::ClearRequest => JsonPatch::default()
            .test(&["metadata", "uid"], observed.uid.as_str())
            .test(&["metadata", "generation"], observed.generation)
            .add(&["spec", "planExecution"], json!({}))
            .build(),
    };
    Write::Patch { target: target(observed), change }
}

fn merge(observed: &Observed, metadata: &Value, spec: Option<Value>) -> Change {
    let mut body = json!({ "metadata": metadata });
    body["metadata"]["uid"] = json!(observed.uid);
    body["metadata"]["resourceVersion"] = json!(observed.resource_version);
    if let Some(spec) = spec {
        body["spec"] = spec;
    }
    Change::Merge(body)
}
