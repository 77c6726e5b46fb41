//! Whose objects are: what the operator adds to those of an Instance, and which it does not touch.

use serde_json::Value;

use super::context::{TaskContext, TaskFailure, Work};
use crate::{
    object::{
        ObjectId, Scope, annotation, controller,
        enhance::{self, INSTANCE, enhance},
        items, label, text,
    },
    object_write::entry,
    reasons,
};

/// Annotation that permits taking over an object that another client made, and no controller owns.
pub(super) const ADOPT: &str = "kudo.dev/adopt";

/// Adds to an object what the operator adds.
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

/// Returns a namespaced object with what the operator adds to it.
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

/// Returns who made an object, if it was not this Instance and must not be taken over.
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
    // An object has one controller only.
    if let Some(owner) = controller(live) {
        return Some(format!("{} {}", text(owner, "/kind"), text(owner, "/name")));
    }
    if annotation(object, ADOPT) == Some("true") {
        return None;
    }
    match label(live, INSTANCE) {
        // Instances share cluster-scoped objects; it may also be what KUDO made for this one.
        Some(_) if is_cluster_scoped(object) => None,
        Some(instance) => Some(format!("Instance {instance}")),
        None => Some("another client".to_owned()),
    }
}

fn is_cluster_scoped(object: &Value) -> bool {
    text(object, "/metadata/namespace").is_empty()
}
