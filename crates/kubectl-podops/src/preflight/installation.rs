//! Programs and webhook configurations of the installation that is to be replaced.

use podops_api::{GROUP, lifecycle, well_known};
use serde_json::Value;

use super::{
    direction::Direction,
    objects::{Inventory, subject},
};
use crate::{
    finding::Findings,
    installation::{OLDEST_MINOR, POLICIES_SINCE, items},
};

/// Label of the objects of Podops.
const PART_OF: &str = "app.kubernetes.io/part-of";

pub(super) fn check(inventory: &Inventory, direction: Direction, findings: &mut Findings) {
    let is_replaced = match direction {
        Direction::ToPodops => is_of_kuperator,
        Direction::ToKuperator => is_of_podops,
    };
    for deployment in inventory.deployments.iter().filter(|object| is_replaced(object)) {
        check_deployment(deployment, findings);
    }
    let mutating = inventory.mutating_webhooks.iter().map(|c| ("MutatingWebhookConfiguration", c));
    let validating =
        inventory.validating_webhooks.iter().map(|c| ("ValidatingWebhookConfiguration", c));
    for (kind, configuration) in mutating.chain(validating) {
        let is_replaced = match direction {
            Direction::ToPodops => reviews_kuperator(configuration) && !is_of_podops(configuration),
            Direction::ToKuperator => is_of_podops(configuration),
        };
        if is_replaced {
            check_webhooks(kind, configuration, findings);
        }
    }
    check_operations(inventory, findings);
    if direction == Direction::ToPodops {
        check_server(inventory, findings);
        check_services(inventory, findings);
    }
}

fn is_of_podops(object: &Value) -> bool {
    object["metadata"]["labels"][PART_OF] == "podops"
}

/// Returns whether a Deployment runs Kuperator, by its images.
fn is_of_kuperator(deployment: &Value) -> bool {
    let containers = &deployment["spec"]["template"]["spec"]["containers"];
    items(containers).any(|container| {
        container["image"].as_str().is_some_and(|image| image.contains("kuperator"))
    })
}

fn check_deployment(deployment: &Value, findings: &mut Findings) {
    if deployment["spec"]["replicas"].as_i64().unwrap_or(1) == 0 {
        return;
    }
    let metadata = &deployment["metadata"];
    let [namespace, name] = ["namespace", "name"].map(|f| metadata[f].as_str().unwrap_or_default());
    findings.error(
        subject("Deployment", deployment),
        "runs; two controllers must not write to the same Pods",
        &format!("kubectl scale deployment {name} --namespace {namespace} --replicas 0"),
    );
}

/// Returns whether a webhook reviews objects of Kuperator's API group.
fn reviews_kuperator(configuration: &Value) -> bool {
    items(&configuration["webhooks"]).any(|webhook| {
        let name = webhook["name"].as_str().unwrap_or_default();
        let groups = items(&webhook["rules"]).flat_map(|rule| items(&rule["apiGroups"]));
        name.ends_with("kusionstack.io") || groups.into_iter().any(|group| group == GROUP)
    })
}

fn check_webhooks(kind: &str, configuration: &Value, findings: &mut Findings) {
    let fails =
        items(&configuration["webhooks"]).any(|webhook| webhook["failurePolicy"] != "Ignore");
    let name = configuration["metadata"]["name"].as_str().unwrap_or_default();
    let remedy = format!("kubectl delete {} {name}", kind.to_lowercase());
    let subject = subject(kind, configuration);
    if fails {
        let message = "has failurePolicy Fail: the API server rejects writes to Pods while its server is down";
        findings.error(subject, message, &remedy);
    } else {
        findings.warning(subject, "is called for nothing while its server is down", &remedy);
    }
}

/// Reports operations in progress, which continue.
fn check_operations(inventory: &Inventory, findings: &mut Findings) {
    let in_operation = inventory.pods.iter().filter(|pod| {
        let labels = serde_json::from_value(pod["metadata"]["labels"].clone()).unwrap_or_default();
        lifecycle::is_operated_on(&labels)
    });
    let count = in_operation.count();
    if count > 0 {
        let message = format!("{count} are in operations, which continue after the switch");
        findings.note("Pods", &message, "");
    }
}

fn check_server(inventory: &Inventory, findings: &mut Findings) {
    let minor = inventory.server_minor;
    let found = format!("Kubernetes 1.{minor}");
    if minor < OLDEST_MINOR {
        let message =
            format!("is older than 1.{OLDEST_MINOR}, the oldest version that Podops supports");
        findings.error(found, &message, "Upgrade the cluster first.");
    } else if minor < POLICIES_SINCE {
        let message =
            "does not serve MutatingAdmissionPolicies, which add the readiness gate to Pods";
        findings.warning(found, message, "Apply deploy/overlays/kubernetes-1.33 instead of all.");
    }
}

/// Reports Services whose load balancer Kuperator may have configured.
fn check_services(inventory: &Inventory, findings: &mut Findings) {
    let services = inventory.services.iter();
    for service in services.filter(|service| service["spec"]["type"] == "LoadBalancer") {
        findings.warning(
            subject("Service", service),
            &format!("is under control ({}) and has a load balancer", well_known::CONTROL),
            "If Kuperator runs with AlibabaCloudSlb, start consist-operator with --default-backend=alibaba-clb.",
        );
    }
}
