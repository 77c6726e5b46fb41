//! Lists.

use super::signature::{fixed, open};
use crate::{
    calls::{Call, Function, Type},
    error::Failure,
    value::{
        Element, Heap, Value,
        compare::{deep_equals, is_empty},
        convert::{to_int64, to_text, to_texts},
    },
};

const ANY: &[Type] = &[Type::Any];
const TWO: &[Type] = &[Type::Any, Type::Any];

pub(super) fn find(name: &str) -> Option<Function> {
    Some(match name {
        "list" | "tuple" => open(&[], Type::Any, |call| {
            let items = call.values(0);
            call.heap.list(items, Element::Any)
        }),
        "append" | "push" => fixed(TWO, |call| {
            let mut items = call.items(0)?;
            items.push(call.value(1));
            call.heap.list(items, Element::Any)
        }),
        "prepend" => fixed(TWO, |call| {
            let mut items = vec![call.value(1)];
            items.extend(call.items(0)?);
            call.heap.list(items, Element::Any)
        }),
        "concat" => open(&[], Type::Any, concatenated),
        "first" => fixed(ANY, |call| Ok(call.items(0)?.first().cloned().unwrap_or(Value::Nil))),
        "last" => fixed(ANY, |call| Ok(call.items(0)?.last().cloned().unwrap_or(Value::Nil))),
        "rest" => fixed(ANY, |call| without_one(call, |items| &items[1..])),
        "initial" => fixed(ANY, |call| without_one(call, |items| &items[..items.len() - 1])),
        "reverse" => fixed(ANY, |call| {
            let items = call.items(0)?.into_iter().rev().collect();
            call.heap.list(items, Element::Any)
        }),
        "compact" => fixed(ANY, |call| {
            let items = call.items(0)?.into_iter();
            let items = items.filter(|item| !is_empty(call.heap, item)).collect();
            call.heap.list(items, Element::Any)
        }),
        "uniq" => fixed(ANY, unique),
        "without" => open(ANY, Type::Any, without),
        "has" => fixed(TWO, has),
        "slice" => open(ANY, Type::Any, slice),
        "join" => fixed(&[Type::Text, Type::Any], joined),
        "sortAlpha" => fixed(ANY, sorted),
        "toStrings" => fixed(ANY, |call| {
            let value = call.value(0);
            if let Value::List(list) = value
                && list.element == Element::Text
            {
                return Ok(value);
            }
            let texts = to_texts(call.heap, &value)?;
            call.heap.texts(texts)
        }),
        _ => return None,
    })
}

fn concatenated(call: &mut Call<'_>) -> Result<Value, Failure> {
    let mut items = Vec::new();
    for index in 0..call.arguments.len() {
        items.extend(call.items(index)?);
        call.heap.step(items.len())?;
    }
    if items.is_empty() {
        return Ok(call.heap.nil_list(Element::Any));
    }
    call.heap.list(items, Element::Any)
}

/// Returns a part of a list; nil for an empty list.
fn without_one(call: &mut Call<'_>, part: fn(&[Value]) -> &[Value]) -> Result<Value, Failure> {
    let items = call.items(0)?;
    if items.is_empty() {
        return Ok(call.heap.nil_list(Element::Any));
    }
    call.heap.list(part(&items).to_vec(), Element::Any)
}

/// Returns the distinct items, each at its first position.
fn unique(call: &mut Call<'_>) -> Result<Value, Failure> {
    let mut kept: Vec<Value> = Vec::new();
    for item in call.items(0)? {
        call.heap.step(kept.len())?;
        if !contains(call.heap, &kept, &item)? {
            kept.push(item);
        }
    }
    call.heap.list(kept, Element::Any)
}

fn contains(heap: &mut Heap, items: &[Value], needle: &Value) -> Result<bool, Failure> {
    for item in items {
        if deep_equals(heap, needle, item)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn without(call: &mut Call<'_>) -> Result<Value, Failure> {
    let items = call.items(0)?;
    let omitted = call.values(1);
    let mut kept = Vec::new();
    for item in items {
        call.heap.step(omitted.len())?;
        if !contains(call.heap, &omitted, &item)? {
            kept.push(item);
        }
    }
    call.heap.list(kept, Element::Any)
}

fn has(call: &mut Call<'_>) -> Result<Value, Failure> {
    if matches!(call.value(1), Value::Nil) {
        return Ok(Value::Bool(false));
    }
    let items = call.items(1)?;
    call.heap.step(items.len())?;
    Ok(Value::Bool(contains(call.heap, &items, &call.value(0))?))
}

fn slice(call: &mut Call<'_>) -> Result<Value, Failure> {
    let list = call.list(0)?;
    let length = i64::try_from(list.len()).unwrap_or(i64::MAX);
    if length == 0 {
        return Ok(Value::Nil);
    }
    let bounds = call.values(1);
    let start = bounds.first().map_or(0, to_int64);
    let end = bounds.get(1).map_or(length, to_int64);
    Heap::part(list, start, end).ok_or(Failure::OutOfRange(if start > end { start } else { end }))
}

fn joined(call: &mut Call<'_>) -> Result<Value, Failure> {
    let separator = call.text(0);
    let texts = to_texts(call.heap, &call.value(1))?;
    let length = texts.iter().map(|text| text.bytes().len() + separator.bytes().len()).sum();
    call.heap.reserve(length)?;
    let texts: Vec<&[u8]> = texts.iter().map(crate::text::Text::bytes).collect();
    let text = texts.join(separator.bytes());
    call.make(text)
}

/// Sorts strings; a list of strings is sorted in place.
fn sorted(call: &mut Call<'_>) -> Result<Value, Failure> {
    let value = call.value(0);
    let Value::List(list) = value else {
        let text = to_text(call.heap, &value)?;
        return call.heap.texts(vec![text]);
    };
    let mut texts = to_texts(call.heap, &value)?;
    call.heap.step(texts.len())?;
    texts.sort();
    if list.element != Element::Text {
        return call.heap.texts(texts);
    }
    for (item, text) in call.heap.items_mut(list).iter_mut().zip(texts) {
        *item = Value::Text(text);
    }
    Ok(value)
}
