//! CollaSets and their PersistentVolumeClaims.

use std::collections::BTreeMap;

use podops_api::{collaset::CollaSet, well_known};
use serde_json::Value;

use super::{
    direction::Direction,
    objects::{Inventory, subject},
};
use crate::{finding::Findings, installation::items};

/// Largest `replicas` that Podops accepts.
const MAX_REPLICAS: i64 = 10_000;
/// Fields that Kuperator does not have, below `spec`.
const FIELDS_OF_PODOPS: [&[&str]; 9] = [
    &["updateStrategy", "rollingUpdate", "maxUnavailable"],
    &["updateStrategy", "rollingUpdate", "maxSurge"],
    &["updateStrategy", "rollingUpdate", "failurePolicy"],
    &["updateStrategy", "rollingUpdate", "steps"],
    &["updateStrategy", "revision"],
    &["updateStrategy", "resize"],
    &["scaleStrategy", "maxUnavailable"],
    &["minReadySeconds"],
    &["progressDeadlineSeconds"],
];

pub(super) fn check(set: &Value, direction: Direction, findings: &mut Findings) {
    match direction {
        Direction::ToPodops => check_for_podops(set, findings),
        Direction::ToKuperator => check_for_kuperator(set, findings),
    }
}

fn check_for_podops(set: &Value, findings: &mut Findings) {
    let subject = subject("CollaSet", set);
    let spec = &set["spec"];
    if let Err(error) = serde_json::from_value::<CollaSet>(set.clone()) {
        let message = format!("cannot be decoded by Podops: {error}");
        findings.error(&subject, &message, "Fix the field that the message names.");
    }
    if spec["replicas"].as_i64().is_some_and(|replicas| replicas > MAX_REPLICAS) {
        let message = format!("has more than {MAX_REPLICAS} replicas");
        findings.error(&subject, &message, "Use several CollaSets.");
    }
    if spec["paused"] == true {
        let message = "spec.paused is true, which Kuperator ignores and Podops does not";
        findings.warning(
            &subject,
            message,
            "Remove the field if Pods are to be updated and scaled.",
        );
    }
    if spec["updateStrategy"]["podUpgradePolicy"] == "InPlaceOnly" {
        let message = "podUpgradePolicy is InPlaceOnly: Podops rejects a change that needs another Pod, which Kuperator recreates";
        findings.warning(
            &subject,
            message,
            "Use InPlaceIfPossible to recreate Pods where necessary.",
        );
    }
    if spec["updateStrategy"]["rollingUpdate"]["maxUnavailable"].is_null() {
        let message = "has no maxUnavailable: the shipped manifests limit its rollouts to 25 %";
        findings.note(&subject, message, "Apply deploy/overlays/kuperator-defaults for no limit.");
    }
}

fn check_for_kuperator(set: &Value, findings: &mut Findings) {
    let subject = subject("CollaSet", set);
    let spec = &set["spec"];
    if spec["updateStrategy"]["rollingUpdate"]["byPartition"]["partition"].is_string() {
        let message =
            "partition is a percentage, which Kuperator cannot decode, and with it no CollaSet";
        findings.error(&subject, message, "Set a number.");
    }
    if spec["paused"] == true {
        let message = "spec.paused is true, which Kuperator ignores: the rollout would continue";
        findings.error(&subject, message, "Set partition to replicas, and remove the field.");
    }
    if set["status"]["haltedRevision"].as_str().is_some_and(|revision| !revision.is_empty()) {
        let message = "the rollout is halted, and would continue under Kuperator";
        findings.error(&subject, message, "Roll back, or set partition to the number of old Pods.");
    }
    if !set["status"]["rolloutStep"].is_null() {
        let message = "the rollout has steps, and would continue without them under Kuperator";
        findings.error(&subject, message, "Set partition to the number of old Pods.");
    }
    let used = FIELDS_OF_PODOPS
        .iter()
        .filter(|path| !path.iter().fold(spec, |value, field| &value[*field]).is_null());
    let used: Vec<String> = used.map(|path| path.join(".")).collect();
    if !used.is_empty() {
        let message = format!("fields that Kuperator does not have: {}", used.join(", "));
        findings.warning(&subject, &message, "Limit rollouts with PodTransitionRules instead.");
    }
}

/// Checks that concern several objects at once.
pub(super) fn check_together(inventory: &Inventory, direction: Direction, findings: &mut Findings) {
    match direction {
        Direction::ToPodops => check_claims(inventory, findings),
        Direction::ToKuperator => check_contexts(inventory, findings),
    }
}

/// Claims without instance ID: Podops creates no Pod that might have to mount one of them, but it
/// does not watch those without control label either.
fn check_claims(inventory: &Inventory, findings: &mut Findings) {
    for claim in inventory.claims.iter().filter(|claim| is_owned(claim)) {
        if claim["metadata"]["labels"][well_known::INSTANCE_ID].is_null() {
            findings.warning(
                subject("PersistentVolumeClaim", claim),
                &format!("has no label {}", well_known::INSTANCE_ID),
                "Set it to the instance ID of the Pod that mounts the claim. Until then no Pod is recreated in its place; if the label kusionstack.io/control=true is missing too, the Pod is recreated with an empty claim.",
            );
        }
    }
}

fn is_owned(claim: &Value) -> bool {
    items(&claim["metadata"]["ownerReferences"]).any(|owner| owner["kind"] == "CollaSet")
}

/// CollaSets that share a ResourceContext, which Kuperator's webhook rejects.
fn check_contexts(inventory: &Inventory, findings: &mut Findings) {
    let mut owners: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for set in &inventory.sets {
        let name = set["metadata"]["name"].as_str().unwrap_or_default();
        let context = set["spec"]["scaleStrategy"]["context"].as_str().filter(|c| !c.is_empty());
        let namespace = set["metadata"]["namespace"].as_str().unwrap_or_default();
        let context = format!("{namespace}/{}", context.unwrap_or(name));
        owners.entry(context).or_default().push(name.to_owned());
    }
    for (context, sets) in owners.into_iter().filter(|(_, sets)| sets.len() > 1) {
        let message = format!("CollaSets {} share it, which Kuperator rejects", sets.join(", "));
        findings.error(
            format!("ResourceContext {context}"),
            &message,
            "Recreate them with contexts of their own.",
        );
    }
}
