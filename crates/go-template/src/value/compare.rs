//! Truth, emptiness and equality of values, as Go defines them.

use super::{Heap, IntegerType, List, Map, Value, deeper};
use crate::error::Failure;

/// Returns true if a template treats the value as true.
pub(crate) fn is_true(heap: &Heap, value: &Value) -> bool {
    // The empty values of Sprig are the false values of templates.
    !is_empty(heap, value)
}

/// Returns the result of Sprig's `empty`.
pub(crate) fn is_empty(heap: &Heap, value: &Value) -> bool {
    match value {
        Value::Nil => true,
        Value::Bool(value) => !value,
        Value::Integer { value, .. } => *value == 0,
        Value::Float(value) => *value == 0.0,
        Value::Text(text) => text.bytes().is_empty(),
        Value::List(list) => list.len() == 0,
        Value::Map(map) => heap.entries(*map).is_empty(),
        Value::Time(_) | Value::Version(_) => false,
    }
}

/// Kinds that Go templates can compare.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Bool,
    Integer,
    Byte,
    Float,
    Text,
    Other,
}

fn kind(value: &Value) -> Kind {
    match value {
        Value::Bool(_) => Kind::Bool,
        Value::Integer { kind: IntegerType::Byte, .. } => Kind::Byte,
        Value::Integer { .. } => Kind::Integer,
        Value::Float(_) => Kind::Float,
        Value::Text(_) => Kind::Text,
        Value::Nil | Value::List(_) | Value::Map(_) | Value::Time(_) | Value::Version(_) => {
            Kind::Other
        }
    }
}

/// Returns the result of the template function `eq`.
pub(crate) fn equals(left: &Value, right: &Value) -> Result<bool, Failure> {
    match (left, right) {
        (Value::Bool(left), Value::Bool(right)) => Ok(left == right),
        (Value::Integer { value: left, .. }, Value::Integer { value: right, .. }) => {
            Ok(left == right)
        }
        #[expect(clippy::float_cmp, reason = "as Go compares")]
        (Value::Float(left), Value::Float(right)) => Ok(left == right),
        (Value::Text(left), Value::Text(right)) => Ok(left == right),
        (left, right) if kind(left) != Kind::Other || kind(right) != Kind::Other => {
            let is_nil = matches!(left, Value::Nil) || matches!(right, Value::Nil);
            if is_nil { Ok(false) } else { Err(incomparable(left, right)) }
        }
        (left, right) => {
            let comparable = matches!(left, Value::Nil)
                || matches!(right, Value::Nil)
                || left.kind_name() == right.kind_name();
            if !comparable {
                return Err(incomparable(left, right));
            }
            if is_nil(left) || is_nil(right) {
                return Ok(is_nil(left) && is_nil(right));
            }
            match (left, right) {
                (Value::Time(left), Value::Time(right)) => Ok(left == right),
                (Value::Version(left), Value::Version(right)) => {
                    Ok(std::rc::Rc::ptr_eq(left, right))
                }
                _ => Err(incomparable(left, right)),
            }
        }
    }
}

fn incomparable(left: &Value, right: &Value) -> Failure {
    Failure::Incomparable { left: left.type_name(), right: right.type_name() }
}

fn is_nil(value: &Value) -> bool {
    match value {
        Value::Nil => true,
        Value::List(list) => list.is_nil,
        Value::Map(map) => map.is_nil,
        Value::Bool(_)
        | Value::Integer { .. }
        | Value::Float(_)
        | Value::Text(_)
        | Value::Time(_)
        | Value::Version(_) => false,
    }
}

/// Returns the result of the template function `lt`.
pub(crate) fn is_less(left: &Value, right: &Value) -> Result<bool, Failure> {
    match (left, right) {
        (Value::Integer { value: left, .. }, Value::Integer { value: right, .. }) => {
            Ok(left < right)
        }
        (Value::Float(left), Value::Float(right)) => Ok(left < right),
        (Value::Text(left), Value::Text(right)) => Ok(left < right),
        _ => Err(Failure::Incomparable { left: left.type_name(), right: right.type_name() }),
    }
}

/// Returns the result of Go's `reflect.DeepEqual`. Each pair of values is a step: values that share
/// elements have many more pairs than elements.
pub(crate) fn deep_equals(heap: &mut Heap, left: &Value, right: &Value) -> Result<bool, Failure> {
    let mut comparison = Comparison { heap, left: heap.steps_left(), pairs: 0 };
    let result = comparison.equals(left, right, 0);
    let pairs = comparison.pairs;
    heap.step(pairs)?;
    result
}

struct Comparison<'a> {
    heap: &'a Heap,
    /// Number of pairs that may still be compared.
    left: u64,
    /// Number of compared pairs.
    pairs: usize,
}

impl Comparison<'_> {
    fn equals(&mut self, left: &Value, right: &Value, depth: usize) -> Result<bool, Failure> {
        self.left = self.left.checked_sub(1).ok_or(Failure::Limit("steps"))?;
        self.pairs += 1;
        Ok(match (left, right) {
            (Value::Nil, Value::Nil) => true,
            (Value::Bool(left), Value::Bool(right)) => left == right,
            (
                Value::Integer { value: left, kind: left_type },
                Value::Integer { value: right, kind: right_type },
            ) => left == right && left_type == right_type,
            #[expect(clippy::float_cmp, reason = "as Go compares")]
            (Value::Float(left), Value::Float(right)) => left == right,
            (Value::Text(left), Value::Text(right)) => left == right,
            (Value::List(left), Value::List(right)) => self.equal_lists(*left, *right, depth)?,
            (Value::Map(left), Value::Map(right)) => self.equal_maps(*left, *right, depth)?,
            (Value::Time(left), Value::Time(right)) => left == right,
            (Value::Version(left), Value::Version(right)) => left == right,
            _ => false,
        })
    }

    fn equal_lists(&mut self, left: List, right: List, depth: usize) -> Result<bool, Failure> {
        let depth = deeper(depth)?;
        let heap = self.heap;
        if left.element != right.element || left.is_nil != right.is_nil || left.len() != right.len()
        {
            return Ok(false);
        }
        for (left, right) in heap.items(left).iter().zip(heap.items(right)) {
            if !self.equals(left, right, depth)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn equal_maps(&mut self, left: Map, right: Map, depth: usize) -> Result<bool, Failure> {
        let depth = deeper(depth)?;
        let heap = self.heap;
        let left_entries = heap.entries(left);
        let right_entries = heap.entries(right);
        if left.element != right.element
            || left.is_nil != right.is_nil
            || left_entries.len() != right_entries.len()
        {
            return Ok(false);
        }
        for (key, value) in left_entries {
            let Some(other) = right_entries.get(key) else { return Ok(false) };
            if !self.equals(value, other, depth)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
