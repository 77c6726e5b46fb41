//! String functions.

use std::collections::{BTreeMap, BTreeSet};

use super::signature::{fixed, open};
use crate::{
    calls::{Call, Function, Type},
    error::Failure,
    text::{Text, literal, runes},
    value::{Element, Value, compare::is_empty, convert::to_text, print},
};

const TEXT: &[Type] = &[Type::Text];
const TWO: &[Type] = &[Type::Text, Type::Text];

pub(super) fn find(name: &str) -> Option<Function> {
    Some(match name {
        "hello" => fixed(&[], |_| Ok(Value::text("Hello!"))),
        "fail" => fixed(TEXT, |call| {
            Err(Failure::Failed(String::from_utf8_lossy(call.text(0).bytes()).into_owned()))
        }),
        "toString" => {
            fixed(&[Type::Any], |call| Ok(Value::Text(to_text(call.heap, &call.value(0))?)))
        }
        "trim" => fixed(TEXT, |call| trimmed(call, 0, runes::is_space)),
        "trimAll" | "trimall" => fixed(TWO, |call| {
            let set: BTreeSet<char> = runes::characters(call.text(0).bytes()).collect();
            trimmed(call, 1, |character| set.contains(&character))
        }),
        "trimPrefix" => fixed(TWO, |call| {
            let prefix = call.text(0);
            let text = call.text(1);
            let rest = text.bytes().strip_prefix(prefix.bytes()).unwrap_or(text.bytes());
            call.make(rest)
        }),
        "trimSuffix" => fixed(TWO, |call| {
            let suffix = call.text(0);
            let text = call.text(1);
            let rest = text.bytes().strip_suffix(suffix.bytes()).unwrap_or(text.bytes());
            call.make(rest)
        }),
        "contains" => fixed(TWO, |call| {
            let part = call.text(0);
            let text = call.text(1);
            Ok(Value::Bool(position(text.bytes(), part.bytes()).is_some()))
        }),
        "hasPrefix" => fixed(TWO, |call| {
            Ok(Value::Bool(call.text(1).bytes().starts_with(call.text(0).bytes())))
        }),
        "hasSuffix" => {
            fixed(TWO, |call| Ok(Value::Bool(call.text(1).bytes().ends_with(call.text(0).bytes()))))
        }
        "replace" => fixed(&[Type::Text, Type::Text, Type::Text], |call| {
            let old = call.text(0);
            let new = call.text(1);
            let text = call.text(2);
            replaced(call, text.bytes(), old.bytes(), new.bytes())
        }),
        "repeat" => fixed(&[Type::Int, Type::Text], repeated),
        "split" => fixed(TWO, |call| {
            let parts = split(call.text(1).bytes(), call.text(0).bytes(), None);
            numbered(call, parts)
        }),
        "splitn" => fixed(&[Type::Text, Type::Int, Type::Text], |call| {
            let count = call.int(1);
            let parts = split(call.text(2).bytes(), call.text(0).bytes(), Some(count));
            numbered(call, parts)
        }),
        "splitList" => fixed(TWO, |call| {
            let parts = split(call.text(1).bytes(), call.text(0).bytes(), None);
            call.heap.texts(parts)
        }),
        name => return find_layout(name),
    })
}

/// Returns the function of this name, if it formats strings or chooses between values.
fn find_layout(name: &str) -> Option<Function> {
    Some(match name {
        "trunc" => fixed(&[Type::Int, Type::Text], |call| {
            let length = call.int(0);
            let text = call.text(1);
            let bytes = text.bytes();
            if usize::try_from(length).is_ok_and(|length| bytes.len() <= length) {
                return Ok(Value::Text(text));
            }
            let part = part(bytes, 0, length)?;
            call.make(part)
        }),
        "substr" => fixed(&[Type::Int, Type::Int, Type::Text], |call| {
            let start = call.int(0);
            let end = call.int(1);
            let text = call.text(2);
            let length = i64::try_from(text.bytes().len()).unwrap_or(i64::MAX);
            let part = if start < 0 {
                part(text.bytes(), 0, end)?
            } else if end < 0 || end > length {
                part(text.bytes(), start, length)?
            } else {
                part(text.bytes(), start, end)?
            };
            call.make(part)
        }),
        "indent" => fixed(&[Type::Int, Type::Text], |call| indented(call, b"")),
        "nindent" => fixed(&[Type::Int, Type::Text], |call| indented(call, b"\n")),
        "plural" => fixed(&[Type::Text, Type::Text, Type::Int], |call| {
            Ok(call.value(usize::from(call.int(2) != 1)))
        }),
        "cat" => open(&[], Type::Any, |call| {
            let values = call.values(0);
            let values: Vec<Value> =
                values.into_iter().filter(|value| !matches!(value, Value::Nil)).collect();
            let mut line = super::format::sprintln(call.heap, &values)?;
            line.pop();
            call.make(line)
        }),
        "quote" => open(&[], Type::Any, |call| {
            quoted(call, |call, value| {
                Ok(literal::quote(to_text(call.heap, value)?.bytes(), false))
            })
        }),
        "squote" => open(&[], Type::Any, |call| {
            quoted(call, |call, value| {
                let text = print::plain(call.heap, value)?;
                Ok([b"'", text.as_slice(), b"'"].concat())
            })
        }),
        "default" => open(&[Type::Any], Type::Any, |call| {
            let given = call.value(1);
            Ok(if is_empty(call.heap, &given) { call.value(0) } else { given })
        }),
        "empty" => fixed(&[Type::Any], |call| Ok(Value::Bool(is_empty(call.heap, &call.value(0))))),
        "coalesce" => open(&[], Type::Any, |call| {
            let values = call.values(0);
            let found = values.into_iter().find(|value| !is_empty(call.heap, value));
            Ok(found.unwrap_or(Value::Nil))
        }),
        "ternary" => fixed(&[Type::Any, Type::Any, Type::Bool], |call| {
            let is_true = matches!(call.value(2), Value::Bool(true));
            Ok(call.value(usize::from(!is_true)))
        }),
        _ => return None,
    })
}

/// Returns a range of bytes; [`Failure::OutOfRange`] if the string is shorter.
fn part(bytes: &[u8], start: i64, end: i64) -> Result<&[u8], Failure> {
    let range = usize::try_from(start).ok().zip(usize::try_from(end).ok());
    let part = range.and_then(|(start, end)| bytes.get(start..end));
    part.ok_or(Failure::OutOfRange(if start < 0 { start } else { end }))
}

fn position(text: &[u8], part: &[u8]) -> Option<usize> {
    if part.is_empty() {
        return Some(0);
    }
    text.windows(part.len()).position(|window| window == part)
}

/// Trims characters from both ends of an argument.
fn trimmed(
    call: &mut Call<'_>,
    index: usize,
    is_cut: impl Fn(char) -> bool,
) -> Result<Value, Failure> {
    let text = call.text(index);
    let bytes = text.bytes();
    let mut start = None;
    let mut end = 0;
    let mut position = 0;
    for rune in runes::all(bytes) {
        if !is_cut(rune.character) {
            start = start.or(Some(position));
            end = position + rune.length;
        }
        position += rune.length;
    }
    let kept = start.map_or(&[][..], |start| &bytes[start..end]);
    call.make(kept)
}

/// Splits into at most `count` parts; at each character if the separator is empty.
fn split(text: &[u8], separator: &[u8], count: Option<i64>) -> Vec<Text> {
    let limit = match count {
        Some(0) => return Vec::new(),
        Some(count) => usize::try_from(count).unwrap_or(usize::MAX),
        None => usize::MAX,
    };
    let mut parts = Vec::new();
    let mut rest = text;
    if separator.is_empty() {
        while let Some(rune) = runes::first(rest) {
            let length = if parts.len() + 1 == limit { rest.len() } else { rune.length };
            parts.push(Text::from(&rest[..length]));
            rest = &rest[length..];
        }
        return parts;
    }
    while parts.len() + 1 < limit {
        let Some(position) = position(rest, separator) else { break };
        parts.push(Text::from(&rest[..position]));
        rest = &rest[position + separator.len()..];
    }
    parts.push(Text::from(rest));
    parts
}

/// Makes a map with the keys `_0`, `_1` and so on.
fn numbered(call: &mut Call<'_>, parts: Vec<Text>) -> Result<Value, Failure> {
    let mut entries = BTreeMap::new();
    for (index, part) in parts.into_iter().enumerate() {
        entries.insert(Text::from(format!("_{index}")), Value::Text(part));
    }
    call.heap.map(entries, Element::Text)
}

fn repeated(call: &mut Call<'_>) -> Result<Value, Failure> {
    let count = call.int(0);
    let text = call.text(1);
    let count = usize::try_from(count).map_err(|_| Failure::OutOfRange(count))?;
    let length = text.bytes().len().checked_mul(count);
    call.heap.reserve(length.unwrap_or(usize::MAX))?;
    Ok(Value::Text(text.bytes().repeat(count).into()))
}

/// Replaces all occurrences; an empty `old` occurs before each character and at the end.
fn replaced(call: &mut Call<'_>, text: &[u8], old: &[u8], new: &[u8]) -> Result<Value, Failure> {
    let parts = if old.is_empty() {
        let mut parts = split(text, old, None);
        parts.insert(0, Text::from(""));
        parts.push(Text::from(""));
        parts
    } else {
        split(text, old, None)
    };
    let parts = if text.is_empty() && old.is_empty() { parts[..2].to_vec() } else { parts };
    let added = new.len().checked_mul(parts.len().saturating_sub(1));
    call.heap
        .reserve(added.and_then(|added| added.checked_add(text.len())).unwrap_or(usize::MAX))?;
    let parts: Vec<&[u8]> = parts.iter().map(Text::bytes).collect();
    call.make(parts.join(new))
}

/// Indents each line, after `prefix`.
fn indented(call: &mut Call<'_>, prefix: &[u8]) -> Result<Value, Failure> {
    let count = call.int(0);
    let text = call.text(1);
    let count = usize::try_from(count).map_err(|_| Failure::OutOfRange(count))?;
    let lines = text.bytes().split(|byte| *byte == b'\n').count();
    let added = lines.checked_mul(count).and_then(|added| added.checked_add(text.bytes().len()));
    call.heap.reserve(added.unwrap_or(usize::MAX))?;
    let mut out = prefix.to_vec();
    for (index, line) in text.bytes().split(|byte| *byte == b'\n').enumerate() {
        if index > 0 {
            out.push(b'\n');
        }
        out.extend(std::iter::repeat_n(b' ', count));
        out.extend(line);
    }
    call.make(out)
}

/// Joins all values except nil, each quoted.
fn quoted(
    call: &mut Call<'_>,
    quote: fn(&Call<'_>, &Value) -> Result<Vec<u8>, Failure>,
) -> Result<Value, Failure> {
    let mut texts = Vec::new();
    let mut length = 0;
    for value in call.values(0) {
        if !matches!(value, Value::Nil) {
            let text = quote(call, &value)?;
            length += text.len();
            call.heap.check_length(length)?;
            texts.push(text);
        }
    }
    call.make(texts.join(&b' '))
}
