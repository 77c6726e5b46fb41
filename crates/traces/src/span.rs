//! Spans, and their form in OTLP.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::context::{SpanId, TraceId};

/// Part of a trace that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The trace.
    pub trace: TraceId,
    /// ID of the span.
    pub id: SpanId,
    /// The span that it is a part of.
    pub parent: Option<SpanId>,
    /// Name.
    pub name: String,
    /// When it began.
    pub start: Timestamp,
    /// When it ended.
    pub end: Timestamp,
    /// Attributes.
    pub attributes: BTreeMap<&'static str, String>,
}

impl Span {
    /// Adds an attribute.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.attributes.insert(name, value.into());
        self
    }

    fn otlp(&self) -> Value {
        let attributes = self.attributes.iter().map(|(name, value)| attribute(name, value));
        json!({
            "traceId": self.trace.to_string(),
            "spanId": self.id.to_string(),
            "parentSpanId": self.parent.map(|parent| parent.to_string()).unwrap_or_default(),
            "name": self.name,
            // Internal.
            "kind": 1,
            "startTimeUnixNano": self.start.as_nanosecond().to_string(),
            "endTimeUnixNano": self.end.as_nanosecond().to_string(),
            "attributes": attributes.collect::<Vec<_>>(),
        })
    }
}

/// Program that exports spans.
#[derive(Clone, Copy, Debug)]
pub struct Exporter {
    /// Name of the service.
    pub service: &'static str,
    /// Version of the service.
    pub version: &'static str,
}

/// Returns the request that exports spans, in the JSON form of OTLP: `ExportTraceServiceRequest`.
#[must_use]
pub fn otlp(exporter: &Exporter, spans: &[Span]) -> Value {
    let resource = [
        attribute("service.name", exporter.service),
        attribute("service.version", exporter.version),
    ];
    let spans: Vec<Value> = spans.iter().map(Span::otlp).collect();
    json!({ "resourceSpans": [{
        "resource": { "attributes": resource },
        "scopeSpans": [{ "scope": { "name": "podops" }, "spans": spans }],
    }] })
}

fn attribute(name: &str, value: &str) -> Value {
    json!({ "key": name, "value": { "stringValue": value } })
}
