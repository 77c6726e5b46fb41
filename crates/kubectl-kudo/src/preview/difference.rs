//! Differences between two versions of an object, by field.

use std::collections::BTreeSet;

use instance_operator::object::{enhance::OF_RUN, secret::APPLIED};
use serde::Serialize;
use serde_json::{Map, Value};

/// Metadata fields that the API server sets.
const OF_SERVER: [&str; 5] =
    ["creationTimestamp", "generation", "managedFields", "resourceVersion", "uid"];

/// Keys that identify elements of lists, as for most lists in the API.
const KEYS: [&str; 3] = ["name", "uid", "mountPath"];

/// Change of one field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldChange {
    /// Path of the field, such as `spec.template.spec.containers[web].image`.
    pub path: String,
    /// Value before the change, as JSON or as a multi-line text; `None` if the field is added.
    pub before: Option<String>,
    /// Value after the change, in the same format; `None` if the field is removed.
    pub after: Option<String>,
}

/// Returns the changed fields, except the status and fields that change with each write.
pub(super) fn changes(before: &Value, after: &Value) -> Vec<FieldChange> {
    let mut changes = Vec::new();
    compare("", Some(&comparable(before)), Some(&comparable(after)), &mut changes);
    changes
}

fn comparable(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
        return object;
    };
    metadata.retain(|key, _| !OF_SERVER.contains(&key.as_str()));
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.retain(|key, _| !OF_RUN.contains(&key.as_str()) && key != APPLIED);
    }
    object
}

fn compare(
    path: &str,
    before: Option<&Value>,
    after: Option<&Value>,
    changes: &mut Vec<FieldChange>,
) {
    if before == after {
        return;
    }
    match (before, after) {
        (Some(Value::Object(before)), Some(Value::Object(after))) => {
            compare_maps(path, before, after, changes);
        }
        (Some(Value::Array(old)), Some(Value::Array(new))) => match (keyed(old), keyed(new)) {
            (Some(old), Some(new)) => compare_lists(path, &old, &new, changes),
            _ => changes.push(change(path, before, after)),
        },
        // An added or removed map is reported by entry, unless the map is empty.
        (None, Some(Value::Object(after))) if !after.is_empty() => {
            compare_maps(path, &Map::new(), after, changes);
        }
        (Some(Value::Object(before)), None) if !before.is_empty() => {
            compare_maps(path, before, &Map::new(), changes);
        }
        _ => changes.push(change(path, before, after)),
    }
}

fn change(path: &str, before: Option<&Value>, after: Option<&Value>) -> FieldChange {
    let path = path.strip_prefix('.').unwrap_or(path).to_owned();
    FieldChange { path, before: before.map(shown), after: after.map(shown) }
}

fn shown(value: &Value) -> String {
    match value.as_str() {
        Some(text) if text.trim_end().contains('\n') => text.to_owned(),
        Some(_) | None => value.to_string(),
    }
}

fn compare_maps(
    path: &str,
    before: &Map<String, Value>,
    after: &Map<String, Value>,
    changes: &mut Vec<FieldChange>,
) {
    let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    for key in keys {
        let is_plain = key.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-'));
        let field = if is_plain { format!("{path}.{key}") } else { format!("{path}[{key}]") };
        compare(&field, before.get(key), after.get(key), changes);
    }
}

/// Elements of a list by name.
type Keyed<'a> = Vec<(&'a str, &'a Value)>;

/// Returns the elements by the first key that all have and that is unique; `None` without such a
/// key.
fn keyed(list: &[Value]) -> Option<Keyed<'_>> {
    KEYS.iter().find_map(|key| {
        let elements: Option<Keyed<'_>> =
            list.iter().map(|element| Some((element.get(key)?.as_str()?, element))).collect();
        let elements = elements?;
        let unique: BTreeSet<&str> = elements.iter().map(|(name, _)| *name).collect();
        (unique.len() == list.len()).then_some(elements)
    })
}

fn compare_lists(path: &str, before: &Keyed, after: &Keyed, changes: &mut Vec<FieldChange>) {
    let names = before.iter().chain(after).map(|(name, _)| *name);
    let mut seen = BTreeSet::new();
    for name in names.filter(|name| seen.insert(*name)) {
        let before = element_named(name, before);
        let after = element_named(name, after);
        let element = format!("{path}[{name}]");
        match (&before, &after) {
            (Some(_), Some(_)) => compare(&element, before.as_ref(), after.as_ref(), changes),
            _ => changes.push(change(&element, before.as_ref(), after.as_ref())),
        }
    }
}

fn element_named(name: &str, list: &Keyed) -> Option<Value> {
    list.iter().find(|(known, _)| *known == name).map(|(_, element)| (*element).clone())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lines(before: &Value, after: &Value) -> Vec<String> {
        let line = |change: FieldChange| {
            let [before, after] = [change.before, change.after].map(Option::unwrap_or_default);
            format!("{}: {before} -> {after}", change.path)
        };
        changes(before, after).into_iter().map(line).collect()
    }

    #[test]
    fn each_field_that_differs_is_a_change() {
        let object = |replicas: i64, image: &str| {
            json!({
                "metadata": { "name": "a", "resourceVersion": image, "annotations": { "kudo.dev/plan": image } },
                "spec": { "replicas": replicas, "containers": [
                    { "name": "sidecar" }, { "name": "web", "image": image },
                ] },
                "status": { "replicas": replicas },
            })
        };
        assert_eq!(lines(&object(1, "a"), &object(1, "a")), Vec::<String>::new());
        let expected = ["spec.containers[web].image: \"a\" -> \"b\"", "spec.replicas: 1 -> 2"];
        assert_eq!(lines(&object(1, "a"), &object(2, "b")), expected);
    }

    #[test]
    fn entries_of_maps_and_named_elements_come_and_go() {
        let before = json!({ "data": { "a.txt": "1" }, "list": [{ "name": "x" }], "set": [1, 2] });
        let after = json!({ "data": { "b": "1\n2\n" }, "list": [{ "name": "y" }], "set": [1] });
        let expected = [
            "data[a.txt]: \"1\" -> ",
            "data.b:  -> 1\n2\n",
            "list[x]: {\"name\":\"x\"} -> ",
            "list[y]:  -> {\"name\":\"y\"}",
            "set: [1,2] -> [1]",
        ];
        assert_eq!(lines(&before, &after), expected);
        assert_eq!(lines(&json!({}), &json!({ "a": { "b": 1 } })), ["a.b:  -> 1"]);
    }
}
