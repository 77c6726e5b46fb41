//! Deletes objects, workloads gracefully, and waits until the objects no longer exist.

use podops_api::kudo::Task;
use serde_json::Value;

use super::{
    context::{
        Known, Live, Progress, TaskContext, TaskFailure, TaskState, Work, live_metadata,
        live_object, scope_of,
    },
    ownership::{other_maker, own},
    render,
};
use crate::{
    object::{
        ObjectId,
        graceful::{BeforeDeletion, before_deletion, is_scalable},
        is_deleted, object_type, text,
    },
    object_write::ObjectWrite,
};

pub(super) fn advance(
    task: &Task,
    context: &TaskContext<'_>,
    work: &mut Work<'_>,
) -> Result<TaskState, TaskFailure> {
    let mut progress = Progress::default();
    for mut object in render::objects(&task.spec.resources, context)? {
        let scope = match scope_of(&object_type(&object), context, work) {
            Known::Served(scope) => scope,
            // No object of the type exists.
            Known::NotServed => continue,
            Known::Failed(error) => {
                progress.errors.push(error);
                continue;
            }
            Known::Unknown => {
                progress.is_incomplete = true;
                continue;
            }
        };
        own(&mut object, scope, context)?;
        let id = ObjectId::of(&object);
        let live = if is_scalable(&id.object_type) {
            live_object(&id, context, work)
        } else {
            live_metadata(&id, context, work)
        };
        let state = match live {
            Live::Unknown => TaskState::Unknown,
            Live::Failed(error) => TaskState::Error(error),
            Live::Absent => {
                work.forget(&id);
                TaskState::Done
            }
            Live::Exists(live) => match other_maker(live, &object, context, work) {
                Some(other) => {
                    TaskState::Error(format!("{id} was made by {other}, and is not deleted"))
                }
                None => delete_workload(&id, live, context, work, task.spec.graceful),
            },
        };
        progress.add(state)?;
    }
    Ok(progress.into_state())
}

/// Deletes an existing object; a workload gracefully if requested, or if its Pods are under
/// control.
fn delete_workload(
    id: &ObjectId,
    live: &Value,
    context: &TaskContext<'_>,
    work: &mut Work<'_>,
    graceful: Option<bool>,
) -> TaskState {
    match before_deletion(live, graceful) {
        BeforeDeletion::Nothing => delete_object(id, live, context, work),
        BeforeDeletion::Scale => {
            let uid = text(live, "/metadata/uid").to_owned();
            work.writes.push(ObjectWrite::ScaleToZero { id: id.clone(), uid });
            TaskState::Unknown
        }
        BeforeDeletion::Wait(reason) => {
            work.awaited.insert(id.clone());
            TaskState::Waiting(vec![format!("{id}: {reason}")])
        }
    }
}

/// Deletes an existing object, and waits until the object no longer exists.
pub(super) fn delete_object(
    id: &ObjectId,
    live: &Value,
    context: &TaskContext<'_>,
    work: &mut Work<'_>,
) -> TaskState {
    if let Some(failure) = context.observed.failures.get(id) {
        return TaskState::Error(format!("{id}: {failure}"));
    }
    if !is_deleted(live) {
        let uid = text(live, "/metadata/uid").to_owned();
        work.writes.push(ObjectWrite::Delete { id: id.clone(), uid });
        return TaskState::Unknown;
    }
    work.awaited.insert(id.clone());
    TaskState::Waiting(vec![format!("{id} is being deleted")])
}
