//! Whether an installation works, and what is left without an operator that would continue it. Pure:
//! the installation in, findings out.

mod admission;
mod certificates;
mod operators;
mod workloads;

use crate::{
    finding::Findings,
    installation::{Installation, OPERATORS, defines_custom},
};

/// Oldest supported minor version of Kubernetes.
const OLDEST_MINOR: u32 = 33;

/// Checks an installation.
#[must_use]
pub fn check(installation: &Installation) -> Findings {
    let mut findings = Findings::default();
    check_server(installation, &mut findings);
    if installation.installed("Deployment").next().is_none()
        && installation.absent_operators.len() == OPERATORS.len()
    {
        findings.note(
            "Podops",
            "is not installed: no operator runs",
            "kubectl apply --server-side -f install-crds.yaml -f install.yaml",
        );
    } else {
        check_definitions(installation, &mut findings);
        operators::check(installation, &mut findings);
    }
    admission::check(installation, &mut findings);
    certificates::check(installation, &mut findings);
    workloads::check(installation, &mut findings);
    findings.sort();
    findings
}

fn check_server(installation: &Installation, findings: &mut Findings) {
    let minor = installation.server_minor;
    if minor < OLDEST_MINOR {
        let message =
            format!("is older than 1.{OLDEST_MINOR}, the oldest version that Podops supports");
        findings.error(format!("Kubernetes 1.{minor}"), &message, "Upgrade the cluster first.");
    }
}

/// CRDs that each operator reads.
const DEFINITIONS: [(&str, &[&str]); 3] = [
    ("collaset-operator", &["collasets", "poddecorations", "resourcecontexts"]),
    ("operationjob-operator", &["operationjobs"]),
    ("transition-rule-operator", &["podtransitionrules"]),
];

fn check_definitions(installation: &Installation, findings: &mut Findings) {
    let is_needed = |operator: &str| {
        let mut deployments = installation.installed("Deployment");
        !installation.is_absent(operator) || deployments.any(|d| d.name == operator)
    };
    let needed = DEFINITIONS.iter().filter(|(operator, _)| is_needed(operator));
    for plural in needed.flat_map(|(_, plurals)| plurals.iter()) {
        let name = format!("{plural}.{}", podops_api::GROUP);
        let known = installation.of("CustomResourceDefinition").find(|crd| crd.name == name);
        let subject = format!("CustomResourceDefinition {name}");
        match known {
            None => {
                findings.error(
                    subject,
                    "is missing",
                    "kubectl apply --server-side -f install-crds.yaml",
                );
            }
            Some(crd) if crd.is_deleting() => findings.error(
                subject,
                "is being deleted, with all its objects",
                "kubectl podops uninstall --workloads keep, then install again",
            ),
            Some(_) => {}
        }
    }
    let stored = installation.of("CustomResourceDefinition").filter(|crd| defines_custom(crd));
    for crd in stored.filter(|crd| !crd.has_condition("Established") && !crd.is_deleting()) {
        let subject = format!("CustomResourceDefinition {}", crd.name);
        let remedy = format!("kubectl describe crd {}", crd.name);
        findings.error(subject, "is not established", &remedy);
    }
}

#[cfg(test)]
mod tests;
