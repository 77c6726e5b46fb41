//! One reconcile of each operator: observes the objects, decides with the operator's own functions,
//! and writes.

mod collaset;
mod lifecycle;
mod rules;

use std::{collections::BTreeMap, time::Duration};

use collaset_operator::render::CLAIMS;
use podops_api::well_known;
use podops_client::write::{Outcome, PODS, Write};
use podops_simulated_api::Objects;
use serde_json::Value;

pub(crate) use collaset::{CollaSets, PodEvent, SetDecision};
pub(crate) use lifecycle::Lifecycle;
pub(crate) use rules::Rules;

/// The API server, and the number of writes to Pods by operator.
#[derive(Debug)]
pub(crate) struct Api {
    pub(crate) objects: Objects,
    /// Name of the CollaSet whose Pods are counted.
    pub(crate) set: String,
    pub(crate) pod_writes: BTreeMap<&'static str, usize>,
    /// PersistentVolumeClaims that were deleted.
    pub(crate) deleted_claims: Vec<String>,
}

impl Api {
    /// Sends a write of an operator. Returns whether it succeeded.
    pub(crate) fn send(&mut self, operator: &'static str, write: &Write) -> bool {
        if write.target().resource == PODS {
            let body = match write {
                Write::Create { body, .. } => Some(body),
                Write::Patch { target, .. } | Write::Delete { target, .. } => {
                    self.objects.get("pods", &target.name)
                }
                Write::DryRunCreate { .. } => None,
            };
            if body.is_some_and(|pod| self.counts(pod)) {
                self.count_pod_write(operator);
            }
        }
        if let Write::Delete { target, .. } = write
            && target.resource == CLAIMS
        {
            self.deleted_claims.push(target.name.clone());
        }
        matches!(self.objects.apply(write), Outcome::Done(_))
    }

    /// Returns whether a Pod belongs to the CollaSet.
    pub(crate) fn counts(&self, pod: &Value) -> bool {
        let owners = pod["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        owners.into_iter().any(|o| o["kind"] == "CollaSet" && o["name"] == self.set.as_str())
    }

    /// Counts a write to a Pod of the CollaSet.
    pub(crate) fn count_pod_write(&mut self, operator: &'static str) {
        *self.pod_writes.entry(operator).or_default() += 1;
    }
}

/// Pods that take part in the lifecycle.
pub(crate) fn controlled_pods(objects: &Objects) -> Vec<Value> {
    let is_controlled =
        |pod: &&Value| pod["metadata"]["labels"][well_known::CONTROL] == well_known::CONTROL_ON;
    objects.all("pods").filter(is_controlled).cloned().collect()
}

/// Returns the earlier of two delays.
pub(crate) fn earlier(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
