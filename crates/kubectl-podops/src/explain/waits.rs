//! Groups Pods that wait for the same.

use std::{cmp::Reverse, collections::BTreeMap};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::{Cause, Facts, explain_pod};
use crate::pods::{is_in_service, name, operations};

/// Pods that wait for the same.
pub(crate) struct Wait {
    /// Cause of the wait of the first Pod, with its own causes and remedies.
    pub(crate) cause: Cause,
    /// Names of the Pods.
    pub(crate) pods: Vec<String>,
    /// Since when the first of them waits, if that is known.
    pub(crate) since: Option<Timestamp>,
}

/// Returns the waits of the Pods by cause, the most frequent first. The status of a CollaSet reports
/// them with a delay.
pub(crate) fn waits<'a>(facts: &Facts, pods: impl Iterator<Item = &'a Pod>) -> Vec<Wait> {
    let mut by_message = BTreeMap::<String, Wait>::new();
    for pod in pods {
        let is_idle = is_in_service(pod) && operations(pod).is_empty();
        let explanation = (!is_idle).then(|| explain_pod(facts, name(pod))).flatten();
        let Some(first) = explanation.and_then(|known| known.causes.into_iter().next()) else {
            continue;
        };
        let since = first.since;
        let cause = first.because.first().unwrap_or(&first).clone();
        let wait = by_message.entry(cause.message.clone());
        let wait = wait.or_insert_with(|| Wait { cause, pods: Vec::new(), since: None });
        wait.since = wait.since.into_iter().chain(since).min();
        wait.pods.push(name(pod).to_owned());
    }
    let mut waits: Vec<Wait> = by_message.into_values().collect();
    waits.sort_by_key(|wait| Reverse(wait.pods.len()));
    waits
}
