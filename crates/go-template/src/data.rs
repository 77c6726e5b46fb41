//! Data of a template: the value of `.`.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::{
    error::Failure,
    text::{Text, float},
    value::{Element, Heap, Value, deeper},
};

/// Value of `.` at the start of a template. Numbers are `float64`.
#[derive(Clone, Debug, Default)]
pub struct Data {
    /// Entries such as `Name`, `Namespace` and `PlanName`.
    pub names: BTreeMap<String, String>,
    /// `Params`.
    pub parameters: BTreeMap<String, Json>,
    /// `Pipes`: names of the artifacts of Pipe tasks.
    pub pipes: Option<BTreeMap<String, String>>,
}

impl Data {
    /// Puts the data on the heap.
    pub(super) fn on(&self, heap: &mut Heap) -> Result<Value, Failure> {
        let mut root = texts(&self.names);
        let mut parameters = BTreeMap::new();
        for (name, parameter) in &self.parameters {
            let parameter = value(heap, parameter, Numbers::Floats)?;
            parameters.insert(Text::from(name.as_str()), parameter);
        }
        root.insert("Params".into(), heap.map(parameters, Element::Any)?);
        if let Some(pipes) = &self.pipes {
            root.insert("Pipes".into(), heap.map(texts(pipes), Element::Text)?);
        }
        heap.map(root, Element::Any)
    }
}

fn texts(entries: &BTreeMap<String, String>) -> BTreeMap<Text, Value> {
    let mut texts = BTreeMap::new();
    for (key, value) in entries {
        texts.insert(Text::from(key.as_str()), Value::text(value.as_str()));
    }
    texts
}

/// Go type of the numbers in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Numbers {
    /// `float64` for all numbers, as `encoding/json` decodes them.
    Floats,
    /// Integers for whole numbers, as yaml.v2 decodes them.
    AsWritten,
}

/// Puts a value on the heap.
pub(super) fn value(heap: &mut Heap, value: &Json, numbers: Numbers) -> Result<Value, Failure> {
    nested(heap, value, numbers, 0)
}

fn nested(heap: &mut Heap, value: &Json, numbers: Numbers, depth: usize) -> Result<Value, Failure> {
    Ok(match value {
        Json::Null => Value::Nil,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => {
            let float = number.as_f64().unwrap_or(f64::NAN);
            let integer = number.as_i64().or_else(|| float::whole(float));
            match integer {
                Some(integer) if numbers == Numbers::AsWritten => Value::int(integer),
                _ => Value::Float(float),
            }
        }
        Json::String(text) => Value::text(text.as_str()),
        Json::Array(items) => {
            let depth = deeper(depth)?;
            let mut values = Vec::with_capacity(items.len());
            for item in items {
                values.push(nested(heap, item, numbers, depth)?);
            }
            heap.list(values, Element::Any)?
        }
        Json::Object(entries) => {
            let depth = deeper(depth)?;
            let mut values = BTreeMap::new();
            for (key, value) in entries {
                values.insert(Text::from(key.as_str()), nested(heap, value, numbers, depth)?);
            }
            heap.map(values, Element::Any)?
        }
    })
}
