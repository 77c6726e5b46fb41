//! Ownership of objects: adds the operator's metadata to an Instance's objects, and detects objects
//! of other clients.

use serde_json::Value;

use super::context::{TaskContext, TaskFailure, Work};
use crate::{
    object::{
        ObjectId, Scope, annotation, controller,
        enhance::{self, INSTANCE, enhance},
        items, label,
        retention::{ADOPT, outlives_instance},
        text,
    },
    object_write::entry,
    reasons,
};

/// Adds the operator's metadata to an object.
pub(super) fn own(
    object: &mut Value,
    scope: Scope,
    context: &TaskContext<'_>,
) -> Result<(), TaskFailure> {
    let owned = enhance(object, scope, &enhancement(context));
    owned.map_err(|error| {
        TaskFailure::new(
            &reasons::TASK_ENHANCEMENT_ERROR,
            format!("{}: {error}", ObjectId::of(object)),
        )
    })
}

/// Returns a namespaced object with the operator's metadata.
pub(super) fn enhanced(mut object: Value, context: &TaskContext<'_>) -> Result<Value, TaskFailure> {
    own(&mut object, Scope::Namespaced, context)?;
    Ok(object)
}

/// Adds the annotations of the run to an object that keeps its owners.
pub(super) fn annotate_run(object: &mut Value, context: &TaskContext<'_>) {
    enhance::annotate_run(object, &enhancement(context));
}

/// Instance and step that apply the objects.
fn enhancement<'a>(context: &TaskContext<'a>) -> enhance::Context<'a> {
    enhance::Context {
        namespace: &context.observed.namespace,
        instance: &context.observed.name,
        instance_uid: &context.observed.uid,
        generation: context.observed.generation,
        operator: context.version.operator(),
        operator_version: &context.version.spec.version,
        plan: context.path.plan,
        phase: context.path.phase,
        step: context.path.step,
        run: context.run,
    }
}

/// Returns the creator of an object that this Instance did not create and must not take over;
/// `None` for other objects.
pub(super) fn other_maker(
    live: &Value,
    object: &Value,
    context: &TaskContext<'_>,
    work: &Work<'_>,
) -> Option<String> {
    let uid = context.observed.uid.as_str();
    let is_owned = items(live, "/metadata/ownerReferences").any(|owner| owner["uid"] == uid);
    let is_known = entry(&work.inventory, &ObjectId::of(object))
        .is_some_and(|entry| !entry.uid.is_empty() && entry.uid == text(live, "/metadata/uid"));
    if is_owned || is_known {
        return None;
    }
    // An object has at most one controller.
    if let Some(owner) = controller(live) {
        return Some(format!("{} {}", text(owner, "/kind"), text(owner, "/name")));
    }
    if annotation(object, ADOPT) == Some("true") {
        return None;
    }
    match label(live, INSTANCE) {
        // Instances share cluster-scoped objects; KUDO may also have created the object for this
        // Instance.
        Some(_) if is_cluster_scoped(object) => None,
        // An earlier Instance of the same name has left it.
        Some(instance) if instance == context.observed.name && outlives(live) => None,
        Some(instance) => Some(format!("Instance {instance}")),
        None => Some("another client".to_owned()),
    }
}

fn outlives(live: &Value) -> bool {
    outlives_instance(&ObjectId::of(live).object_type, live)
}

fn is_cluster_scoped(object: &Value) -> bool {
    text(object, "/metadata/namespace").is_empty()
}
