//! The trace of one operation on a Pod, and its annotation.

use std::{collections::BTreeMap, fmt, str::FromStr};

use jiff::Timestamp;
use podops_api::{
    ids::{OperationId, Uid},
    well_known,
};

use crate::{
    context::{InvalidTraceContext, SpanId, TraceContext},
    span::Span,
};

/// Attribute of spans: ID of the operation.
pub const OPERATION_ID: &str = "podops.operation.id";

/// Trace of one operation. As a text: `<traceparent> <start> [<parent span>]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationTrace {
    /// The span of the whole operation.
    pub context: TraceContext,
    /// When it began.
    pub start: Timestamp,
    /// The span that it is a part of.
    pub parent: Option<SpanId>,
}

/// Annotations to set or remove.
pub type AnnotationChanges = BTreeMap<String, Option<String>>;

/// Pod of a trace, as attributes of its spans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodIdentity {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: Uid,
}

/// Part of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The Pod.
    pub pod: &'a PodIdentity,
    /// Name of the span.
    pub name: &'a str,
    /// Subject of the part, if an operation has several parts of this name; empty otherwise.
    pub subject: &'a str,
}

impl PodIdentity {
    fn attributes(&self) -> BTreeMap<&'static str, String> {
        BTreeMap::from([
            ("k8s.namespace.name", self.namespace.clone()),
            ("k8s.pod.name", self.name.clone()),
            ("k8s.pod.uid", self.uid.to_string()),
        ])
    }
}

/// Returns the key of the annotation with the trace of an operation.
#[must_use]
pub fn annotation_key(id: &OperationId) -> String {
    format!("{}/{id}", well_known::TRACE)
}

/// Returns whether the key is that of an annotation with a trace.
#[must_use]
pub fn is_annotation(key: &str) -> bool {
    id_of(key).is_some()
}

fn id_of(key: &str) -> Option<OperationId> {
    key.strip_prefix(well_known::TRACE)?.strip_prefix('/').map(OperationId::from)
}

/// Reads the traces in the annotations of a Pod, by operation.
#[must_use]
pub fn traces(annotations: &BTreeMap<String, String>) -> BTreeMap<OperationId, OperationTrace> {
    let traces =
        annotations.iter().filter_map(|(key, text)| Some((id_of(key)?, text.parse().ok()?)));
    traces.collect()
}

impl OperationTrace {
    /// Begins the trace of an operation on the Pod with this UID; the same for the same arguments,
    /// so that it does not matter which program begins it. `requested` is the annotation's text, if
    /// the requester has written it: its `traceparent`.
    #[must_use]
    pub fn begin(uid: &Uid, id: &OperationId, requested: Option<&str>, start: Timestamp) -> Self {
        let own = (uid.as_str(), id.as_str(), start.as_nanosecond());
        let parent: Option<TraceContext> = requested.and_then(|text| text.parse().ok());
        let trace = parent.map_or_else(|| crate::TraceId::of(&own), |parent| parent.trace);
        let context = TraceContext { trace, span: SpanId::of(&own) };
        Self { context, start, parent: parent.map(|parent| parent.span) }
    }

    /// The span of the whole operation, which ends now.
    #[must_use]
    pub fn root(&self, pod: &PodIdentity, name: impl Into<String>, now: Timestamp) -> Span {
        Span {
            trace: self.context.trace,
            id: self.context.span,
            parent: self.parent,
            name: name.into(),
            start: self.start.min(now),
            end: now,
            attributes: pod.attributes(),
        }
    }

    /// The span of a part of the operation, which ends now.
    #[must_use]
    pub fn child(&self, part: Part<'_>, start: Timestamp, now: Timestamp) -> Span {
        let TraceContext { trace, span } = self.context;
        let Part { pod, name, subject } = part;
        Span {
            trace,
            id: SpanId::of(&(span, name, subject, start.as_nanosecond())),
            parent: Some(span),
            name: name.to_owned(),
            // Clocks of other programs may be ahead.
            start: start.min(now),
            end: now,
            attributes: pod.attributes(),
        }
    }
}

impl fmt::Display for OperationTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.context, self.start)?;
        self.parent.map_or(Ok(()), |parent| write!(f, " {parent}"))
    }
}

impl FromStr for OperationTrace {
    type Err = InvalidTraceContext;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split(' ');
        let context = parts.next().unwrap_or_default().parse()?;
        let start = parts.next().and_then(|start| start.parse().ok()).ok_or(InvalidTraceContext)?;
        let parent = parts.next().map(str::parse).transpose()?;
        Ok(Self { context, start, parent })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(requested: Option<&str>) -> OperationTrace {
        let now = Timestamp::from_second(7).unwrap();
        OperationTrace::begin(&"uid".into(), &"collaset".into(), requested, now)
    }

    #[test]
    fn the_annotation_round_trips() {
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        for requested in [None, Some(parent), Some("mine")] {
            let trace = begin(requested);
            let annotations =
                BTreeMap::from([(annotation_key(&"collaset".into()), trace.to_string())]);
            assert_eq!(traces(&annotations), BTreeMap::from([("collaset".into(), trace)]));
        }
    }

    #[test]
    fn a_requested_trace_is_the_parent() {
        let requested = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let trace = begin(Some(requested));
        let parent: TraceContext = requested.parse().unwrap();
        assert_eq!((trace.context.trace, trace.parent), (parent.trace, Some(parent.span)));
        // A requested trace is not the trace of an operation that has begun.
        let annotations =
            BTreeMap::from([(annotation_key(&"collaset".into()), requested.to_owned())]);
        assert!(traces(&annotations).is_empty());
    }

    #[test]
    fn spans_of_an_operation_have_its_trace() {
        let trace = begin(None);
        let now = Timestamp::from_second(9).unwrap();
        let pod =
            PodIdentity { namespace: "ns".to_owned(), name: "web-1".to_owned(), uid: "uid".into() };
        let root = trace.root(&pod, "update", now);
        let part = |subject| Part { pod: &pod, name: "drain", subject };
        let child = trace.child(part("a"), trace.start, now);
        assert_ne!(child.id, trace.child(part("b"), trace.start, now).id);
        assert_eq!((root.trace, root.parent), (child.trace, None));
        assert_eq!(child.parent, Some(root.id));
        assert_ne!(child.id, root.id);
    }
}
