//! Traces of operations, in OpenTelemetry's terms. Pure.
//!
//! A program that records an operation writes its trace to an annotation of the Pod, in a write
//! that it needs anyway; every program that takes part reads it there, and adds spans. If the
//! requester of the operation has written a trace of its own (`traceparent` of W3C Trace Context),
//! the operation is a part of that.

mod context;
mod operation;
mod span;

pub use context::{InvalidTraceContext, SpanId, TraceContext, TraceId};
pub use operation::{
    AnnotationChanges, OPERATION_ID, OperationTrace, Part, PodIdentity, annotation_key,
    is_annotation, traces,
};
pub use span::{Exporter, Span, otlp};
