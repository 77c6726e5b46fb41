//! Reads files from a Pod that creates them, and applies the files as ConfigMaps and Secrets.
//!
//! Artifacts are created once in a run: an artifact with the run's annotation is not changed, even
//! if the operator was killed before the status was written.

mod artifact;
mod pod;

use std::{collections::BTreeSet, sync::Arc};

use podops_api::kudo::{PipeFile, Task};
use podops_packages::verify::is_same_object;
use serde_json::Value;

use self::artifact::artifact;
use super::{
    apply::{Ownership, apply},
    artifact_names,
    context::{Live, TaskContext, TaskFailure, TaskState, Work, live_metadata, live_object},
    delete::delete_object,
    ownership::enhanced,
    render,
};
use crate::{
    object::{
        ObjectId, ObjectType, annotation,
        enhance::RUN,
        file::{FileRead, ReadFile},
        health::{Health, health},
        text,
    },
    object_write::entry,
    reasons,
    run::{self, run_and_attempt},
};

/// Maximum size of a file, in bytes.
pub const FILE_BYTES_MAX: usize = 1 << 20;

pub(super) fn advance(
    task: &Task,
    context: &TaskContext<'_>,
    work: &mut Work<'_>,
) -> Result<TaskState, TaskFailure> {
    check(task, context)?;
    let pod = enhanced(rendered_pod(task, context)?, context)?;
    let pod_id = ObjectId::of(&pod);
    let ids: Vec<ObjectId> = task.spec.pipe.iter().map(|file| artifact_id(file, context)).collect();
    let mut is_incomplete = false;
    let mut live = None;
    for id in ids.iter().chain([&pod_id]) {
        let known = if *id == pod_id {
            live_object(id, context, work)
        } else {
            live_metadata(id, context, work)
        };
        match known {
            Live::Failed(error) => return Ok(TaskState::Error(error)),
            Live::Unknown => is_incomplete = true,
            Live::Exists(object) if *id == pod_id => live = Some(object),
            Live::Exists(_) | Live::Absent => {}
        }
    }
    if is_incomplete {
        return Ok(TaskState::Unknown);
    }
    let missing: Vec<(&PipeFile, &ObjectId)> =
        task.spec.pipe.iter().zip(&ids).filter(|(_, id)| !is_of_run(id, context, work)).collect();
    if missing.is_empty() {
        return Ok(remove_pod(&pod_id, live, context, work));
    }
    if live.is_some() && !is_of_run(&pod_id, context, work) {
        // A Pod of an earlier, ended run has the files of that run.
        return Ok(remove_pod(&pod_id, live, context, work));
    }
    let Some(live) = live else { return apply_pod(pod, context, work) };
    match health(live) {
        Health::Waiting(reason) => {
            work.awaited.insert(pod_id.clone());
            Ok(TaskState::Waiting(vec![format!("{pod_id}: {reason}")]))
        }
        // An earlier attempt created the Pod.
        Health::Failed(_) if !is_of_attempt(&pod_id, context, work) => {
            Ok(remove_pod(&pod_id, Some(live), context, work))
        }
        Health::Failed(reason) => {
            Err(TaskFailure::new(&reasons::PIPE_TASK_ERROR, format!("{pod_id}: {reason}")))
        }
        Health::Healthy => apply_artifacts(live, &missing, context, work),
    }
}

/// Checks the fields of the task, and that its keys are unique in the plan.
fn check(task: &Task, context: &TaskContext<'_>) -> Result<(), TaskFailure> {
    if task.spec.pipe.is_empty() || task.spec.pod.is_empty() {
        return Err(invalid("a Pipe task needs pod and pipe".to_owned()));
    }
    for file in &task.spec.pipe {
        if file.file.is_empty() == file.env_file.is_empty() {
            return Err(invalid(format!(
                "pipe {}: exactly one of file and envFile is required",
                file.key
            )));
        }
        if !matches!(file.kind.as_str(), "Secret" | "ConfigMap") {
            return Err(invalid(format!("pipe {}: kind must be Secret or ConfigMap", file.key)));
        }
        if file.key.is_empty() || !file.key.chars().all(is_key) {
            return Err(invalid(format!(
                "pipe key {:?} must consist of letters, digits, - and _",
                file.key
            )));
        }
        let used = tasks_of_plan(context).into_iter().flat_map(|task| &task.spec.pipe);
        if used.filter(|other| other.key == file.key).count() > 1 {
            return Err(invalid(format!("pipe key {} is used twice", file.key)));
        }
        if let Some(other) = task.spec.pipe.iter().find(|other| is_same_object(file, other)) {
            return Err(invalid(format!(
                "pipe keys {} and {} have the same object, because its name has only letters and digits of them",
                file.key, other.key
            )));
        }
    }
    Ok(())
}

fn invalid(message: String) -> TaskFailure {
    TaskFailure::new(&reasons::TASK_BUILD_ERROR, message)
}

/// Tasks of the running plan, each once.
fn tasks_of_plan<'a>(context: &TaskContext<'a>) -> Vec<&'a Task> {
    let phases = context.version.spec.plans.get(context.path.plan).map(|plan| &plan.phases);
    let steps = phases.into_iter().flatten().flat_map(|phase| &phase.steps);
    let names: BTreeSet<&String> = steps.flat_map(|step| &step.tasks).collect();
    names.into_iter().filter_map(|name| context.version.task(name)).collect()
}

/// Returns whether a character is valid in a key of a Pipe task.
fn is_key(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '_' | '-')
}

fn rendered_pod(task: &Task, context: &TaskContext<'_>) -> Result<Value, TaskFailure> {
    let text = render::render(&task.spec.pod, &render::data(context), context)?;
    let name = artifact_names::name(&context.observed.name, context.path, "pipepod");
    let files = task.spec.pipe.iter().map(path_of);
    pod::with_waiter(&text, &name, &task.spec.image, files)
}

fn path_of(file: &PipeFile) -> &str {
    if file.file.is_empty() { &file.env_file } else { &file.file }
}

fn artifact_id(file: &PipeFile, context: &TaskContext<'_>) -> ObjectId {
    ObjectId {
        object_type: ObjectType { api_version: "v1".to_owned(), kind: file.kind.clone() },
        namespace: context.observed.namespace.clone(),
        name: artifact_names::name(&context.observed.name, context.path, &file.key),
    }
}

/// Returns whether an object was created in this run.
fn is_of_run(id: &ObjectId, context: &TaskContext<'_>, work: &Work<'_>) -> bool {
    let observed = context.observed;
    let live = observed.metadata_of(id);
    let live = live.and_then(Option::as_ref);
    let is_recorded =
        entry(&work.inventory, id).is_some_and(|entry| run::is_of_run(&entry.run, context.run));
    // An operator that was killed has not recorded the object.
    live.is_some_and(|live| is_recorded || annotation(live, RUN) == Some(context.run))
}

/// Returns whether an object of this run was created in this attempt of the step.
fn is_of_attempt(id: &ObjectId, context: &TaskContext<'_>, work: &Work<'_>) -> bool {
    let run = run_and_attempt(context.run, context.attempt);
    context.attempt <= 1 || entry(&work.inventory, id).is_some_and(|entry| entry.run == run)
}

fn apply_pod(
    pod: Value,
    context: &TaskContext<'_>,
    work: &mut Work<'_>,
) -> Result<TaskState, TaskFailure> {
    Ok(apply(vec![pod], Ownership::Kept, context, work)?.into_state())
}

/// Reads the unknown files of a Pod, and applies their artifacts.
fn apply_artifacts(
    pod: &Value,
    missing: &[(&PipeFile, &ObjectId)],
    context: &TaskContext<'_>,
    work: &mut Work<'_>,
) -> Result<TaskState, TaskFailure> {
    let mut artifacts = Vec::new();
    let (pod, uid) = (ObjectId::of(pod), text(pod, "/metadata/uid"));
    for (file, id) in missing {
        let read = ReadFile {
            pod: pod.clone(),
            uid: uid.to_owned(),
            container: pod::WAITER.to_owned(),
            path: path_of(file).to_owned(),
        };
        match context.observed.files.get(&read) {
            None => drop(work.needs.files.insert(read)),
            Some(FileRead::Content(bytes)) => {
                artifacts.push(enhanced(artifact(file, id, bytes)?, context)?);
            }
            Some(FileRead::TooLarge) => {
                let message = format!("file {} has more than {FILE_BYTES_MAX} bytes", read.path);
                return Err(TaskFailure::new(&reasons::PIPE_TASK_ERROR, message));
            }
            Some(FileRead::CommandFailed(error)) => {
                let message = format!("reading {} of {pod}: {error}", read.path);
                return Err(TaskFailure::new(&reasons::PIPE_TASK_ERROR, message));
            }
        }
    }
    if artifacts.len() < missing.len() {
        return Ok(TaskState::Unknown);
    }
    let progress = apply(artifacts, Ownership::Kept, context, work)?;
    let state = progress.into_state();
    // The Pod is deleted once the artifacts are observed.
    Ok(if state == TaskState::Done { TaskState::Unknown } else { state })
}

fn remove_pod(
    id: &ObjectId,
    live: Option<&Arc<Value>>,
    context: &TaskContext<'_>,
    work: &mut Work<'_>,
) -> TaskState {
    live.map_or(TaskState::Done, |live| delete_object(id, live, context, work))
}
