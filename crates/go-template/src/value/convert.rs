//! Sprig's conversions of values.

use super::{Heap, Value, print};
use crate::{
    error::Failure,
    text::{Text, float},
};

/// Returns the result of `int64`; 0 if the value is not a number.
pub(crate) fn to_int64(value: &Value) -> i64 {
    match value {
        Value::Text(text) => parse_integer(text.bytes(), 10).unwrap_or(0),
        Value::Integer { value, .. } => *value,
        Value::Float(value) => float::to_integer(*value),
        Value::Bool(value) => i64::from(*value),
        Value::Nil | Value::List(_) | Value::Map(_) | Value::Time(_) | Value::Version(_) => 0,
    }
}

/// Returns the result of `float64`; 0 if the value is not a number.
pub(crate) fn to_float(value: &Value) -> f64 {
    match value {
        Value::Text(text) => {
            let text = std::str::from_utf8(text.bytes()).ok();
            text.and_then(float::parse).unwrap_or(0.0)
        }
        #[expect(clippy::cast_precision_loss, reason = "as Go converts")]
        Value::Integer { value, .. } => *value as f64,
        Value::Float(value) => *value,
        Value::Bool(value) => f64::from(u8::from(*value)),
        Value::Nil | Value::List(_) | Value::Map(_) | Value::Time(_) | Value::Version(_) => 0.0,
    }
}

/// Parses digits with an optional sign; `None` if invalid or out of range.
pub(crate) fn parse_integer(text: &[u8], radix: u32) -> Option<i64> {
    i64::from_str_radix(std::str::from_utf8(text).ok()?, radix).ok()
}

/// Returns the result of `toString`.
pub(crate) fn to_text(heap: &Heap, value: &Value) -> Result<Text, Failure> {
    match value {
        Value::Text(text) => Ok(text.clone()),
        value => Ok(print::plain(heap, value)?.into()),
    }
}

/// Returns the result of `toStrings`: the elements of a list except nil, or the value alone.
pub(crate) fn to_texts(heap: &Heap, value: &Value) -> Result<Vec<Text>, Failure> {
    match value {
        Value::Nil => Ok(Vec::new()),
        Value::List(list) => {
            let items = heap.items(*list).iter();
            let mut texts = Vec::new();
            let mut length = 0;
            for item in items.filter(|item| !matches!(item, Value::Nil)) {
                let text = to_text(heap, item)?;
                length += text.bytes().len();
                heap.check_length(length)?;
                texts.push(text);
            }
            Ok(texts)
        }
        value => Ok(vec![to_text(heap, value)?]),
    }
}
