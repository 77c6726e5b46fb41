//! Values as Go's `%v` formats them.

use super::{Heap, Value, deeper};
use crate::{error::Failure, layout, text::float};

/// Formats a value; nil is `<nil>`.
pub(crate) fn plain(heap: &Heap, value: &Value) -> Result<Vec<u8>, Failure> {
    let mut out = Vec::new();
    each(heap, value, 0, &mut out, &mut |value, out| {
        out.extend(scalar(value));
        Ok(())
    })?;
    Ok(out)
}

/// Appends a scalar to the output.
pub(crate) type WriteScalar<'a> = &'a mut dyn FnMut(&Value, &mut Vec<u8>) -> Result<(), Failure>;

/// Writes a value, its scalars with `write`.
pub(crate) fn each(
    heap: &Heap,
    value: &Value,
    depth: usize,
    out: &mut Vec<u8>,
    write: WriteScalar<'_>,
) -> Result<(), Failure> {
    if out.len() > heap.limits.text {
        return Err(Failure::Limit("the length of a text"));
    }
    match value {
        Value::List(list) => {
            let depth = deeper(depth)?;
            out.push(b'[');
            for (index, item) in heap.items(*list).iter().enumerate() {
                if index > 0 {
                    out.push(b' ');
                }
                each(heap, item, depth, out, write)?;
            }
            out.push(b']');
        }
        Value::Map(map) => {
            let depth = deeper(depth)?;
            out.extend(b"map[");
            for (index, (key, value)) in heap.entries(*map).iter().enumerate() {
                if index > 0 {
                    out.push(b' ');
                }
                write(&Value::Text(key.clone()), out)?;
                out.push(b':');
                each(heap, value, depth, out, write)?;
            }
            out.push(b']');
        }
        value => write(value, out)?,
    }
    Ok(())
}

/// Formats a value other than a list or map.
fn scalar(value: &Value) -> Vec<u8> {
    match value {
        Value::Bool(value) => value.to_string().into_bytes(),
        Value::Integer { value, .. } => value.to_string().into_bytes(),
        Value::Float(value) => float::format(*value, b'g', None).into_bytes(),
        Value::Text(text) => text.bytes().to_vec(),
        Value::Time(time) => layout::text(time).into_bytes(),
        Value::Version(version) => version.to_string().into_bytes(),
        Value::Nil | Value::List(_) | Value::Map(_) => b"<nil>".to_vec(),
    }
}
