//! Deployments of the operators, and their Leases.

use std::collections::BTreeMap;

use crate::{
    finding::{Findings, INSTALL},
    installation::{Installation, OPERATORS, Object, items},
};

/// Operators, the kind of object that depends on each, and the consequence of its absence.
const REQUIRED: [(&str, &str, &str); 5] = [
    ("instance-operator", "Instance", "their plans do not run"),
    ("collaset-operator", "CollaSet", "CollaSets are neither created nor updated"),
    ("lifecycle-operator", "CollaSet", "operations on Pods do not proceed"),
    ("operationjob-operator", "OperationJob", "they do not begin"),
    ("transition-rule-operator", "PodTransitionRule", "their rules are not enforced"),
];

/// Label with the version of a release.
const VERSION: &str = "app.kubernetes.io/version";

pub(super) fn check(installation: &Installation, findings: &mut Findings) {
    let mut versions = BTreeMap::<&str, Vec<&str>>::new();
    for operator in OPERATORS {
        let deployment = installation.installed("Deployment").find(|d| d.name == operator);
        match deployment {
            Some(deployment) => {
                check_deployment(installation, deployment, findings);
                let version = deployment.label(VERSION).unwrap_or("unknown");
                versions.entry(version).or_default().push(operator);
            }
            None => check_absent(installation, operator, findings),
        }
    }
    if versions.len() > 1 {
        let versions: Vec<String> = versions
            .iter()
            .map(|(version, operators)| format!("{version}: {}", operators.join(", ")))
            .collect();
        let message = format!("have different versions ({})", versions.join("; "));
        findings.warning("Operators", &message, "Apply one release.");
    }
}

/// Operators that are installed, with their versions.
pub(super) fn versions(installation: &Installation) -> String {
    let installed = installation.installed("Deployment");
    let operators = installed.filter(|deployment| OPERATORS.contains(&deployment.name.as_str()));
    let versions: Vec<String> = operators
        .map(|operator| {
            let version = operator.label(VERSION).unwrap_or("of unknown version");
            format!("{} {version}", operator.name)
        })
        .collect();
    if versions.is_empty() { "no operators".to_owned() } else { versions.join(", ") }
}

fn check_deployment(installation: &Installation, deployment: &Object, findings: &mut Findings) {
    let name = &deployment.name;
    let namespace = deployment.namespace.as_deref().unwrap_or_default();
    let available = deployment.value["status"]["availableReplicas"].as_i64().unwrap_or_default();
    let subject = format!("Deployment {namespace}/{name}");
    if available == 0 {
        let remedy =
            format!("kubectl -n {namespace} describe pods -l app.kubernetes.io/name={name}");
        findings.error(subject, "has no available Pod", &remedy);
    } else if installation.is_absent(name) {
        let remedy = format!("kubectl -n {namespace} logs deployment/{name}");
        findings.error(subject, "runs, and none of its Pods renews the Lease", &remedy);
    }
    check_permissions(installation, deployment, findings);
}

/// The operator's ServiceAccount is bound to a ClusterRole that exists.
fn check_permissions(installation: &Installation, deployment: &Object, findings: &mut Findings) {
    let name = &deployment.name;
    let namespace = deployment.namespace.as_deref().unwrap_or_default();
    let account = installation.of("ServiceAccount").any(|account| account.name == *name);
    let bindings = installation.of("ClusterRoleBinding");
    let bound: Vec<&Object> = bindings.filter(|b| is_bound(b, namespace, name)).collect();
    if !account || bound.is_empty() {
        let subject = format!("ServiceAccount {namespace}/{name}");
        findings.error(subject, "is missing, or has no ClusterRole", INSTALL);
    }
    for binding in bound {
        let role = &binding.value["roleRef"]["name"];
        if !installation.of("ClusterRole").any(|known| *role == known.name) {
            let role = role.as_str().unwrap_or_default();
            let message = format!("grants the ClusterRole {role}, which does not exist");
            let subject = format!("ClusterRoleBinding {}", binding.name);
            findings.error(subject, &message, INSTALL);
        }
    }
}

fn is_bound(binding: &Object, namespace: &str, account: &str) -> bool {
    items(&binding.value["subjects"])
        .any(|subject| subject["name"] == *account && subject["namespace"] == *namespace)
}

/// Reports a missing operator whose objects exist.
fn check_absent(installation: &Installation, operator: &str, findings: &mut Findings) {
    if !installation.is_absent(operator) {
        return;
    }
    for (_, kind, consequence) in REQUIRED.iter().filter(|(name, ..)| *name == operator) {
        let count = installation.of(kind).count();
        if count > 0 {
            let message = format!("is not running, and there are {count} {kind}s: {consequence}");
            findings.error(operator, &message, INSTALL);
        }
    }
}
