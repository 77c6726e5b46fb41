//! Types and copies of values.

use std::{collections::BTreeMap, rc::Rc};

use super::signature::fixed;
use crate::{
    calls::{Call, Function, Type},
    error::Failure,
    value::{Heap, Value, compare::deep_equals, deeper},
    version::Version,
};

const TWO: &[Type] = &[Type::Any, Type::Any];
const TEXT_AND_ANY: &[Type] = &[Type::Text, Type::Any];

pub(super) fn find(name: &str) -> Option<Function> {
    Some(match name {
        "typeOf" => fixed(&[Type::Any], |call| Ok(Value::text(call.value(0).type_name()))),
        "kindOf" => fixed(&[Type::Any], |call| Ok(Value::text(call.value(0).kind_name()))),
        "typeIs" => fixed(TEXT_AND_ANY, |call| Ok(is_named(call, call.value(1).type_name()))),
        "kindIs" => fixed(TEXT_AND_ANY, |call| Ok(is_named(call, call.value(1).kind_name()))),
        "typeIsLike" => fixed(TEXT_AND_ANY, |call| {
            let value = call.value(1);
            let name = value.type_name();
            // A pointer also matches the type that it points to.
            let pointed = name.strip_prefix('*').unwrap_or(name).as_bytes();
            let wanted = call.text(0);
            Ok(Value::Bool(wanted.bytes() == name.as_bytes() || wanted.bytes() == pointed))
        }),
        "deepEqual" => fixed(TWO, |call| {
            let left = call.value(0);
            let right = call.value(1);
            Ok(Value::Bool(deep_equals(call.heap, &left, &right)?))
        }),
        "deepCopy" => fixed(&[Type::Any], |call| {
            let value = call.value(0);
            if matches!(value, Value::Nil) {
                return Err(Failure::WrongType { expected: "a value", found: "<nil>" });
            }
            copied(call.heap, &value, 0)
        }),
        _ => return None,
    })
}

fn is_named(call: &Call<'_>, name: &str) -> Value {
    Value::Bool(call.text(0).bytes() == name.as_bytes())
}

fn copied(heap: &mut Heap, value: &Value, depth: usize) -> Result<Value, Failure> {
    Ok(match value {
        Value::List(list) if !list.is_nil => {
            let depth = deeper(depth)?;
            let items = heap.items(*list).to_vec();
            let mut copies = Vec::with_capacity(items.len());
            for item in &items {
                copies.push(copied(heap, item, depth)?);
            }
            heap.list(copies, list.element)?
        }
        Value::Map(map) if !map.is_nil => {
            let depth = deeper(depth)?;
            let entries = heap.entries(*map).clone();
            let mut copies = BTreeMap::new();
            for (key, value) in &entries {
                copies.insert(key.clone(), copied(heap, value, depth)?);
            }
            heap.map(copies, map.element)?
        }
        // copystructure does not copy unexported fields.
        Value::Version(_) => Value::Version(Rc::new(Version::default())),
        value => value.clone(),
    })
}
