//! Checks an installation, and finds objects whose operator is not running. Pure: the installation
//! in, findings out.

mod admission;
mod certificates;
mod conditions;
mod operators;
mod workloads;

use std::fmt;

use crate::{
    counted::counted,
    finding::Findings,
    installation::{
        CUSTOM, Installation, OLDEST_MINOR, OPERATORS, POLICIES_SINCE, defines_custom,
        is_of_kuperator,
    },
};

/// One part of an installation that was checked.
pub struct Checked {
    /// Name of the part, with versions or numbers.
    pub part: String,
    /// Findings about it.
    pub findings: Findings,
}

impl Checked {
    fn new(
        part: impl Into<String>,
        installation: &Installation,
        check: impl Fn(&Installation, &mut Findings),
    ) -> Self {
        let mut findings = Findings::default();
        check(installation, &mut findings);
        Self { part: part.into(), findings }
    }
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { part, findings } = self;
        if findings.has_errors() { write!(f, "✖ {part}") } else { write!(f, "✔ {part}") }
    }
}

/// Returns the findings about all parts.
#[must_use]
pub fn findings(parts: Vec<Checked>) -> Findings {
    let all = parts.into_iter().flat_map(|checked| checked.findings.0);
    let mut findings = Findings(all.collect());
    findings.sort();
    findings
}

/// Checks the parts of an installation.
#[must_use]
pub fn check(installation: &Installation) -> Vec<Checked> {
    let count = |kind: &'static str| counted(installation.of(kind).count(), kind);
    let objects = [count("CollaSet"), count("PodTransitionRule")].join(", ");
    let server = format!("Kubernetes 1.{}", installation.server_minor);
    let operators = operators::versions(installation);
    vec![
        Checked::new(server, installation, check_server),
        Checked::new(operators, installation, check_installed),
        Checked::new("admission webhooks and policies", installation, admission::check),
        Checked::new("certificates", installation, certificates::check),
        Checked::new(count("Pod"), installation, workloads::check),
        Checked::new(count("Service"), installation, workloads::check_services),
        Checked::new(objects, installation, conditions::check),
    ]
}

fn check_installed(installation: &Installation, findings: &mut Findings) {
    if installation.installed("Deployment").next().is_none()
        && installation.absent_operators.len() == OPERATORS.len()
    {
        let manifest = manifest(installation.server_minor);
        let remedy = format!("kubectl apply --server-side -f install-crds.yaml -f {manifest}");
        findings.note("Podops", "is not installed: no operator runs", &remedy);
        check_leftovers(installation, findings);
    } else {
        check_definitions(installation, findings);
        operators::check(installation, findings);
    }
}

fn check_server(installation: &Installation, findings: &mut Findings) {
    let minor = installation.server_minor;
    if minor < OLDEST_MINOR {
        let message =
            format!("is older than 1.{OLDEST_MINOR}, the oldest version that Podops supports");
        findings.error(format!("Kubernetes 1.{minor}"), &message, "Upgrade the cluster first.");
    }
}

/// Manifest of a release for this minor version of Kubernetes.
fn manifest(minor: u32) -> &'static str {
    if minor < POLICIES_SINCE { "install-kubernetes-1.33.yaml" } else { "install.yaml" }
}

/// Objects that wait for an operator, although none is installed.
fn check_leftovers(installation: &Installation, findings: &mut Findings) {
    let remedy = "kubectl podops uninstall --workloads keep, or install Podops again";
    let definitions = installation.of("CustomResourceDefinition").filter(|crd| defines_custom(crd));
    for definition in definitions.filter(|definition| definition.is_deleting()) {
        let subject = format!("CustomResourceDefinition {}", definition.name);
        findings.error(subject, "is being deleted, and no operator completes it", remedy);
    }
    if installation.objects.iter().any(is_of_kuperator) {
        return;
    }
    for kind in CUSTOM {
        let count = installation.of(kind).count();
        if count > 0 {
            let subject = format!("{count} objects of kind {kind}");
            findings.warning(subject, "are left, and no operator reconciles them", remedy);
        }
    }
}

/// CRDs that an operator reads.
struct Definitions {
    operator: &'static str,
    plurals: &'static [&'static str],
    group: &'static str,
    /// Manifest of a release that contains them.
    manifest: &'static str,
}

const fn definitions(operator: &'static str, plurals: &'static [&'static str]) -> Definitions {
    Definitions { operator, plurals, group: podops_api::GROUP, manifest: "install-crds.yaml" }
}

const DEFINITIONS: [Definitions; 4] = [
    definitions("collaset-operator", &["collasets", "poddecorations", "resourcecontexts"]),
    Definitions {
        operator: "instance-operator",
        plurals: &["instances", "operators", "operatorversions"],
        group: "kudo.dev",
        manifest: "install-kudo-crds.yaml",
    },
    definitions("operationjob-operator", &["operationjobs"]),
    definitions("transition-rule-operator", &["podtransitionrules"]),
];

fn check_definitions(installation: &Installation, findings: &mut Findings) {
    let needed = DEFINITIONS.iter().filter(|definitions| definitions.is_needed(installation));
    let needed = needed.flat_map(|definitions| {
        definitions.plurals.iter().map(move |plural| (plural, definitions))
    });
    for (plural, Definitions { group, manifest, .. }) in needed {
        let name = format!("{plural}.{group}");
        let known = installation.of("CustomResourceDefinition").find(|crd| crd.name == name);
        let subject = format!("CustomResourceDefinition {name}");
        match known {
            None => {
                let remedy = format!("kubectl apply --server-side -f {manifest}");
                findings.error(subject, "is missing", &remedy);
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
    for crd in
        stored.filter(|crd| crd.true_condition("Established").is_none() && !crd.is_deleting())
    {
        let subject = format!("CustomResourceDefinition {}", crd.name);
        let remedy = format!("kubectl describe crd {}", crd.name);
        findings.error(subject, "is not established", &remedy);
    }
}

impl Definitions {
    fn is_needed(&self, installation: &Installation) -> bool {
        let mut deployments = installation.installed("Deployment");
        !installation.is_absent(self.operator) || deployments.any(|d| d.name == self.operator)
    }
}

#[cfg(test)]
mod tests;
