//! Fields of untyped objects.

use serde_json::{Map, Value, json};

/// Returns the object in a field, which is created if missing.
pub(super) fn object<'a>(parent: &'a mut Value, field: &str) -> &'a mut Map<String, Value> {
    if !parent.is_object() {
        *parent = json!({});
    }
    let value = &mut parent[field];
    if !value.is_object() {
        *value = json!({});
    }
    match value {
        Value::Object(fields) => fields,
        _ => unreachable!("it was made an object above"),
    }
}

/// Returns the object in a field as a value; creates the object if missing.
pub(super) fn object_value<'a>(parent: &'a mut Value, field: &str) -> &'a mut Value {
    object(parent, field);
    &mut parent[field]
}

/// Sets a field that is missing or null.
pub(super) fn default(fields: &mut Map<String, Value>, field: &str, value: Value) {
    let entry = fields.entry(field).or_insert(Value::Null);
    if entry.is_null() {
        *entry = value;
    }
}

/// Returns the objects of a list.
pub(super) fn objects<'a>(
    parent: &'a mut Value,
    field: &str,
) -> impl Iterator<Item = &'a mut Map<String, Value>> {
    let items = parent.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten();
    items.filter_map(Value::as_object_mut)
}
