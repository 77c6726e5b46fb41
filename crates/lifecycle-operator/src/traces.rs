//! Traces of operations: the annotations that hold them, and the spans of what a write ended. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use podops_api::{
    ids::LifecycleTime,
    lifecycle::{LabelKind, PodLifecycle},
};
use podops_traces::{
    AnnotationChanges, OPERATION_ID, OperationTrace, PodIdentity, Span, annotation_key, traces,
};

use crate::measurements::{EndedOperation, EndedStage, Measurements};

/// Attribute of the span of an operation: how it ended.
const RESULT: &str = "podops.operation.result";

/// Annotations of a Pod.
type Annotations = BTreeMap<String, String>;

/// Returns the changes of annotations for a write that changes the operations of a Pod: a trace begins
/// for each operation that has none, and ends with its operation. They belong to a write that is needed
/// for another reason.
#[must_use]
pub fn changes(
    pod: &PodIdentity,
    annotations: &Annotations,
    before: &PodLifecycle,
    after: &PodLifecycle,
    now: Timestamp,
) -> AnnotationChanges {
    let known = traces(annotations);
    let mut changes = AnnotationChanges::new();
    for (id, operation) in &after.operations {
        if known.contains_key(id) {
            continue;
        }
        let key = annotation_key(id);
        let requested = annotations.get(&key).map(String::as_str);
        let check = before.operations.get(id).unwrap_or(operation).get(LabelKind::PreCheck);
        let start = check.and_then(LifecycleTime::parse).map_or(now, |time| time.0);
        let trace = OperationTrace::begin(&pod.uid, id, requested, start);
        changes.insert(key, Some(trace.to_string()));
    }
    let ended = known.keys().filter(|id| !after.operations.contains_key(*id));
    changes.extend(ended.map(|id| (annotation_key(id), None)));
    changes
}

/// Returns the annotations with the traces that begin.
#[must_use]
pub fn with_begun(annotations: &Annotations, changes: &AnnotationChanges) -> Annotations {
    let begun = changes.iter().filter_map(|(key, text)| Some((key.clone(), text.clone()?)));
    annotations.clone().into_iter().chain(begun).collect()
}

/// Returns the spans of the stages and operations that ended.
#[must_use]
pub fn spans(
    pod: &PodIdentity,
    annotations: &Annotations,
    measured: &Measurements,
    now: Timestamp,
) -> Vec<Span> {
    let traces = traces(annotations);
    let stages = measured.stages.iter().filter_map(|EndedStage { id, stage, start, end }| {
        let span = traces.get(id)?.child(pod, stage.as_str(), *start, *end);
        Some(span.with(OPERATION_ID, id.as_str()))
    });
    let operations =
        measured.ended.iter().filter_map(|EndedOperation { id, operation_type, end }| {
            let span = traces.get(id)?.root(pod, *operation_type, now);
            Some(span.with(OPERATION_ID, id.as_str()).with(RESULT, end.as_str()))
        });
    stages.chain(operations).collect()
}

#[cfg(test)]
mod tests {
    use podops_api::lifecycle::{Labels, UPDATE, begin};

    use super::*;
    use crate::measurements::measure;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn pod() -> PodIdentity {
        PodIdentity { namespace: "ns".to_owned(), name: "web-1".to_owned(), uid: "1".into() }
    }

    fn requested() -> PodLifecycle {
        let labels = begin(&Labels::new(), "collaset", UPDATE, at(1));
        let set = labels.into_iter().filter_map(|(key, value)| Some((key, value?)));
        PodLifecycle::parse(&set.collect()).unwrap()
    }

    #[test]
    fn a_trace_begins_once_and_ends_with_the_operation() {
        let began =
            changes(&pod(), &Annotations::new(), &PodLifecycle::default(), &requested(), at(2));
        let annotations = with_begun(&Annotations::new(), &began);
        assert_eq!(annotations.len(), 1);
        assert!(changes(&pod(), &annotations, &requested(), &requested(), at(3)).is_empty());
        let ended = changes(&pod(), &annotations, &requested(), &PodLifecycle::default(), at(4));
        assert_eq!(ended.into_values().collect::<Vec<_>>(), [None]);
    }

    #[test]
    fn the_spans_of_a_cancelled_operation_are_its_root() {
        let began =
            changes(&pod(), &Annotations::new(), &PodLifecycle::default(), &requested(), at(2));
        let annotations = with_begun(&Annotations::new(), &began);
        let measured = measure(&requested(), &PodLifecycle::default(), at(5));
        let spans = spans(&pod(), &annotations, &measured, at(5));
        let [root] = &spans[..] else { panic!("{spans:?}") };
        assert_eq!((root.start, root.end, root.name.as_str()), (at(2), at(5), UPDATE));
        assert_eq!(root.attributes[RESULT], "cancelled");
        assert_eq!(root.attributes[OPERATION_ID], "collaset");
    }
}
