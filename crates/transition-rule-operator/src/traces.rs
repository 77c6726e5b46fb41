//! Traces of granted operations: spans of how long the rules held them. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use podops_api::{
    ids::{LifecycleTime, OperationId},
    transition_rule::RuleStage,
};
use podops_traces::{
    OPERATION_ID, OperationTrace, Part, PodIdentity, Span, annotation_key, traces,
};

use crate::{
    observe::SlimPod,
    plan::{Grant, PodChange},
};

/// Attribute of a span: stage that the operation has passed.
const STAGE: &str = "podops.stage";

/// Returns the annotations with the traces of operations that are granted in PreCheck and have none
/// yet, or that of an earlier operation with the same ID.
#[must_use]
pub fn begun(pod: &SlimPod, grants: &[Grant], now: Timestamp) -> BTreeMap<String, String> {
    let identity = identity(pod);
    let known = known(pod);
    let annotation = |key: &str| pod.metadata.annotations.as_ref()?.get(key);
    let in_pre_check = grants.iter().filter(|grant| grant.stage == RuleStage::PreCheck);
    let new = in_pre_check.filter_map(|Grant { operation, .. }| {
        let start = LifecycleTime::parse(&operation.check).map_or(now, |time| time.0);
        if known.get(&operation.id).is_some_and(|trace| trace.start == start) {
            return None;
        }
        let key = annotation_key(&operation.id);
        let requested = annotation(&key).map(String::as_str);
        let trace = OperationTrace::begin(&identity.uid, &operation.id, requested, start);
        Some((key, trace.to_string()))
    });
    new.collect()
}

/// Returns a span for each grant of a change whose operation is traced.
#[must_use]
pub fn spans(pod: &SlimPod, change: &PodChange, now: Timestamp) -> Vec<Span> {
    let identity = identity(pod);
    let mut known = known(pod);
    known.extend(traces(&change.traces));
    let spans = change.grants.iter().filter_map(|grant| {
        let operation = &grant.operation;
        let start = LifecycleTime::parse(&operation.check).map_or(now, |time| time.0);
        let part = Part { pod: &identity, name: "rules", subject: grant.stage.as_str() };
        let span = known.get(&operation.id)?.child(part, start, now);
        Some(span.with(OPERATION_ID, operation.id.as_str()).with(STAGE, grant.stage.as_str()))
    });
    spans.collect()
}

fn known(pod: &SlimPod) -> BTreeMap<OperationId, OperationTrace> {
    pod.metadata.annotations.as_ref().map(traces).unwrap_or_default()
}

fn identity(pod: &SlimPod) -> PodIdentity {
    let metadata = &pod.metadata;
    PodIdentity {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default().into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::view::PendingOperation;

    #[test]
    fn a_trace_begins_once_and_has_the_span_of_the_rules() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let grant = Grant {
            stage: RuleStage::PreCheck,
            operation: PendingOperation {
                id: "a".into(),
                operation_type: "update".into(),
                instance: "1".to_owned(),
                check: "2000000000".to_owned(),
            },
        };
        let metadata = json!({ "namespace": "ns", "name": "web", "uid": "1" });
        let mut pod: SlimPod = serde_json::from_value(json!({ "metadata": metadata })).unwrap();
        let begun_traces = begun(&pod, std::slice::from_ref(&grant), at(5));
        let trace = traces(&begun_traces)[&OperationId::from("a")];
        assert_eq!(trace.start, at(2));
        let change = PodChange {
            grants: vec![grant.clone()],
            traces: begun_traces.clone(),
            ..PodChange::default()
        };
        let spans = spans(&pod, &change, at(5));
        let [span] = &spans[..] else { panic!("{spans:?}") };
        assert_eq!((span.start, span.end, span.trace), (at(2), at(5), trace.context.trace));
        assert_eq!(span.parent, Some(trace.context.span));
        pod.metadata.annotations = Some(begun_traces);
        assert!(begun(&pod, &[grant], at(6)).is_empty());
    }
}
