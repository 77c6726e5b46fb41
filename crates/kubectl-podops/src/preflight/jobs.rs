//! OperationJobs.

use podops_api::well_known;
use serde_json::Value;

use super::{
    direction::Direction,
    objects::{Inventory, subject},
};
use crate::{finding::Findings, installation::items};

/// Actions of Podops.
const ACTIONS: [&str; 3] = ["Replace", "Restart", "Recreate"];
/// Largest number of targets that Podops accepts.
const MAX_TARGETS: usize = 1000;

pub(super) fn check(job: &Value, direction: Direction, findings: &mut Findings) {
    let subject = subject("OperationJob", job);
    if is_finished(job) {
        return;
    }
    let action = job["spec"]["action"].as_str().unwrap_or_default();
    match direction {
        Direction::ToPodops => {
            if !ACTIONS.contains(&action) {
                let message =
                    format!("has the action {action}, which Podops does not have: it fails");
                findings.warning(&subject, &message, "Let it end before the switch, or delete it.");
            }
            let targets = job["spec"]["targets"].as_array().map_or(0, Vec::len);
            if targets > MAX_TARGETS {
                let message = format!("has more than {MAX_TARGETS} targets");
                findings.error(&subject, &message, "Let it end before the switch, or split it.");
            }
        }
        Direction::ToKuperator => {
            if action != "Replace" {
                let message = format!(
                    "is not complete and has the action {action}; Kuperator can neither run nor delete it"
                );
                findings.error(&subject, &message, "Let it end before the switch, or delete it.");
            }
        }
    }
}

/// Reports Pods whose deletion waits for a job that does not exist any more, or is finished.
pub(super) fn check_pods(inventory: &Inventory, findings: &mut Findings) {
    for pod in inventory.pods.iter().filter(|pod| is_protected(pod)) {
        let metadata = &pod["metadata"];
        let mut unfinished = inventory.jobs.iter().filter(|job| !is_finished(job));
        let is_target = unfinished.any(|job| {
            let mut targets = items(&job["spec"]["targets"]);
            job["metadata"]["namespace"] == metadata["namespace"]
                && targets.any(|target| target["name"] == metadata["name"])
        });
        if is_target {
            continue;
        }
        let message = format!(
            "has the finalizer {} of a job that has ended: its deletion never completes",
            well_known::REPLACE_PROTECTED
        );
        let remedy = "Remove the finalizer.";
        findings.warning(subject("Pod", pod), &message, remedy);
    }
}

fn is_protected(pod: &Value) -> bool {
    items(&pod["metadata"]["finalizers"]).any(|f| f == well_known::REPLACE_PROTECTED)
}

fn is_finished(job: &Value) -> bool {
    let progress = job["status"]["progress"].as_str().unwrap_or_default();
    matches!(progress, "Succeeded" | "Failed")
}
