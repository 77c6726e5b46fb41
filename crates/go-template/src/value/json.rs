//! Values as Go's `encoding/json` encodes them.

use super::{Heap, Value, deeper};
use crate::{
    error::Failure,
    layout,
    text::{float, runes},
};

/// Layout of JSON.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    Compact,
    /// Two spaces for each level.
    Indented,
}

/// Encodes a value as JSON; `None` if it contains an infinite number or NaN.
pub(crate) fn write(
    heap: &Heap,
    value: &Value,
    layout: Layout,
) -> Result<Option<Vec<u8>>, Failure> {
    let mut writer = Writer { heap, layout, out: Vec::new() };
    Ok(writer.value(value, 0)?.then_some(writer.out))
}

struct Writer<'a> {
    heap: &'a Heap,
    layout: Layout,
    out: Vec<u8>,
}

impl Writer<'_> {
    /// Writes a value; returns false for an infinite number or NaN.
    fn value(&mut self, value: &Value, depth: usize) -> Result<bool, Failure> {
        if self.out.len() > self.heap.limits.text {
            return Err(Failure::Limit("the length of a text"));
        }
        match value {
            Value::Nil => self.out.extend(b"null"),
            Value::Bool(value) => self.out.extend(value.to_string().into_bytes()),
            Value::Integer { value, .. } => self.out.extend(value.to_string().into_bytes()),
            Value::Float(value) if value.is_finite() => {
                self.out.extend(number(*value).into_bytes());
            }
            Value::Float(_) => return Ok(false),
            Value::Text(text) => quote(text.bytes(), &mut self.out),
            Value::List(list) if list.is_nil => self.out.extend(b"null"),
            Value::Map(map) if map.is_nil => self.out.extend(b"null"),
            Value::List(list) => {
                let inner = deeper(depth)?;
                self.out.push(b'[');
                for (index, item) in self.heap.items(*list).iter().enumerate() {
                    self.separate(index, inner);
                    if !self.value(item, inner)? {
                        return Ok(false);
                    }
                }
                self.close(list.len(), depth, b']');
            }
            Value::Map(map) => {
                let inner = deeper(depth)?;
                let entries = self.heap.entries(*map);
                self.out.push(b'{');
                for (index, (key, value)) in entries.iter().enumerate() {
                    self.separate(index, inner);
                    quote(key.bytes(), &mut self.out);
                    self.out.extend(if self.layout == Layout::Compact {
                        b":".as_slice()
                    } else {
                        b": "
                    });
                    if !self.value(value, inner)? {
                        return Ok(false);
                    }
                }
                self.close(entries.len(), depth, b'}');
            }
            Value::Time(time) => quote(layout::rfc3339(time).as_bytes(), &mut self.out),
            Value::Version(version) => quote(version.to_string().as_bytes(), &mut self.out),
        }
        Ok(true)
    }

    fn separate(&mut self, index: usize, depth: usize) {
        if index > 0 {
            self.out.push(b',');
        }
        self.new_line(depth);
    }

    fn close(&mut self, count: usize, depth: usize, bracket: u8) {
        if count > 0 {
            self.new_line(depth);
        }
        self.out.push(bracket);
    }

    fn new_line(&mut self, depth: usize) {
        if self.layout == Layout::Indented {
            self.out.push(b'\n');
            self.out.extend(std::iter::repeat_n(b' ', 2 * depth));
        }
    }
}

fn number(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude != 0.0 && !(1e-6..1e21).contains(&magnitude) {
        // An exponent of one digit has no leading zero if it is negative.
        float::format(value, b'e', None).replace("e-0", "e-")
    } else {
        float::format(value, b'f', None)
    }
}

fn quote(bytes: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for rune in runes::all(bytes) {
        match rune.character {
            _ if !rune.is_valid => out.extend(b"\\ufffd"),
            '"' => out.extend(b"\\\""),
            '\\' => out.extend(b"\\\\"),
            '\x08' => out.extend(b"\\b"),
            '\x0c' => out.extend(b"\\f"),
            '\n' => out.extend(b"\\n"),
            '\r' => out.extend(b"\\r"),
            '\t' => out.extend(b"\\t"),
            '<' | '>' | '&' | '\0'..='\x1f' | '\u{2028}' | '\u{2029}' => {
                out.extend(format!("\\u{:04x}", u32::from(rune.character)).into_bytes());
            }
            character => out.extend(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    out.push(b'"');
}
