//! Advances the tasks of a step. A task is evaluated repeatedly until it is done, and not
//! afterwards.

pub mod artifact_names;

mod apply;
mod child;
mod context;
mod delete;
mod ownership;
mod pipe;
mod placeholders;
mod render;
mod wait;

use podops_api::kudo::Task;
use podops_packages::values;

pub use self::context::{TaskContext, TaskFailure, TaskPath, TaskState, Work};
pub use self::pipe::FILE_BYTES_MAX;
use crate::reasons;

/// Advances a task; returns its state.
pub fn advance(task: &Task, context: &TaskContext<'_>, work: &mut Work<'_>) -> TaskState {
    let result = match task.kind.as_str() {
        "Apply" => apply::advance(task, context, work),
        "Delete" => delete::advance(task, context, work),
        "Toggle" => match is_on(task, context) {
            Ok(true) => apply::advance(task, context, work),
            Ok(false) => delete::advance(task, context, work),
            Err(failure) => Err(failure),
        },
        "Pipe" => pipe::advance(task, context, work),
        "KudoOperator" => child::advance(task, context, work),
        "Wait" => wait::advance(task, context, work),
        "Dummy" => Ok(dummy(task)),
        kind => Err(TaskFailure::new(
            &reasons::TASK_BUILD_ERROR,
            format!("tasks of the kind {kind:?} are not supported"),
        )),
    };
    result.unwrap_or_else(TaskState::Failed)
}

fn dummy(task: &Task) -> TaskState {
    match (task.spec.want_err, task.spec.fatal, task.spec.done) {
        (true, true, _) => TaskState::failed(&reasons::DUMMY_TASK_ERROR, "dummy error"),
        (true, false, _) => TaskState::Error("dummy error".to_owned()),
        (false, _, true) => TaskState::Done,
        (false, _, false) => {
            TaskState::Waiting(vec!["the Dummy task is never done; cancel the run".to_owned()])
        }
    }
}

/// Returns the boolean value of a Toggle task's parameter.
fn is_on(task: &Task, context: &TaskContext<'_>) -> Result<bool, TaskFailure> {
    let name = &task.spec.parameter;
    if name.is_empty() {
        return Err(TaskFailure::new(
            &reasons::TASK_BUILD_ERROR,
            "a Toggle task needs a parameter",
        ));
    }
    let value = context.parameters.get(name);
    let value = value.ok_or_else(|| {
        TaskFailure::new(&reasons::TOGGLE_TASK_ERROR, format!("parameter {name} does not exist"))
    })?;
    let on = value.as_str().and_then(values::boolean);
    on.ok_or_else(|| {
        TaskFailure::new(&reasons::TOGGLE_TASK_ERROR, format!("parameter {name} is not a boolean"))
    })
}
