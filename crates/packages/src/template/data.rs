//! What a template sees.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::{
    error::Failure,
    text::Text,
    value::{Element, Heap, Value, deeper},
};

/// The value of `.` at the start of a template. Numbers are Go's `float64`.
#[derive(Clone, Debug, Default)]
pub struct Data {
    /// Entries such as `Name`, `Namespace` and `PlanName`.
    pub names: BTreeMap<String, String>,
    /// `Params`.
    pub parameters: BTreeMap<String, Json>,
    /// `Pipes`: the names of the artifacts of Pipe tasks.
    pub pipes: Option<BTreeMap<String, String>>,
}

impl Data {
    /// Puts the data on the heap.
    pub(super) fn on(&self, heap: &mut Heap) -> Result<Value, Failure> {
        let mut root = texts(&self.names);
        let mut parameters = BTreeMap::new();
        for (name, value) in &self.parameters {
            parameters.insert(Text::from(name.as_str()), json(heap, value, 0)?);
        }
        root.insert("Params".into(), heap.map(parameters, Element::Any)?);
        if let Some(pipes) = &self.pipes {
            root.insert("Pipes".into(), heap.map(texts(pipes), Element::Text)?);
        }
        heap.map(root, Element::Any)
    }
}

fn texts(entries: &BTreeMap<String, String>) -> BTreeMap<Text, Value> {
    let entry =
        |(key, value): (&String, &String)| (Text::from(key.as_str()), Value::text(value.as_str()));
    entries.iter().map(entry).collect()
}

fn json(heap: &mut Heap, value: &Json, depth: usize) -> Result<Value, Failure> {
    Ok(match value {
        Json::Null => Value::Nil,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        Json::String(text) => Value::text(text.as_str()),
        Json::Array(items) => {
            let depth = deeper(depth)?;
            let mut values = Vec::with_capacity(items.len());
            for item in items {
                values.push(json(heap, item, depth)?);
            }
            heap.list(values, Element::Any)?
        }
        Json::Object(entries) => {
            let depth = deeper(depth)?;
            let mut values = BTreeMap::new();
            for (key, value) in entries {
                values.insert(Text::from(key.as_str()), json(heap, value, depth)?);
            }
            heap.map(values, Element::Any)?
        }
    })
}
