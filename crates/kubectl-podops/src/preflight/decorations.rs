//! PodDecorations.

use std::collections::BTreeSet;

use podops_api::pod_decoration::PodDecoration;
use serde_json::Value;

use super::{direction::Direction, objects::subject};
use crate::{finding::Findings, installation::items};

pub(super) fn check(decoration: &Value, direction: Direction, findings: &mut Findings) {
    if direction == Direction::ToKuperator {
        return;
    }
    let subject = subject("PodDecoration", decoration);
    let template = &decoration["spec"]["template"];
    if let Err(error) = serde_json::from_value::<PodDecoration>(decoration.clone()) {
        let message = format!("cannot be decoded by Podops: {error}");
        findings.error(&subject, &message, "Fix the field that the message names.");
    }
    if decoration["spec"]["selector"].is_null() {
        let message = "has no selector: it selects no Pod";
        findings.warning(&subject, message, "Set a selector, or delete the PodDecoration.");
    }
    if !template["runtimeClassName"].is_null() {
        let message = "sets runtimeClassName, which Kuperator ignores: new Pods get it";
        findings.warning(&subject, message, "Remove it if Pods are to stay as they are.");
    }
    let added = items(&template["containers"]).chain(items(&template["initContainers"]));
    let mut names = BTreeSet::new();
    for container in added {
        let name = container["name"].as_str().unwrap_or_default();
        if !names.insert(name) {
            let message = format!("adds two containers of the name {name}");
            findings.error(&subject, &message, "Rename one of them.");
        }
    }
    let mut init_containers = items(&template["initContainers"]);
    if init_containers.any(|container| container["restartPolicy"] == "Always") {
        let message = "adds native sidecars, whose restartPolicy Kuperator removes: new Pods run them as sidecars";
        findings.warning(&subject, message, "");
    }
}
