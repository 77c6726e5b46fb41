//! Fields of a Pod that rules read: only these are kept in memory while the Pod waits.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::webhook_messages;
use crate::view::Rule;

/// Set of fields of a Pod, by their paths; an empty path is the whole Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodFields(BTreeSet<Vec<String>>);

impl PodFields {
    /// Returns the fields that expressions and webhook parameters of the rules read.
    #[must_use]
    pub fn read_by<'a>(rules: impl IntoIterator<Item = &'a Rule>) -> Self {
        let mut paths = BTreeSet::new();
        for rule in rules {
            if let Some(Ok(expression)) = &rule.expression {
                paths.extend(expression.fields_of("pod"));
            }
            paths.extend(webhook_messages::pod_fields(&rule.spec));
        }
        Self(paths)
    }

    /// Returns a copy of a Pod with these fields only.
    #[must_use]
    pub fn of(&self, pod: &Value) -> Value {
        let mut copy = Value::Object(Map::new());
        // A path sorts behind those that contain it.
        let mut last: Option<&Vec<String>> = None;
        for path in &self.0 {
            if last.is_none_or(|last| !path.starts_with(last)) {
                copy_field(pod, path, &mut copy);
                last = Some(path);
            }
        }
        copy
    }
}

/// Copies the field at `path`. Its parents are copied if they exist, so that reading a missing
/// field fails as it would on the whole Pod.
fn copy_field(from: &Value, path: &[String], into: &mut Value) {
    match (from, path.split_first()) {
        (Value::Object(fields), Some((name, rest))) => {
            if let (Some(field), Some(into)) = (fields.get(name), into.as_object_mut()) {
                let into = into.entry(name).or_insert_with(|| Value::Object(Map::new()));
                copy_field(field, rest, into);
            }
        }
        _ => *into = from.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(paths: &[&str]) -> PodFields {
        let path = |path: &&str| path.split_terminator('.').map(ToOwned::to_owned).collect();
        PodFields(paths.iter().map(path).collect())
    }

    #[test]
    fn only_the_fields_that_are_read_are_kept() {
        let pod = json!({
            "metadata": { "name": "web-1", "labels": { "app": "web" }, "annotations": { "x": "long" } },
            "spec": { "nodeName": "n", "containers": [{ "name": "web" }] },
        });
        let kept = |paths: &[&str]| fields(paths).of(&pod);
        assert_eq!(
            kept(&["metadata.labels", "spec.nodeName", "spec.missing"]),
            json!({ "metadata": { "labels": { "app": "web" } }, "spec": { "nodeName": "n" } })
        );
        assert_eq!(
            kept(&["metadata.labels", "metadata.labels.app"]),
            json!({ "metadata": { "labels": { "app": "web" } } })
        );
        assert_eq!(
            kept(&["spec.containers.name"]),
            json!({ "spec": { "containers": [{ "name": "web" }] } }),
            "a list has no fields, so all of it is kept"
        );
        assert_eq!(kept(&[""]), pod);
        assert_eq!(kept(&["status.phase"]), json!({}));
    }
}
