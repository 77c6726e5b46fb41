//! Uninstalls Podops: which objects are changed and deleted next. Pure.
//!
//! The steps of one stage are carried out, then the cluster is read again, until no stage has
//! steps. So an uninstallation may be interrupted at any point, and may begin after a part was
//! removed by other means.

mod kinds;
mod release;
mod step;

use clap::ValueEnum;

pub use step::{Change, Step};

use crate::{
    counted::counted,
    installation::{CUSTOM, Installation, OPERATORS, Object, defines_custom, is_of_kuperator},
};

/// Flag and environment variable of consist-operator for employers other than Services.
const EMPLOYER_KINDS: [&str; 2] = ["--employer-kinds", "PODOPS_EMPLOYER_KINDS"];

/// Finalizers that only instance-operator removes, once it has run a plan or deleted objects.
const INSTANCE_FINALIZERS: [&str; 2] = ["kudo.dev.instance.cleanup", "kudo.dev/cluster-objects"];

/// Action on the Pods of CollaSets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workloads {
    /// They run on, without an owner.
    Keep,
    /// CollaSets are deleted, and their Pods through the lifecycle.
    Delete,
}

/// Reasons for which an uninstallation is refused.
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
    /// Its objects are those of Kuperator, too.
    #[error(
        "{0} is one of Kuperator, whose CollaSets and CRDs are the same; delete the operators of \
         Podops with kubectl, or remove Kuperator first"
    )]
    Kuperator(String),
    /// The finalizers of employers of other kinds would stay.
    #[error(
        "{0} runs with --employer-kinds, whose objects have a finalizer; remove the label \
         kusionstack.io/control from them, then remove the flag"
    )]
    OtherEmployers(String),
    /// Nothing would remove the finalizers of Instances.
    #[error(
        "{count} Instances have finalizers that only instance-operator removes, such as {first}; delete \
         them first"
    )]
    Instances {
        /// One of the Instances.
        first: String,
        /// Number of Instances.
        count: usize,
    },
    /// A Deployment is in another namespace, so the state of its operators is unknown.
    #[error("{object} is not in namespace {namespace}; use --operator-namespace")]
    OtherNamespace {
        /// The Deployment.
        object: String,
        /// Namespace of the operators that was named.
        namespace: String,
    },
}

/// State of a stage of an uninstallation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// These steps.
    Steps(Vec<Step>),
    /// Nothing before this has happened.
    Wait(String),
    /// Nothing is left.
    Done,
}

/// Returns the state of the first stage that is not done.
///
/// # Errors
///
/// [`Refusal`] if the uninstallation would leave Pods, finalizers or readiness gates without an
/// operator.
pub fn next(installation: &Installation, workloads: Workloads) -> Result<Next, Refusal> {
    let stages = stages(installation, workloads)?;
    Ok(stages.into_iter().find(|stage| *stage != Next::Done).unwrap_or(Next::Done))
}

/// Returns all stages, in their order, as they are now.
///
/// # Errors
///
/// [`Refusal`] if an uninstallation would strand Pods.
pub fn stages(installation: &Installation, workloads: Workloads) -> Result<Vec<Next>, Refusal> {
    check(installation)?;
    Ok(vec![
        if workloads == Workloads::Delete { delete_sets(installation)? } else { Next::Done },
        delete_installed(installation, &kinds::ADMISSION),
        stop_operators(installation),
        release(installation),
        delete_custom(installation),
        delete_installed(installation, &kinds::REST),
        delete_definitions(installation),
        await_deletions(installation),
    ])
}

/// Returns an error if an uninstallation would strand Pods, or take away those of Kuperator.
fn check(installation: &Installation) -> Result<(), Refusal> {
    let objects = &installation.objects;
    if let Some(kuperator) = objects.iter().find(|object| is_of_kuperator(object)) {
        return Err(Refusal::Kuperator(kuperator.to_string()));
    }
    if let Some(workload) = objects.iter().find(|object| release::has_gate(object)) {
        return Err(Refusal::GateInTemplate(workload.to_string()));
    }
    check_instances(installation)?;
    for deployment in installation.installed("Deployment") {
        let namespace = &installation.operator_namespace;
        if deployment.namespace.as_ref() != Some(namespace) {
            let object = deployment.to_string();
            let namespace = namespace.clone();
            return Err(Refusal::OtherNamespace { object, namespace });
        }
        let containers = deployment.value["spec"]["template"]["spec"]["containers"].to_string();
        if EMPLOYER_KINDS.iter().any(|flag| containers.contains(flag)) {
            return Err(Refusal::OtherEmployers(deployment.to_string()));
        }
    }
    Ok(())
}

/// Returns whether an uninstallation depends on the object.
#[must_use]
pub fn concerns(object: &Object) -> bool {
    match object.kind.name {
        "PersistentVolumeClaim" => !release::changes(object).is_empty(),
        "Pod" | "Service" => object.is_part() || !release::changes(object).is_empty(),
        "ControllerRevision" => release::is_owned(object),
        "Deployment" | "StatefulSet" | "DaemonSet" => {
            object.is_part() || release::has_gate(object) || is_of_kuperator(object)
        }
        _ => true,
    }
}

/// Returns an error if instance-operator would be removed and Instances have its finalizers.
fn check_instances(installation: &Installation) -> Result<(), Refusal> {
    let mut deployments = installation.installed("Deployment");
    if deployments.all(|deployment| deployment.name != "instance-operator") {
        return Ok(());
    }
    let finalized = installation.of("Instance").filter(|instance| {
        INSTANCE_FINALIZERS.iter().any(|finalizer| instance.has_finalizer(finalizer))
    });
    let finalized: Vec<&Object> = finalized.collect();
    let Some(first) = finalized.first() else { return Ok(()) };
    Err(Refusal::Instances { first: first.to_string(), count: finalized.len() })
}

/// Deletes CollaSets, and waits until their Pods are deleted.
fn delete_sets(installation: &Installation) -> Result<Next, Refusal> {
    let count = installation.of("CollaSet").count();
    if count == 0 {
        return Ok(Next::Done);
    }
    for operator in ["collaset-operator", "lifecycle-operator"] {
        if installation.is_absent(operator) {
            return Err(Refusal::OperatorAbsent { operator, count });
        }
    }
    let steps = deletions(installation.of("CollaSet"));
    let pods = installation.of("Pod").filter(|pod| release::is_owned(pod)).count();
    let waiting = format!(
        "waiting for {} of {} to be deleted",
        counted(pods, "Pod"),
        counted(count, "CollaSet")
    );
    Ok(if steps.is_empty() { Next::Wait(waiting) } else { Next::Steps(steps) })
}

/// Deletes installed objects of these kinds; does not wait until they are gone.
fn delete_installed(installation: &Installation, kinds: &[&str]) -> Next {
    let of_kinds = installation.of_kinds(kinds);
    steps(deletions(of_kinds.filter(|object| is_installed(object, installation))))
}

/// Returns whether the object belongs to the installation: by its label, or because an operator has
/// created it.
fn is_installed(object: &Object, installation: &Installation) -> bool {
    let operator = match object.kind.name {
        "Lease" => Some(&*object.name),
        "Secret" => object.name.strip_suffix("-admission"),
        _ => None,
    };
    let is_created = operator.is_some_and(|operator| OPERATORS.contains(&operator))
        && object.namespace.as_deref() == Some(&*installation.operator_namespace);
    object.is_part() || is_created
}

/// Deletes the Deployments, and waits until no operator runs: one that runs would add finalizers
/// and owners again, or act on the deletion of its objects. A Lease may be released before its Pod
/// ends, and an operator without standby has none; one that no Deployment of the cluster starts has
/// only a Lease.
fn stop_operators(installation: &Installation) -> Next {
    let deployments = deletions(installation.installed("Deployment"));
    let pods = installation.installed("Pod").count();
    let running = OPERATORS.iter().filter(|operator| !installation.is_absent(operator));
    let running: Vec<&str> = running.copied().collect();
    if !deployments.is_empty() {
        Next::Steps(deployments)
    } else if pods > 0 {
        Next::Wait(format!("waiting for {} of operators to end", counted(pods, "Pod")))
    } else if !running.is_empty() {
        let names = running.join(", ");
        Next::Wait(format!(
            "waiting for the Leases of {names} in namespace {} to expire",
            installation.operator_namespace
        ))
    } else {
        Next::Done
    }
}

/// Removes owners, labels, annotations and finalizers from the objects of users.
fn release(installation: &Installation) -> Next {
    let changes = installation.objects.iter().flat_map(|object| {
        let changes = release::changes(object).into_iter();
        changes.map(|change| Step { object: object.clone(), change })
    });
    let revisions = installation.of("ControllerRevision");
    let revisions = revisions.filter(|revision| release::is_owned(revision));
    steps(changes.chain(deletions(revisions)).collect())
}

/// Deletes the objects of the API group, whose finalizers nothing would remove.
fn delete_custom(installation: &Installation) -> Next {
    let custom = installation.of_kinds(&CUSTOM);
    let mut found = Vec::new();
    for object in custom {
        let unblock = release::without_finalizers(object);
        found.extend(unblock.map(|change| Step { object: object.clone(), change }));
        found.extend(deletions([object]));
    }
    steps(found)
}

fn delete_definitions(installation: &Installation) -> Next {
    steps(deletions(installation.of("CustomResourceDefinition").filter(|crd| defines_custom(crd))))
}

/// Waits until the namespace and the definitions are gone, which takes a while.
fn await_deletions(installation: &Installation) -> Next {
    let mut custom = installation.of_kinds(&CUSTOM);
    if let Some((object, finalizer)) =
        custom.find_map(|object| Some((object, object.finalizers().next()?)))
    {
        return Next::Wait(format!(
            "waiting until the finalizer {finalizer} of {object} is removed by its own controller"
        ));
    }
    let ours = installation
        .objects
        .iter()
        .filter(|object| is_installed(object, installation) || defines_custom(object));
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
