//! Maps.

use std::collections::BTreeMap;

use super::signature::{fixed, open};
use crate::{
    calls::{Call, Function, Type},
    error::Failure,
    text::Text,
    value::{Element, Heap, Map, Value, compare::is_empty, convert::to_text, deeper},
};

const MAP: &[Type] = &[Type::Map];
const MAP_AND_KEY: &[Type] = &[Type::Map, Type::Text];

pub(super) fn find(name: &str) -> Option<Function> {
    Some(match name {
        "dict" => open(&[], Type::Any, dict),
        "set" => fixed(&[Type::Map, Type::Text, Type::Any], set),
        "unset" => fixed(MAP_AND_KEY, |call| {
            let map = call.map(0);
            let key = call.text(1);
            call.heap.entries_mut(map).remove(&key);
            Ok(Value::Map(map))
        }),
        "hasKey" => fixed(MAP_AND_KEY, |call| {
            let map = call.map(0);
            Ok(Value::Bool(call.heap.entries(map).contains_key(&call.text(1))))
        }),
        "pluck" => open(&[Type::Text], Type::Map, pluck),
        "keys" => open(&[], Type::Map, keys),
        "values" => fixed(MAP, |call| {
            let map = call.map(0);
            let values = call.heap.entries(map).values().cloned().collect();
            call.heap.list(values, Element::Any)
        }),
        "pick" => open(MAP, Type::Text, |call| filtered(call, true)),
        "omit" => open(MAP, Type::Text, |call| filtered(call, false)),
        "merge" => open(MAP, Type::Map, |call| merged(call, false)),
        "mergeOverwrite" => open(MAP, Type::Map, |call| merged(call, true)),
        _ => return None,
    })
}

fn dict(call: &mut Call<'_>) -> Result<Value, Failure> {
    let mut entries = BTreeMap::new();
    for pair in call.values(0).chunks(2) {
        let key = to_text(call.heap, &pair[0])?;
        let value = pair.get(1).cloned().unwrap_or_else(|| Value::text(""));
        entries.insert(key, value);
    }
    call.heap.map(entries, Element::Any)
}

fn set(call: &mut Call<'_>) -> Result<Value, Failure> {
    let map = call.map(0);
    if map.is_nil {
        return Err(Failure::WrongType { expected: "a map", found: "<nil>" });
    }
    let key = call.text(1);
    let value = call.value(2);
    call.heap.entries_mut(map).insert(key, value);
    Ok(Value::Map(map))
}

fn pluck(call: &mut Call<'_>) -> Result<Value, Failure> {
    let key = call.text(0);
    let mut values = Vec::new();
    for index in 1..call.arguments.len() {
        let map = call.map(index);
        values.extend(call.heap.entries(map).get(&key).cloned());
    }
    call.heap.list(values, Element::Any)
}

/// Returns the keys of all maps; the keys of each map are sorted.
fn keys(call: &mut Call<'_>) -> Result<Value, Failure> {
    let mut keys = Vec::new();
    for index in 0..call.arguments.len() {
        let map = call.map(index);
        keys.extend(call.heap.entries(map).keys().cloned());
    }
    call.heap.texts(keys)
}

fn filtered(call: &mut Call<'_>, keeps_named: bool) -> Result<Value, Failure> {
    let map = call.map(0);
    let named: Vec<Text> = (1..call.arguments.len()).map(|index| call.text(index)).collect();
    let entries = call.heap.entries(map).iter();
    let kept = entries.filter(|(key, _)| named.contains(key) == keeps_named);
    let kept = kept.map(|(key, value)| (key.clone(), value.clone())).collect();
    call.heap.map(kept, Element::Any)
}

/// Merges maps into the first.
fn merged(call: &mut Call<'_>, overwrites: bool) -> Result<Value, Failure> {
    // Go makes a map for a nil target.
    let mut target = call.map(0);
    target.is_nil = false;
    for index in 1..call.arguments.len() {
        let source = call.map(index);
        merge(call.heap, target, source, overwrites, 0)?;
    }
    Ok(Value::Map(target))
}

/// Merges a map as `mergo` 0.3.8 does: an entry is copied if its value in the target is missing or
/// empty, or if `overwrites`; nested maps are merged.
fn merge(
    heap: &mut Heap,
    target: Map,
    source: Map,
    overwrites: bool,
    depth: usize,
) -> Result<(), Failure> {
    let depth = deeper(depth)?;
    let entries: Vec<(Text, Value)> =
        heap.entries(source).iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    heap.step(entries.len())?;
    for (key, value) in entries {
        if matches!(value, Value::Nil) {
            continue;
        }
        let present = heap.entries(target).get(&key).cloned();
        let is_free = present.as_ref().is_none_or(|present| is_empty(heap, present));
        match (&value, &present) {
            (Value::Map(value), Some(Value::Map(present))) => {
                merge(heap, *present, *value, overwrites, depth)?;
                if is_free && heap.entries(*present).is_empty() {
                    heap.entries_mut(target).insert(key, Value::Map(*value));
                }
                continue;
            }
            (Value::Map(_), Some(_)) if !is_free => continue,
            (Value::List(_), _) => {
                let target_is_empty = heap.entries(target).is_empty();
                let source_is_empty = heap.entries(source).is_empty();
                if !source_is_empty && (overwrites || target_is_empty) {
                    heap.entries_mut(target).insert(key.clone(), value.clone());
                    continue;
                }
                if !is_free {
                    continue;
                }
            }
            _ => {}
        }
        if overwrites || is_free {
            heap.entries_mut(target).insert(key, value);
        }
    }
    Ok(())
}
