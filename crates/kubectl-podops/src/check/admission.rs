//! Webhooks without a server, and Pods that are admitted without the readiness gate.

use crate::{
    finding::{Findings, INSTALL},
    installation::{Installation, Object, is_of_kuperator, items},
};

const KINDS: [&str; 2] = ["ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"];
/// Bindings of admission policies, and the kinds of their policies.
const POLICIES: [(&str, &str); 2] = [
    ("MutatingAdmissionPolicyBinding", "MutatingAdmissionPolicy"),
    ("ValidatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy"),
];
/// Prefix of the names of webhook configurations; the rest names their operator.
const PREFIX: &str = "podops-";

/// Policy that adds the readiness gate.
const READINESS_GATE: &str = "podops-readiness-gate";

pub(super) fn check(installation: &Installation, findings: &mut Findings) {
    for kind in KINDS {
        for configuration in installation.installed(kind) {
            check_webhooks(installation, configuration, findings);
        }
        for configuration in installation.of(kind).filter(|object| is_of_kuperator(object)) {
            findings.warning(
                format!("{kind} {}", configuration.name),
                "is one of Kuperator",
                "kubectl podops preflight",
            );
        }
    }
    for (binding, policy) in POLICIES {
        for binding in installation.installed(binding) {
            check_policy(installation, binding, policy, findings);
        }
    }
    let mut policies = installation.installed("MutatingAdmissionPolicyBinding");
    let is_gated = policies.any(|policy| policy.name == READINESS_GATE)
        || installation.installed("MutatingWebhookConfiguration").next().is_some();
    if !is_gated && installation.of("CollaSet").next().is_some() {
        findings.warning(
            "Readiness gates",
            "are added by nothing: Pods whose template has none stay in service during operations",
            "Apply the component readiness-gate, or readiness-gate-webhook before Kubernetes 1.36.",
        );
    }
}

/// The policy of a binding exists.
fn check_policy(
    installation: &Installation,
    binding: &Object,
    kind: &'static str,
    findings: &mut Findings,
) {
    let policy = binding.value["spec"]["policyName"].as_str().unwrap_or_default();
    if !installation.of(kind).any(|known| known.name == policy) {
        let subject = format!("{} {}", binding.kind.name, binding.name);
        let message = format!("applies the policy {policy}, which does not exist");
        findings.error(subject, &message, INSTALL);
    }
}

fn check_webhooks(installation: &Installation, configuration: &Object, findings: &mut Findings) {
    let subject = format!("{} {}", configuration.kind.name, configuration.name);
    let operator = configuration.name.strip_prefix(PREFIX).unwrap_or_default();
    let webhooks = &configuration.value["webhooks"];
    let rejects = items(webhooks).any(|webhook| webhook["failurePolicy"] != "Ignore");
    if installation.is_absent(operator) {
        let message = format!("calls {operator}, which is not running");
        let remedy = format!(
            "start {operator}, or kubectl delete {} {}",
            configuration.kind.plural, configuration.name
        );
        if rejects {
            findings.error(subject, &format!("{message}: requests are rejected"), &remedy);
        } else {
            findings.warning(subject, &message, &remedy);
        }
    } else if items(webhooks).any(|webhook| webhook["clientConfig"]["caBundle"].is_null()) {
        let remedy = format!("read the log of {operator}, which publishes its certificate");
        findings.error(subject, "has no CA bundle: no request reaches its webhooks", &remedy);
    }
}
