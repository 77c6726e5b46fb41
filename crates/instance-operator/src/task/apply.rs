//! Applies objects, and waits until they are healthy.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use podops_api::kudo::Task;
use podops_packages::translate::Translated;
use serde_json::Value;

use super::{
    context::{
        Known, Live, Progress, TaskContext, TaskFailure, TaskState, Work, live_metadata,
        live_object, scope_of,
    },
    delete::delete_object,
    ownership::{other_maker, own},
    render,
};
use crate::{
    object::{
        ObjectId, ObjectType, enhance,
        field_managers::{applied_by_kudo, is_applied_by_kudo},
        hash::{self, ContentHash, Dependency, NO_CONTENT},
        health::{Health, health, is_judged},
        is_deleted, is_true, object_type,
        retention::ADOPT,
        secret, text,
    },
    object_write::{ObjectWrite, applied_digest, entry},
    reasons,
    run::{self, run_and_attempt},
};

/// Part of the API server's message about a change of an immutable field.
const IMMUTABLE: &str = "field is immutable";

/// Interval between discoveries of a type that is being defined.
const UNSERVED_RETRY: Duration = Duration::from_secs(2);

/// Kinds that others depend on, applied first in this order.
const FIRST: [&str; 7] = [
    "Namespace",
    "CustomResourceDefinition",
    "ServiceAccount",
    "ClusterRole",
    "Role",
    "ClusterRoleBinding",
    "RoleBinding",
];

pub(super) fn advance(
    task: &Task,
    context: &TaskContext<'_>,
    work: &mut Work<'_>,
) -> Result<TaskState, TaskFailure> {
    let mut rendered = render::rendered(&task.spec.resources, context)?;
    rendered.sort_by_key(|rendered| order(&object_type(&rendered.object).kind));
    let translated: Vec<(String, Translated)> =
        rendered.iter().filter_map(|rendered| rendered.translated.clone()).collect();
    let objects = rendered.into_iter().map(|rendered| rendered.object).collect();
    let planned = work.writes.len();
    let progress = apply(objects, Ownership::Controller, context, work)?;
    // Translations of objects that are not written are not reported.
    let written: Vec<String> =
        work.writes[planned..].iter().map(|write| write.id().object_type.to_string()).collect();
    for (resource, Translated { from, to }) in translated {
        if written.contains(&to) {
            let message = format!("template {resource}: {from} was applied as {to}");
            work.events.push(reasons::API_VERSION_TRANSLATED.with(message));
        }
    }
    Ok(progress.into_state())
}

fn order(kind: &str) -> usize {
    FIRST.iter().position(|first| *first == kind).unwrap_or(FIRST.len())
}

/// Owner of an applied object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ownership {
    /// The Instance, as controller.
    Controller,
    /// The owners in the object are kept.
    Kept,
}

/// Applies objects and waits until they are healthy.
pub(super) fn apply(
    objects: Vec<Value>,
    ownership: Ownership,
    context: &TaskContext<'_>,
    work: &mut Work<'_>,
) -> Result<Progress, TaskFailure> {
    let mut progress = Progress::default();
    let mut prepared = Vec::new();
    for mut object in objects {
        let object_type = object_type(&object);
        match scope_of(&object_type, context, work) {
            Known::Unknown => progress.is_incomplete = true,
            Known::Failed(error) => progress.errors.push(error),
            Known::NotServed if is_being_defined(&object_type, context, work) => {
                // The API server serves a type some time after its definition is established.
                work.wait_until(context.now + UNSERVED_RETRY);
                progress.waits.push(format!("{object_type} is not served yet"));
            }
            Known::NotServed => {
                let message = format!("{object_type} is not served by the cluster");
                return Err(TaskFailure::new(&reasons::TASK_ENHANCEMENT_ERROR, message));
            }
            Known::Served(scope) => {
                if ownership == Ownership::Controller {
                    own(&mut object, scope, context)?;
                }
                prepared.push(object);
            }
        }
    }
    annotate(&mut prepared, context, work, &mut progress);
    if progress.is_incomplete || !progress.errors.is_empty() {
        return Ok(progress);
    }
    for object in prepared {
        advance_object(object, context, work, &mut progress)?;
        // Later objects may depend on this object.
        if !progress.errors.is_empty() {
            break;
        }
    }
    progress.watch_healthy(work);
    Ok(progress)
}

/// Returns whether the step defines a type, or the run has applied a definition of its group.
fn is_being_defined(object_type: &ObjectType, context: &TaskContext<'_>, work: &Work<'_>) -> bool {
    let suffix = format!(".{}", object_type.group());
    let mut applied = work.inventory.iter().filter(|entry| {
        entry.kind == "CustomResourceDefinition" && run::is_of_run(&entry.run, context.run)
    });
    applied.any(|entry| entry.name.ends_with(&suffix)) || is_defined_in_step(object_type, context)
}

/// Returns whether a template of the step defines a type.
fn is_defined_in_step(object_type: &ObjectType, context: &TaskContext<'_>) -> bool {
    let tasks = context.step.tasks.iter().filter_map(|name| context.version.task(name));
    let applied = tasks.filter(|task| task.kind == "Apply");
    let mut objects =
        applied.filter_map(|task| render::objects(&task.spec.resources, context).ok()).flatten();
    objects.any(|object| {
        let kind = text(&object, "/kind");
        kind == "CustomResourceDefinition"
            && text(&object, "/spec/group") == object_type.group()
            && text(&object, "/spec/names/kind") == object_type.kind
    })
}

/// A dependency could not be read.
struct Unreadable {
    message: String,
}

/// Sets the dependencies hash of Pod templates, and the annotations of Secrets.
fn annotate(
    objects: &mut [Value],
    context: &TaskContext<'_>,
    work: &mut Work<'_>,
    progress: &mut Progress,
) {
    let mut known: BTreeMap<Dependency, ContentHash> = BTreeMap::new();
    for dependency in objects.iter().flat_map(hash::dependencies) {
        if known.contains_key(&dependency) {
            continue;
        }
        match dependency_hash(&dependency, objects, context, work) {
            Ok(Some(hash)) => drop(known.insert(dependency, hash)),
            Ok(None) => progress.is_incomplete = true,
            Err(unreadable) => progress.errors.push(unreadable.message),
        }
    }
    for object in objects {
        hash::annotate(object, |dependency| known.get(dependency).copied().unwrap_or(NO_CONTENT));
        secret::annotate(object);
    }
}

/// Returns the hash of a dependency: of the same task's object, else of the object last applied by
/// the Instance, else of the object last applied by KUDO, else of the live object; `None` if the
/// object must be read first. The status has no hashes of Secrets: those applied by the Instance have
/// theirs in an annotation.
///
/// # Errors
///
/// [`Unreadable`] if the object could not be read.
fn dependency_hash(
    dependency: &Dependency,
    objects: &[Value],
    context: &TaskContext<'_>,
    work: &mut Work<'_>,
) -> Result<Option<ContentHash>, Unreadable> {
    let object_type = ObjectType { api_version: "v1".to_owned(), kind: dependency.kind.to_owned() };
    let namespace = context.observed.namespace.clone();
    let id = ObjectId { object_type, namespace, name: dependency.name.clone() };
    if let Some(object) = objects.iter().find(|object| ObjectId::of(object) == id) {
        return Ok(Some(content_hash(object)));
    }
    let own = entry(&work.inventory, &id);
    let is_own = own.is_some();
    let applied = own.and_then(|entry| hex::decode(&entry.hash).ok());
    if let Some(applied) = applied.and_then(|bytes| ContentHash::try_from(bytes).ok()) {
        return Ok(Some(applied));
    }
    match live_object(&id, context, work) {
        // Fields that the API server added to KUDO's object are not hashed.
        Live::Exists(live) => {
            let applied = applied_by_kudo(live);
            let known = secret::applied_content(live).filter(|_| is_own);
            Ok(Some(known.unwrap_or_else(|| content_hash(applied.as_ref().unwrap_or(live)))))
        }
        Live::Absent => Ok(Some(NO_CONTENT)),
        Live::Unknown => Ok(None),
        Live::Failed(message) => Err(Unreadable { message }),
    }
}

fn content_hash(object: &Value) -> ContentHash {
    hash::content(object).unwrap_or(NO_CONTENT)
}

/// Applies an object if this run has not applied it; otherwise waits for its health.
fn advance_object(
    mut object: Value,
    context: &TaskContext<'_>,
    work: &mut Work<'_>,
    progress: &mut Progress,
) -> Result<(), TaskFailure> {
    let id = ObjectId::of(&object);
    if is_job(&id) && prepare_job(&mut object, &id, context, work) {
        progress.is_incomplete = true;
        return Ok(());
    }
    let entry = entry(&work.inventory, &id);
    let is_unchanged = entry.is_some_and(|entry| entry.applied == applied_digest(&object));
    let run = run_and_attempt(context.run, context.attempt);
    // A job that failed in an earlier run or attempt would fail this run too, and is deleted. No
    // other kind is deleted because of a failure, for example no Instance with its data.
    let may_have_failed = ends(&id) && entry.is_some();
    let is_applied = is_unchanged
        && entry.is_some_and(|entry| entry.run == run)
        && has_applied_values(&object, &id, context, work);
    if is_applied && !is_judged(&object) {
        return Ok(());
    }
    let live = if is_applied || may_have_failed {
        live_object(&id, context, work)
    } else {
        live_metadata(&id, context, work)
    };
    let mut is_takeover = false;
    match live {
        Live::Unknown => {
            progress.is_incomplete = true;
            return Ok(());
        }
        Live::Failed(error) => {
            progress.errors.push(error);
            return Ok(());
        }
        Live::Exists(live) if is_applied => return wait_for(&id, live, work, progress),
        Live::Exists(live)
            if may_have_failed
                && matches!(health(live), Health::Failed(_))
                && other_maker(live, &object, context, work).is_none() =>
        {
            return progress.add(delete_object(&id, live, context, work));
        }
        // The deletion would remove an applied change.
        Live::Exists(live) if is_deleted(live) => {
            progress.waits.push(format!("{id} is being deleted"));
            work.awaited.insert(id);
            return Ok(());
        }
        Live::Exists(live) => {
            is_takeover = is_applied_by_kudo(live);
            if let Some(other) = other_maker(live, &object, context, work) {
                refuse(id, &other, work, progress);
                return Ok(());
            }
            if is_unchanged && secret::has_equal_values(&object, live) {
                enhance::keep_run(&mut object, live);
            }
        }
        // Another client may have deleted the object during the run.
        Live::Absent => {}
    }
    progress.is_incomplete = true;
    work.writes.push(ObjectWrite::Apply {
        object: Box::new(object),
        task: context.path.task.to_owned(),
        run,
        is_takeover,
    });
    Ok(())
}

fn is_job(id: &ObjectId) -> bool {
    id.object_type.is("batch", "Job")
}

/// Returns whether objects of this type end.
fn ends(id: &ObjectId) -> bool {
    is_job(id) || id.object_type.is("apps.kusionstack.io", "OperationJob")
}

/// Returns whether a Secret that was applied has the values of this one, as far as is known; true for
/// any other object. The status has no digest of the values.
fn has_applied_values(
    object: &Value,
    id: &ObjectId,
    context: &TaskContext<'_>,
    work: &mut Work<'_>,
) -> bool {
    !secret::is_secret(object)
        || matches!(live_metadata(id, context, work),
            Live::Exists(live) if !secret::has_other_values(object, live))
}

/// Reports an object of another client, and waits until the object is deleted.
fn refuse(id: ObjectId, other: &str, work: &mut Work<'_>, progress: &mut Progress) {
    progress.errors.push(format!(
        "{id} was made by {other}, and is not changed; annotate it in the template with {ADOPT}: \"true\" \
         to take it over"
    ));
    work.awaited.insert(id);
}

/// Keeps the immutable fields of an existing Job. Returns whether the Job is deleted to be
/// replaced.
fn prepare_job(
    job: &mut Value,
    id: &ObjectId,
    context: &TaskContext<'_>,
    work: &mut Work<'_>,
) -> bool {
    let Some(live) = context.observed.objects.get(id).and_then(Option::as_ref) else {
        return false;
    };
    enhance::keep_job_template(job, live);
    let is_replaced =
        is_to_be_replaced(id, live, context) && other_maker(live, job, context, work).is_none();
    if is_replaced {
        let uid = text(live, "/metadata/uid").to_owned();
        work.writes.push(ObjectWrite::Delete { id: id.clone(), uid });
    }
    is_replaced
}

/// Returns whether the API server has rejected a change of an ended Job. A Job cannot be changed,
/// so an ended Job is replaced.
fn is_to_be_replaced(id: &ObjectId, live: &Value, context: &TaskContext<'_>) -> bool {
    let rejected = context.observed.failures.get(id);
    let has_ended = is_true(live, "Complete") || is_true(live, "Failed");
    rejected.is_some_and(|message| message.contains(IMMUTABLE)) && has_ended && !is_deleted(live)
}

fn wait_for(
    id: &ObjectId,
    live: &Arc<Value>,
    work: &mut Work<'_>,
    progress: &mut Progress,
) -> Result<(), TaskFailure> {
    match health(live) {
        Health::Healthy => progress.healthy.push(id.clone()),
        Health::Waiting(reason) => {
            work.awaited.insert(id.clone());
            progress.waits.push(format!("{id}: {reason}"));
        }
        Health::Failed(reason) => {
            let message = format!("{id}: {reason}");
            return Err(TaskFailure::new(&reasons::FAILED_TERMINAL_STATE_ERROR, message));
        }
    }
    Ok(())
}
