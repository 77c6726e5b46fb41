//! OperationJobs.

use serde_json::Value;

use super::{
    finding::{Direction, Findings},
    objects::subject,
};

/// Actions of Podops.
const ACTIONS: [&str; 3] = ["Replace", "Restart", "Recreate"];
/// Largest number of targets that Podops accepts.
const MAX_TARGETS: usize = 1000;

pub(super) fn check(job: &Value, direction: Direction, findings: &mut Findings) {
    let subject = subject("OperationJob", job);
    let progress = job["status"]["progress"].as_str().unwrap_or_default();
    if matches!(progress, "Succeeded" | "Failed") {
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
