//! Traces of operations: the annotations that hold them, and the spans that a write ended. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use podops_api::{
    ids::LifecycleTime,
    lifecycle::{LabelKind, PodLifecycle},
};
use podops_traces::{
    AnnotationChanges, OPERATION_ID, OperationTrace, Part, PodIdentity, Span, annotation_key,
    traces,
};

use crate::measurements::{EndedOperation, EndedStage, Measurements};

/// Attribute of the span of an operation: how it ended.
const RESULT: &str = "podops.operation.result";

/// Annotations of a Pod.
type Annotations = BTreeMap<String, String>;

/// Returns the annotations with the traces of operations that begin with a write, or whose trace is
/// not known: that of an earlier operation with the same ID ends. They belong to a write that is
/// needed for another reason.
#[must_use]
pub fn begun(
    pod: &PodIdentity,
    annotations: &Annotations,
    before: &PodLifecycle,
    after: &PodLifecycle,
    now: Timestamp,
) -> AnnotationChanges {
    let known = traces(annotations);
    let mut changes = AnnotationChanges::new();
    for (id, operation) in &after.operations {
        let earlier = before.operations.get(id).and_then(|before| before.get(LabelKind::PreCheck));
        let check = operation.get(LabelKind::PreCheck).or(earlier);
        let start = check.and_then(LifecycleTime::parse).map(|time| time.0);
        if known.get(id).is_some_and(|trace| start.is_none_or(|start| start == trace.start)) {
            continue;
        }
        let key = annotation_key(id);
        let requested = annotations.get(&key).map(String::as_str);
        let trace = OperationTrace::begin(&pod.uid, id, requested, start.unwrap_or(now));
        changes.insert(key, Some(trace.to_string()));
    }
    changes
}

/// Returns the removals of annotations whose operations end with a write. They belong to a write
/// that is needed for another reason.
#[must_use]
pub fn ended(annotations: &Annotations, after: &PodLifecycle) -> AnnotationChanges {
    let known = traces(annotations);
    let ended = known.keys().filter(|id| !after.operations.contains_key(*id));
    ended.map(|id| (annotation_key(id), None)).collect()
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
        let part = Part { pod, name: stage.as_str(), subject: "" };
        let span = traces.get(id)?.child(part, *start, *end);
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
    use podops_api::lifecycle::{Labels, UPDATE, begin, nanos};

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
            begun(&pod(), &Annotations::new(), &PodLifecycle::default(), &requested(), at(2));
        let annotations = with_begun(&Annotations::new(), &began);
        assert_eq!(annotations.len(), 1);
        assert!(begun(&pod(), &annotations, &requested(), &requested(), at(3)).is_empty());
        assert!(ended(&annotations, &requested()).is_empty());
        let ended = ended(&annotations, &PodLifecycle::default());
        assert_eq!(ended.into_values().collect::<Vec<_>>(), [None]);
    }

    #[test]
    fn an_operation_that_is_requested_again_has_another_trace() {
        let checked = |second: i64| {
            let mut lifecycle = requested();
            let operation = lifecycle.operations.get_mut("collaset").unwrap();
            operation.set(LabelKind::PreCheck, nanos(at(second)));
            lifecycle
        };
        let first = begun(&pod(), &Annotations::new(), &requested(), &checked(2), at(2));
        let annotations = with_begun(&Annotations::new(), &first);
        assert!(begun(&pod(), &annotations, &checked(2), &requested(), at(3)).is_empty());
        let second = begun(&pod(), &annotations, &checked(2), &checked(5), at(5));
        assert_eq!(second.len(), 1);
        assert_ne!(second, first);
    }

    #[test]
    fn the_spans_of_a_cancelled_operation_are_its_root() {
        let began =
            begun(&pod(), &Annotations::new(), &PodLifecycle::default(), &requested(), at(2));
        let annotations = with_begun(&Annotations::new(), &began);
        let measured = measure(&requested(), &PodLifecycle::default(), at(5));
        let spans = spans(&pod(), &annotations, &measured, at(5));
        let [root] = &spans[..] else { panic!("{spans:?}") };
        assert_eq!((root.start, root.end, root.name.as_str()), (at(2), at(5), UPDATE));
        assert_eq!(root.attributes[RESULT], "cancelled");
        assert_eq!(root.attributes[OPERATION_ID], "collaset");
    }
}
