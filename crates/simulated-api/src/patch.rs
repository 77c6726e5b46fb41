//! JSON Patch, merge patch and strategic merge patch, with their preconditions.

use podops_client::write::Change;
use serde_json::{Value, json};

/// Applies a patch if its preconditions hold. Returns whether it was applied.
pub(crate) fn patch(object: &mut Value, change: &Change) -> bool {
    match change {
        Change::Json(operations) => {
            let mut changed = object.clone();
            let tests = operations.0.iter().all(|operation| {
                let json_patch::PatchOperation::Test(test) = operation else { return true };
                test.path.resolve(object).unwrap_or(&Value::Null) == &test.value
            });
            let is_test =
                |o: &json_patch::PatchOperation| matches!(o, json_patch::PatchOperation::Test(_));
            let rest = operations.0.iter().filter(|o| !is_test(o)).cloned().collect();
            // Like the API server, reject the whole patch if a path to remove does not exist.
            let applied =
                tests && json_patch::patch(&mut changed, &json_patch::Patch(rest)).is_ok();
            if applied {
                *object = changed;
            }
            applied
        }
        Change::Merge(body) => {
            preconditions_hold(object, body) && {
                json_patch::merge(object, body);
                true
            }
        }
        Change::Strategic(body) => {
            preconditions_hold(object, body) && {
                merge(object, body, "");
                true
            }
        }
    }
}

/// Returns whether the UID and resourceVersion match the object's, where a patch specifies them.
fn preconditions_hold(object: &Value, body: &Value) -> bool {
    ["uid", "resourceVersion"].into_iter().all(|field| {
        let wanted = &body["metadata"][field];
        wanted.is_null() || *wanted == object["metadata"][field]
    })
}

/// Strategic merge patch: lists are merged by `name`, `ownerReferences` by `uid`.
fn merge(into: &mut Value, change: &Value, field: &str) {
    match (into, change) {
        (Value::Object(into), Value::Object(change)) => {
            for (key, change) in change {
                if change.is_null() {
                    into.remove(key);
                } else {
                    merge(into.entry(key.clone()).or_insert(Value::Null), change, key);
                }
            }
        }
        (into, Value::Array(changes)) => {
            let key = if field == "ownerReferences" { "uid" } else { "name" };
            let mut items = into.as_array().cloned().unwrap_or_default();
            for change in changes {
                let known = items.iter().position(|item| item[key] == change[key]);
                match known {
                    Some(index) if change["$patch"] == "delete" => drop(items.remove(index)),
                    Some(index) => merge(&mut items[index], change, ""),
                    None if change["$patch"] == "delete" => {}
                    None => items.push(change.clone()),
                }
            }
            *into = Value::Array(items);
        }
        (into, change) if change.is_object() => {
            *into = json!({});
            merge(into, change, field);
        }
        (into, change) => *into = change.clone(),
    }
}
