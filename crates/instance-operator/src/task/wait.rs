//! Waits until a condition is true for objects, and writes nothing.

use std::{sync::Arc, time::Duration};

use podops_api::kudo::Task;
use podops_expressions::Expression;

use super::{
    context::{
        Known, Live, Progress, TaskContext, TaskFailure, TaskState, Work, live_object, scope_of,
    },
    render,
};
use crate::{
    object::{ObjectId, Scope, expressions, health::lags_behind, object_type},
    reasons,
};

/// Interval between discoveries: no event reports that a type is served.
const UNSERVED_RETRY: Duration = Duration::from_secs(60);

/// Compiled conditions of a task.
struct Conditions {
    until: Arc<Expression>,
    failed: Option<Arc<Expression>>,
}

pub(super) fn advance(
    task: &Task,
    context: &TaskContext<'_>,
    work: &mut Work<'_>,
) -> Result<TaskState, TaskFailure> {
    let conditions = conditions(task)?;
    let mut progress = Progress::default();
    for object in render::objects(&task.spec.resources, context)? {
        let mut id = ObjectId::of(&object);
        match scope_of(&object_type(&object), context, work) {
            Known::Unknown => {
                progress.is_incomplete = true;
                continue;
            }
            Known::Failed(error) => {
                progress.errors.push(error);
                continue;
            }
            Known::NotServed => {
                work.wait_until(context.now + UNSERVED_RETRY);
                progress.errors.push(format!("{} is not served by the cluster", id.object_type));
                continue;
            }
            Known::Served(Scope::Namespaced) => {
                id.namespace.clone_from(&context.observed.namespace);
            }
            Known::Served(Scope::Cluster) => id.namespace.clear(),
        }
        let state = state_of(&id, &conditions, context, work);
        if state == TaskState::Done {
            progress.healthy.push(id);
        }
        progress.add(state)?;
    }
    progress.watch_healthy(work);
    Ok(progress.into_state())
}

fn conditions(task: &Task) -> Result<Conditions, TaskFailure> {
    let spec = &task.spec;
    if spec.until.is_empty() {
        return Err(TaskFailure::new(&reasons::TASK_BUILD_ERROR, "a Wait task needs until"));
    }
    let until = compiled("until", &spec.until)?;
    let failed = (!spec.failed.is_empty()).then(|| compiled("failed", &spec.failed)).transpose()?;
    Ok(Conditions { until, failed })
}

fn compiled(field: &str, source: &str) -> Result<Arc<Expression>, TaskFailure> {
    expressions::compile(source)
        .map_err(|error| TaskFailure::new(&reasons::TASK_BUILD_ERROR, format!("{field}: {error}")))
}

fn state_of(
    id: &ObjectId,
    conditions: &Conditions,
    context: &TaskContext<'_>,
    work: &mut Work<'_>,
) -> TaskState {
    let live = match live_object(id, context, work) {
        Live::Exists(live) => live,
        Live::Unknown => return TaskState::Unknown,
        Live::Failed(error) => return TaskState::Error(error),
        Live::Absent => {
            work.awaited.insert(id.clone());
            return TaskState::Waiting(vec![format!("{id} does not exist")]);
        }
    };
    // Not failed: an object without a field that the condition reads, and a status of an earlier
    // generation.
    let has_failed = conditions
        .failed
        .as_ref()
        .filter(|_| !lags_behind(live))
        .is_some_and(|failed| expressions::is_true_for(failed, live).unwrap_or_default());
    if has_failed {
        let message = format!("{id}: the condition failed is true");
        return TaskState::failed(&reasons::FAILED_TERMINAL_STATE_ERROR, message);
    }
    let reason = match expressions::is_true_for(&conditions.until, live) {
        Ok(true) => return TaskState::Done,
        Ok(false) => "the condition until is false".to_owned(),
        Err(error) => format!("the condition until: {error}"),
    };
    work.awaited.insert(id.clone());
    TaskState::Waiting(vec![format!("{id}: {reason}")])
}
