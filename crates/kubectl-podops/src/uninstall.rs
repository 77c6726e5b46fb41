//! Uninstalls Podops: which objects are changed and deleted next. Pure.
//!
//! The steps of one stage are carried out, then the cluster is read again, until no stage has steps.
//! So an uninstallation may be interrupted at any point, and may begin after a part was removed by
//! other means.

mod object;
mod release;
mod step;

use clap::ValueEnum;

pub use object::{Kind, Object, Scope};
pub use step::{Change, Step};

use object::{CUSTOM, INSTALLED};

/// Label of the objects of Podops.
const PART_OF: &str = "app.kubernetes.io/part-of";
/// Value of [`PART_OF`].
const PODOPS: &str = "podops";

/// What happens to the Pods of CollaSets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workloads {
    /// They run on, without an owner.
    Keep,
    /// CollaSets are deleted, and their Pods through the lifecycle.
    Delete,
}

/// What of Podops is in a cluster.
#[derive(Clone, Debug, Default)]
pub struct Remains {
    /// Objects of all kinds in [`kinds`], those that do not concern Podops included.
    pub objects: Vec<Object>,
    /// Operators that are not running.
    pub absent_operators: Vec<String>,
    /// Number of operators that are running.
    pub running_operators: usize,
    /// Namespace of the operators.
    pub operator_namespace: String,
}

impl Remains {
    fn of(&self, kind: &'static str) -> impl Iterator<Item = &Object> {
        self.objects.iter().filter(move |object| object.kind.name == kind)
    }

    fn is_absent(&self, operator: &str) -> bool {
        self.absent_operators.iter().any(|absent| absent == operator)
    }
}

/// Kinds that an uninstallation reads.
pub fn kinds() -> impl Iterator<Item = &'static Kind> {
    object::ALL.iter()
}

/// Why nothing can be uninstalled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Nothing would delete the Pods.
    #[error(
        "{operator} is not running, so the Pods of {count} CollaSets cannot be deleted through the \
         lifecycle; start it, or use --workloads keep"
    )]
    OperatorAbsent {
        /// The operator.
        operator: &'static str,
        /// Number of CollaSets.
        count: usize,
    },
    /// New Pods of a workload would never become ready.
    #[error(
        "the Pod template of {0} has the readiness gate of Podops, and new Pods would never become \
         ready; remove the gate from the template"
    )]
    GateInTemplate(String),
}

/// What comes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// These steps.
    Steps(Vec<Step>),
    /// Nothing before this has happened.
    Wait(String),
    /// Nothing is left.
    Done,
}

/// Returns what comes next.
///
/// # Errors
///
/// [`Refusal`] if it would strand Pods.
pub fn next(remains: &Remains, workloads: Workloads) -> Result<Next, Refusal> {
    let stages = stages(remains, workloads)?;
    Ok(stages.into_iter().find(|stage| *stage != Next::Done).unwrap_or(Next::Done))
}

/// Returns all stages, in their order, as they are now.
///
/// # Errors
///
/// [`Refusal`] if an uninstallation would strand Pods.
pub fn stages(remains: &Remains, workloads: Workloads) -> Result<Vec<Next>, Refusal> {
    if let Some(workload) = remains.objects.iter().find(|object| release::has_gate(object)) {
        return Err(Refusal::GateInTemplate(workload.to_string()));
    }
    Ok(vec![
        if workloads == Workloads::Delete { delete_sets(remains)? } else { Next::Done },
        delete_installed(remains, INSTALLED.admission),
        stop_operators(remains),
        release(remains),
        delete_custom(remains),
        delete_installed(remains, INSTALLED.rest),
        delete_definitions(remains),
        await_deletions(remains),
    ])
}

/// Returns whether an uninstallation depends on the object.
#[must_use]
pub fn concerns(object: &Object) -> bool {
    match object.kind.name {
        "Pod" | "PersistentVolumeClaim" => !release::changes(object).is_empty(),
        "Service" => object.label(PART_OF).is_some() || !release::changes(object).is_empty(),
        "ControllerRevision" => release::is_owned(object),
        "Deployment" | "StatefulSet" | "DaemonSet" => {
            object.label(PART_OF).is_some() || release::has_gate(object)
        }
        _ => true,
    }
}

/// Deletes CollaSets, and waits until their Pods are deleted.
fn delete_sets(remains: &Remains) -> Result<Next, Refusal> {
    let count = remains.of("CollaSet").count();
    if count == 0 {
        return Ok(Next::Done);
    }
    for operator in ["collaset-operator", "lifecycle-operator"] {
        if remains.is_absent(operator) {
            return Err(Refusal::OperatorAbsent { operator, count });
        }
    }
    let steps = deletions(remains.of("CollaSet"));
    let waiting = format!("waiting for the Pods of {count} CollaSets to be deleted");
    Ok(if steps.is_empty() { Next::Wait(waiting) } else { Next::Steps(steps) })
}

/// Deletes installed objects of these kinds; does not wait until they are gone.
fn delete_installed(remains: &Remains, kinds: &[&str]) -> Next {
    let of_kinds = remains.objects.iter().filter(|object| kinds.contains(&object.kind.name));
    steps(deletions(of_kinds.filter(|object| is_installed(object, remains))))
}

/// Returns whether the object belongs to the installation: by its label, or because an operator has
/// created it.
fn is_installed(object: &Object, remains: &Remains) -> bool {
    let operator = match object.kind.name {
        "Lease" => Some(&*object.name),
        "Secret" => object.name.strip_suffix("-admission"),
        _ => None,
    };
    let is_created = operator.is_some_and(|operator| INSTALLED.operators.contains(&operator))
        && object.namespace.as_deref() == Some(&*remains.operator_namespace);
    object.label(PART_OF) == Some(PODOPS) || is_created
}

/// Deletes the Deployments, and waits until no operator runs: one that runs would add finalizers and
/// owners again, or act on the deletion of its objects.
fn stop_operators(remains: &Remains) -> Next {
    let deployments = deletions(remains.of("Deployment").filter(|d| is_installed(d, remains)));
    if !deployments.is_empty() {
        return Next::Steps(deployments);
    }
    if remains.running_operators > 0 {
        let running = remains.running_operators;
        return Next::Wait(format!("waiting for the Leases of {running} operators to expire"));
    }
    Next::Done
}

/// Removes owners, labels, annotations and finalizers from the objects of users.
fn release(remains: &Remains) -> Next {
    let changes = remains.objects.iter().flat_map(|object| {
        let changes = release::changes(object).into_iter();
        changes.map(|change| Step { object: object.clone(), change })
    });
    let revisions = remains.of("ControllerRevision");
    let revisions = revisions.filter(|revision| release::is_owned(revision));
    steps(changes.chain(deletions(revisions)).collect())
}

/// Deletes the objects of the API group, whose finalizers nothing would remove.
fn delete_custom(remains: &Remains) -> Next {
    let custom = remains.objects.iter().filter(|object| CUSTOM.contains(&object.kind.name));
    let mut found = Vec::new();
    for object in custom {
        let unblock = release::without_finalizers(object);
        found.extend(unblock.map(|change| Step { object: object.clone(), change }));
        found.extend(deletions([object]));
    }
    steps(found)
}

fn delete_definitions(remains: &Remains) -> Next {
    steps(deletions(remains.of("CustomResourceDefinition").filter(|crd| defines_custom(crd))))
}

fn defines_custom(definition: &Object) -> bool {
    let plural = definition.name.strip_suffix(".apps.kusionstack.io");
    let mut custom = object::ALL.iter().filter(|kind| CUSTOM.contains(&kind.name));
    custom.any(|kind| Some(kind.plural) == plural)
}

/// Waits until the namespace and the definitions are gone, which takes a while.
fn await_deletions(remains: &Remains) -> Next {
    let ours = remains
        .objects
        .iter()
        .filter(|object| is_installed(object, remains) || defines_custom(object));
    let ours: Vec<String> = ours.map(ToString::to_string).collect();
    match ours.first() {
        Some(first) => {
            let count = ours.len();
            Next::Wait(format!("waiting until {count} objects are deleted, among them {first}"))
        }
        None => Next::Done,
    }
}

fn deletions<'a>(objects: impl IntoIterator<Item = &'a Object>) -> Vec<Step> {
    let present = objects.into_iter().filter(|object| !object.is_deleting());
    present.map(|object| Step { object: object.clone(), change: Change::Delete }).collect()
}

fn steps(steps: Vec<Step>) -> Next {
    if steps.is_empty() { Next::Done } else { Next::Steps(steps) }
}

#[cfg(test)]
mod tests;
