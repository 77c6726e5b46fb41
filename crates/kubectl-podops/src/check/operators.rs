//! Deployments of the operators, and their Leases.

use std::collections::BTreeMap;

use crate::{
    finding::Findings,
    installation::{Installation, OPERATORS, Object, items},
};

/// Operators without which objects of a kind wait, and for what.
const REQUIRED: [(&str, &str, &str); 3] = [
    ("instance-operator", "Instance", "their plans do not run"),
    ("collaset-operator", "CollaSet", "CollaSets are neither created nor updated"),
    ("lifecycle-operator", "CollaSet", "operations on Pods do not proceed"),
];

/// Label with the version of a release.
const VERSION: &str = "app.kubernetes.io/version";
/// Remedy for missing objects.
const INSTALL: &str = "apply the manifests of your installation again";

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
    let account = installation.of("ServiceAccount").any(|account| account.name == *name);
    let binding = installation.of("ClusterRoleBinding").any(|binding| is_bound(binding, name));
    if !account || !binding {
        let subject = format!("ServiceAccount {namespace}/{name}");
        let message = "is missing, or has no ClusterRole";
        findings.error(subject, message, INSTALL);
    }
}

fn is_bound(binding: &Object, account: &str) -> bool {
    items(&binding.value["subjects"]).any(|subject| subject["name"] == *account)
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
