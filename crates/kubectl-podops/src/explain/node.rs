//! Explains why the Pods of a node wait.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};

use super::{Cause, Explanation, Facts, pod};
use crate::pods::{is_controlled, name};

/// Explains a node. `pods` are its Pods, `facts` those of their namespaces.
#[must_use]
pub fn explain(
    node: &Node,
    pods: &[Pod],
    facts: &BTreeMap<String, Facts>,
    now: Timestamp,
) -> Explanation {
    let is_cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
    let controlled: Vec<&Pod> = pods.iter().filter(|pod| is_controlled(pod)).collect();
    let cordoned = if is_cordoned { "is cordoned, and" } else { "" };
    let state = format!("{cordoned} has {} Pods under control", controlled.len());
    let mut causes: Vec<Cause> = unready(node).into_iter().collect();
    for pod in controlled {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let Some(explanation) = facts.get(namespace).and_then(|f| pod::explain(f, name(pod)))
        else {
            continue;
        };
        if !explanation.causes.is_empty() {
            let cause = Cause::new(format!("pod/{} of namespace {namespace}", name(pod)));
            causes.push(cause.because(explanation.causes));
        }
    }
    let subject = format!("node/{}", node.metadata.name.as_deref().unwrap_or_default());
    Explanation { subject, state: state.trim_start().to_owned(), causes, now }
}

/// Cause that the kubelet of a node does not report.
fn unready(node: &Node) -> Option<Cause> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready")?;
    if ready.status == "True" {
        return None;
    }
    let reason = ready.reason.as_deref().unwrap_or_default();
    let message = ready.message.as_deref().unwrap_or_default();
    let since = ready.last_transition_time.as_ref().map(|time| time.0);
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let cause = Cause::new(format!("Ready={} {reason}: {message}", ready.status));
    let remedy = format!("restore the node: kubectl describe node {name}");
    Some(cause.since(since).remedy(remedy))
}
