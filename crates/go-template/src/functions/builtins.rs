//! Functions of Go's `text/template`.

use super::{
    format,
    signature::{fixed, open},
};
use crate::{
    calls::{Call, Function, Type},
    error::Failure,
    text::runes,
    value::{
        Element, IntegerType, Value,
        compare::{equals, is_less, is_true},
    },
};

/// Makes a function that compares two arguments.
macro_rules! comparison {
    ($compare:expr) => {
        fixed(&[Type::Any, Type::Any], |call| {
            Ok(Value::Bool($compare(&call.value(0), &call.value(1))?))
        })
    };
}

pub(super) fn find(name: &str) -> Option<Function> {
    Some(match name {
        // The executor short-circuits these functions.
        "and" | "or" => open(&[Type::Any], Type::Any, |call| Ok(call.value(0))),
        "call" => open(&[Type::Any], Type::Any, |_| {
            Err(Failure::NotAFunction("the first argument of call".to_owned()))
        }),
        "html" => open(&[], Type::Any, |call| escaped(call, html)),
        "index" => open(&[Type::Any], Type::Any, index),
        "js" => open(&[], Type::Any, |call| escaped(call, javascript)),
        "len" => fixed(&[Type::Any], length),
        "not" => fixed(&[Type::Any], |call| Ok(Value::Bool(!is_true(call.heap, &call.value(0))))),
        "print" => open(&[], Type::Any, |call| {
            let text = format::sprint(call.heap, &call.values(0))?;
            call.make(text)
        }),
        "printf" => open(&[Type::Text], Type::Any, |call| {
            let format = call.text(0);
            let values = call.values(1);
            let text = format::sprintf(call.heap, format.bytes(), &values)?;
            call.make(text)
        }),
        "println" => open(&[], Type::Any, |call| {
            let text = format::sprintln(call.heap, &call.values(0))?;
            call.make(text)
        }),
        "urlquery" => open(&[], Type::Any, |call| escaped(call, super::url::query_escape)),
        "eq" => open(&[Type::Any], Type::Any, |call| {
            if call.arguments.len() < 2 {
                let function = "eq".to_owned();
                return Err(Failure::ArgumentCount { function, expected: 2, found: 1 });
            }
            for other in call.values(1) {
                if equals(&call.value(0), &other)? {
                    return Ok(Value::Bool(true));
                }
            }
            Ok(Value::Bool(false))
        }),
        "ne" => comparison!(differ),
        "lt" => comparison!(is_less),
        "le" => comparison!(is_at_most),
        "gt" => comparison!(is_more),
        "ge" => comparison!(is_at_least),
        _ => return None,
    })
}

fn differ(left: &Value, right: &Value) -> Result<bool, Failure> {
    Ok(!equals(left, right)?)
}

fn is_at_most(left: &Value, right: &Value) -> Result<bool, Failure> {
    Ok(is_less(left, right)? || equals(left, right)?)
}

fn is_more(left: &Value, right: &Value) -> Result<bool, Failure> {
    Ok(!is_at_most(left, right)?)
}

fn is_at_least(left: &Value, right: &Value) -> Result<bool, Failure> {
    Ok(!is_less(left, right)?)
}

fn length(call: &mut Call<'_>) -> Result<Value, Failure> {
    let length = match call.value(0) {
        Value::Text(text) => text.bytes().len(),
        Value::List(list) => list.len(),
        Value::Map(map) => call.heap.entries(map).len(),
        other => {
            let found = other.type_name();
            return Err(Failure::WrongType { expected: "a text, list or map", found });
        }
    };
    Ok(Value::int(i64::try_from(length).unwrap_or(i64::MAX)))
}

fn index(call: &mut Call<'_>) -> Result<Value, Failure> {
    let mut item = call.value(0);
    if matches!(item, Value::Nil) {
        return Err(Failure::WrongType { expected: "a text, list or map", found: "<nil>" });
    }
    for index in call.values(1) {
        item = match item {
            Value::Text(text) => {
                let byte = at(text.bytes(), &index)?;
                Value::Integer { value: i64::from(*byte), kind: IntegerType::Byte }
            }
            Value::List(list) => at(call.heap.items(list), &index)?.clone(),
            Value::Map(map) => {
                let Value::Text(key) = &index else {
                    let found = index.type_name();
                    return Err(Failure::WrongType { expected: "string", found });
                };
                let absent = match map.element {
                    Element::Text => Value::text(""),
                    Element::Any | Element::Int => Value::Nil,
                };
                call.heap.entries(map).get(key).cloned().unwrap_or(absent)
            }
            other => {
                let found = other.type_name();
                return Err(Failure::WrongType { expected: "a text, list or map", found });
            }
        };
    }
    Ok(item)
}

fn at<'a, T>(items: &'a [T], index: &Value) -> Result<&'a T, Failure> {
    let Value::Integer { value: index, .. } = index else {
        return Err(Failure::WrongType { expected: "an integer", found: index.type_name() });
    };
    let position = usize::try_from(*index).ok();
    position.and_then(|position| items.get(position)).ok_or(Failure::OutOfRange(*index))
}

/// Escapes the text of all arguments.
fn escaped(call: &mut Call<'_>, escape: fn(&[u8]) -> Vec<u8>) -> Result<Value, Failure> {
    let mut values = call.values(0);
    for value in &mut values {
        if matches!(value, Value::Nil) {
            *value = Value::text("<no value>");
        }
    }
    let text = format::sprint(call.heap, &values)?;
    call.heap.reserve(text.len())?;
    call.make(escape(&text))
}

fn html(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            0 => out.extend("\u{fffd}".as_bytes()),
            b'"' => out.extend(b"&#34;"),
            b'\'' => out.extend(b"&#39;"),
            b'&' => out.extend(b"&amp;"),
            b'<' => out.extend(b"&lt;"),
            b'>' => out.extend(b"&gt;"),
            byte => out.push(*byte),
        }
    }
    out
}

fn javascript(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut position = 0;
    for rune in runes::all(bytes) {
        let raw = &bytes[position..position + rune.length];
        position += rune.length;
        match rune.character {
            '\\' => out.extend(br"\\"),
            '\'' => out.extend(br"\'"),
            '"' => out.extend(br#"\""#),
            '<' => out.extend(br"\u003C"),
            '>' => out.extend(br"\u003E"),
            '&' => out.extend(br"\u0026"),
            '=' => out.extend(br"\u003D"),
            '\x7f' => out.push(0x7f),
            character if runes::is_printable(character) => out.extend(raw),
            character => {
                out.extend(format!("\\u{:04X}", u32::from(character)).into_bytes());
            }
        }
    }
    out
}
