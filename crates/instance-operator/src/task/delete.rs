//! Deletes objects, and waits until they do not exist.

use podops_api::kudo::Task;

use super::{
    apply::{enhancement, other_maker},
    context::{Known, TaskContext, TaskFailure, TaskState, Work, scope_of},
    render,
};
use crate::{
    effect::Effect,
    object::{ObjectId, Scope, enhance::enhance, object_type, text},
};

pub(super) fn advance(
    task: &Task,
    context: &TaskContext<'_>,
    work: &mut Work<'_>,
) -> Result<TaskState, TaskFailure> {
    let mut waits = Vec::new();
    let mut errors = Vec::new();
    let mut is_incomplete = false;
    for mut object in render::objects(&task.spec.resources, context)? {
        let scope = match scope_of(&object_type(&object), context, work) {
            Known::Served(scope) => scope,
            // No object of the type exists.
            Known::NotServed => continue,
            Known::Unknown => {
                is_incomplete = true;
                continue;
            }
        };
        let enhanced = enhance(&mut object, scope, &enhancement(context));
        enhanced.map_err(|error| TaskFailure::new("TaskEnhancementError", error.to_string()))?;
        let id = ObjectId::of(&object);
        debug_assert_eq!(scope == Scope::Cluster, id.namespace.is_empty());
        match context.observed.objects.get(&id) {
            None => {
                work.needs.objects.insert(id);
                is_incomplete = true;
            }
            Some(None) => {}
            Some(Some(live)) => {
                if let Some(other) = other_maker(live, &object, context, work) {
                    errors.push(format!("{id} was made by {other}, and is not deleted"));
                } else if let Some(failure) = context.observed.failures.get(&id) {
                    errors.push(format!("{id}: {failure}"));
                } else if text(live, "/metadata/deletionTimestamp").is_empty() {
                    is_incomplete = true;
                    let uid = text(live, "/metadata/uid").to_owned();
                    work.effects.push(Effect::Delete { id, uid });
                } else {
                    waits.push(format!("{id} is being deleted"));
                    work.awaited.insert(id);
                }
            }
        }
    }
    if is_incomplete {
        return Ok(TaskState::Unknown);
    }
    if let Some(error) = errors.into_iter().next() {
        return Ok(TaskState::Error(error));
    }
    Ok(if waits.is_empty() { TaskState::Done } else { TaskState::Waiting(waits) })
}
