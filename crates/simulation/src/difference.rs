//! Which fields of a Pod template differ.

use serde_json::Value;

/// Returns the fields that differ, such as `spec.containers[web].image`, in the order of their
/// paths.
pub(crate) fn changed_fields(old: &Value, new: &Value) -> Vec<String> {
    let mut fields = Vec::new();
    compare(old, new, "", &mut fields);
    fields
}

fn compare(old: &Value, new: &Value, path: &str, fields: &mut Vec<String>) {
    match (old, new) {
        _ if old == new => {}
        (Value::Object(a), Value::Object(b)) => {
            let mut keys: Vec<&String> = a.keys().chain(b.keys()).collect();
            keys.sort_unstable();
            keys.dedup();
            for key in keys {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                compare(&old[key], &new[key], &path, fields);
            }
        }
        (Value::Array(a), Value::Array(b)) if has_names(a) && has_names(b) => {
            let mut names: Vec<&str> = a.iter().chain(b).filter_map(name).collect();
            names.sort_unstable();
            names.dedup();
            let find = |items: &[Value], wanted: &str| {
                items.iter().find(|item| name(item) == Some(wanted)).cloned().unwrap_or_default()
            };
            for wanted in names {
                let old = find(a, wanted);
                let new = find(b, wanted);
                compare(&old, &new, &format!("{path}[{wanted}]"), fields);
            }
        }
        _ => fields.push(path.to_owned()),
    }
}

fn has_names(items: &[Value]) -> bool {
    items.iter().all(|item| name(item).is_some())
}

fn name(item: &Value) -> Option<&str> {
    item["name"].as_str()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_named_by_the_names_of_containers_and_variables() {
        let template = |image: &str, value: &str| {
            json!({ "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [
                { "name": "web", "image": image, "env": [{ "name": "A", "value": value }] },
                { "name": "side", "image": "side:1" },
            ] } })
        };
        let fields = changed_fields(&template("web:1", "1"), &template("web:2", "2"));
        assert_eq!(fields, ["spec.containers[web].env[A].value", "spec.containers[web].image"]);
        let mut removed = template("web:1", "1");
        removed["spec"]["containers"].as_array_mut().unwrap().pop();
        let fields = changed_fields(&template("web:1", "1"), &removed);
        assert_eq!(fields, ["spec.containers[side]"]);
    }
}
