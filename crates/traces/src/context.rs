//! W3C Trace Context.

use std::{
    fmt,
    hash::{DefaultHasher, Hash, Hasher as _},
    str::FromStr,
};

/// Identifies a trace; not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId(u128);

/// Identifies a span of a trace; not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpanId(u64);

impl TraceId {
    /// Returns the ID that belongs to a value: the same for an equal one.
    #[must_use]
    pub fn of(value: &impl Hash) -> Self {
        let [high, low] = [0u8, 1].map(|half| u128::from(hash(&(half, value))));
        Self((high << 64 | low).max(1))
    }
}

impl SpanId {
    /// Returns the ID that belongs to a value: the same for an equal one.
    #[must_use]
    pub fn of(value: &impl Hash) -> Self {
        Self(hash(value).max(1))
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// 32 hexadecimal digits.
impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// 16 hexadecimal digits.
impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for SpanId {
    type Err = InvalidTraceContext;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match u64::from_str_radix(text, 16) {
            Ok(id) if id != 0 && text.len() == 16 => Ok(Self(id)),
            Ok(_) | Err(_) => Err(InvalidTraceContext),
        }
    }
}

/// A span of a trace, as `traceparent` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace.
    pub trace: TraceId,
    /// The span.
    pub span: SpanId,
}

/// A text is no `traceparent` of version 00.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not 00-<32 hexadecimal digits>-<16 hexadecimal digits>-<flags>")]
pub struct InvalidTraceContext;

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Flag 1: sampled.
        write!(f, "00-{}-{}-01", self.trace, self.span)
    }
}

impl FromStr for TraceContext {
    type Err = InvalidTraceContext;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split('-');
        let (Some("00"), Some(trace), Some(span), Some(_flags), None) =
            (parts.next(), parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(InvalidTraceContext);
        };
        match u128::from_str_radix(trace, 16) {
            Ok(id) if id != 0 && trace.len() == 32 => {
                Ok(Self { trace: TraceId(id), span: span.parse()? })
            }
            Ok(_) | Err(_) => Err(InvalidTraceContext),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_round_trips() {
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let context: TraceContext = text.parse().unwrap();
        assert_eq!(context.to_string(), text);
        for invalid in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902bx-01",
        ] {
            assert_eq!(invalid.parse::<TraceContext>(), Err(InvalidTraceContext), "{invalid}");
        }
    }

    #[test]
    fn equal_values_have_equal_ids() {
        assert_eq!(TraceId::of(&("a", 1)), TraceId::of(&("a", 1)));
        assert_ne!(TraceId::of(&("a", 1)), TraceId::of(&("a", 2)));
        assert_ne!(SpanId::of(&"a"), SpanId::of(&"b"));
    }
}
