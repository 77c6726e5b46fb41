//! Compares Pod templates: equality, and how a Pod is updated from one to the other.

use std::collections::{BTreeMap, BTreeSet};

use podops_api::{template::PodTemplate, well_known};
use serde_json::{Map, Value};

use super::{metadata, resources};
use crate::compat::quantity;

/// Normalizes a template so that equivalent templates are equal: no empty values, and quantities as
/// numbers.
///
/// Kuperator stores `creationTimestamp: null`, `resources: {}` and `1Gi` for `1024Mi`.
#[must_use]
pub fn normal(value: &Value) -> Value {
    normalize(value, false).unwrap_or(Value::Null)
}

fn normalize(value: &Value, is_quantity: bool) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::Object(fields) => {
            let fields: Map<String, Value> = fields
                .iter()
                .filter(|(key, _)| *key != "$patch")
                .filter_map(|(key, value)| {
                    let quantities = matches!(key.as_str(), "limits" | "requests" | "sizeLimit");
                    let below = value.is_object() && quantities;
                    let value = if below
                        || (is_quantity && !value.is_object())
                        || (quantities && value.is_string())
                    {
                        normalize(value, true)
                    } else {
                        normalize(value, false)
                    };
                    Some((key.clone(), value?))
                })
                .collect();
            (!fields.is_empty()).then_some(Value::Object(fields))
        }
        Value::Array(items) => {
            let items: Vec<Value> =
                items.iter().map(|v| normalize(v, false).unwrap_or(Value::Null)).collect();
            (!items.is_empty()).then_some(Value::Array(items))
        }
        Value::String(text) if is_quantity => Some(
            quantity::value(text).map_or_else(|| value.clone(), |n| Value::String(format!("{n}n"))),
        ),
        Value::Number(number) if is_quantity => Some(
            quantity::value(&number.to_string())
                .map_or_else(|| value.clone(), |n| Value::String(format!("{n}n"))),
        ),
        Value::String(text) if text.is_empty() => None,
        Value::Bool(_) | Value::Number(_) | Value::String(_) => Some(value.clone()),
    }
}

/// How a Pod is updated from one template to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateMethod {
    /// Only annotations change, which no container reads; nothing restarts.
    Annotations,
    /// Labels change, so Services and budgets may not select the Pod any more; nothing restarts.
    Labels,
    /// Images and resources change in place, or containers restart.
    InPlace,
    /// The Pod is deleted and recreated.
    Recreate,
}

/// Returns the least disruptive update method from one template to another; resources change in
/// place only if `can_resize`.
#[must_use]
pub fn method(from: &PodTemplate, to: &PodTemplate, can_resize: bool) -> UpdateMethod {
    let mut old = normal_spec(from);
    let mut new = normal_spec(to);
    let readers = metadata::readers(from, to);
    if readers.init || has_other(from, to, well_known::DEPENDENCIES_HASH) && has_init(to) {
        return UpdateMethod::Recreate;
    }
    if old == new {
        return if restarts(from, to) || !readers.containers.is_empty() {
            UpdateMethod::InPlace
        } else if labels(from) != labels(to) {
            UpdateMethod::Labels
        } else {
            UpdateMethod::Annotations
        };
    }
    let resizes = resources::differ(from, to);
    if resizes && !(can_resize && resources::can_be_resized(from, to)) {
        return UpdateMethod::Recreate;
    }
    for template in [&mut old, &mut new] {
        for container in template["containers"].as_array_mut().into_iter().flatten() {
            strip(container);
        }
    }
    if normal(&old) == normal(&new) { UpdateMethod::InPlace } else { UpdateMethod::Recreate }
}

/// Returns the labels of a template, without those that only name its decorations.
fn labels(template: &PodTemplate) -> BTreeMap<String, String> {
    let mut labels = template.labels();
    labels.retain(|key, _| !key.starts_with(well_known::DECORATION_LABEL_PREFIX));
    labels
}

fn normal_spec(template: &PodTemplate) -> Value {
    normal(template.0.get("spec").unwrap_or(&Value::Null))
}

/// Removes the fields that can change in place from a container.
fn strip(container: &mut Value) {
    let Some(fields) = container.as_object_mut() else { return };
    if fields.get("image").is_some() {
        fields.insert("image".to_owned(), Value::Bool(true));
    }
    for list in ["requests", "limits"] {
        let amounts = fields.get_mut("resources").and_then(|r| r.get_mut(list)?.as_object_mut());
        if let Some(amount) = amounts {
            amount.retain(|name, _| !matches!(name.as_str(), "cpu" | "memory"));
        }
    }
}

/// Annotations of which another value restarts all containers.
const RESTARTING: [&str; 2] = [well_known::RESTARTED_AT, well_known::DEPENDENCIES_HASH];

/// Returns whether all containers restart although their images may not change: an annotation of
/// [`RESTARTING`] has another value. Its removal restarts nothing.
fn restarts(from: &PodTemplate, to: &PodTemplate) -> bool {
    RESTARTING.iter().any(|key| has_other(from, to, key))
}

/// Returns whether the new template has the annotation, with another value.
fn has_other(from: &PodTemplate, to: &PodTemplate, annotation: &str) -> bool {
    let new = to.annotations().remove(annotation);
    new.is_some() && new != from.annotations().remove(annotation)
}

/// Returns whether the Pods have init containers, which may read the changed ConfigMaps and Secrets
/// and never run again.
fn has_init(template: &PodTemplate) -> bool {
    let list = template.0.get("spec").and_then(|spec| spec["initContainers"].as_array());
    list.is_some_and(|containers| !containers.is_empty())
}

/// Returns the containers that an update in place restarts although their images do not change:
/// all of them, or those that read a label or annotation that changes.
#[must_use]
pub fn restarted(from: &PodTemplate, to: &PodTemplate) -> BTreeSet<String> {
    let restarts_all = restarts(from, to);
    let readers = metadata::readers(from, to).containers;
    let old = images(from);
    let unchanged = images(to).into_iter().filter(|(name, image)| old.get(name) == Some(image));
    let names = unchanged.map(|(name, _)| name);
    names.filter(|name| restarts_all || readers.contains(name)).collect()
}

/// Returns the images of a template's containers, by container name.
#[must_use]
pub fn images(template: &PodTemplate) -> BTreeMap<String, String> {
    let containers = template.0.get("spec").and_then(|s| s["containers"].as_array());
    let named = containers.into_iter().flatten().filter_map(|c| {
        Some((c["name"].as_str()?.to_owned(), c["image"].as_str().unwrap_or_default().to_owned()))
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn template(value: Value) -> PodTemplate {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn templates_stored_by_kuperator_equal_the_originals() {
        let written = json!({"spec": {"containers": [{"name": "a", "resources": {"limits": {"memory": "1024Mi", "cpu": "0.5"}}}]}});
        let stored = json!({"$patch": "replace", "metadata": {"creationTimestamp": null}, "spec": {"containers": [
            {"name": "a", "resources": {"limits": {"memory": "1Gi", "cpu": "500m"}}}]}});
        assert_eq!(normal(&written), normal(&stored));
    }

    #[test]
    fn only_images_and_metadata_change_in_place() {
        let from = template(json!({"spec": {"containers": [{"name": "a", "image": "v1"}]}}));
        let to = |value| method(&from, &template(value), true);
        assert_eq!(
            to(
                json!({"metadata": {"labels": {"x": "y"}}, "spec": {"containers": [{"name": "a", "image": "v1"}]}})
            ),
            UpdateMethod::Labels
        );
        assert_eq!(
            to(
                json!({"metadata": {"annotations": {"x": "y"}}, "spec": {"containers": [{"name": "a", "image": "v1"}]}})
            ),
            UpdateMethod::Annotations
        );
        let decorated = json!({(format!("{}a", well_known::DECORATION_LABEL_PREFIX)): "a-1"});
        assert_eq!(
            to(
                json!({"metadata": {"labels": decorated}, "spec": {"containers": [{"name": "a", "image": "v1"}]}})
            ),
            UpdateMethod::Annotations
        );
        assert_eq!(
            to(json!({"spec": {"containers": [{"name": "a", "image": "v2"}]}})),
            UpdateMethod::InPlace
        );
        assert_eq!(
            to(
                json!({"spec": {"containers": [{"name": "a", "image": "v2", "env": [{"name": "x"}]}]}})
            ),
            UpdateMethod::Recreate
        );
        assert_eq!(
            to(json!({"spec": {"containers": [{"name": "b", "image": "v2"}]}})),
            UpdateMethod::Recreate
        );
        assert_eq!(
            to(
                json!({"spec": {"containers": [{"name": "a", "image": "v1"}, {"name": "b", "image": "v1"}]}})
            ),
            UpdateMethod::Recreate
        );
    }

    #[test]
    fn another_restart_annotation_restarts_containers_in_place() {
        let at = |time: &str, image: &str| {
            template(json!({"metadata": {"annotations": {(well_known::RESTARTED_AT): time}},
                "spec": {"containers": [{"name": "a", "image": image}, {"name": "b", "image": "b"}]}}))
        };
        let none = template(json!({"spec": at("1", "v1").0["spec"]}));
        let names = |from: &PodTemplate, to: &PodTemplate| {
            restarted(from, to).into_iter().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(method(&none, &at("1", "v1"), true), UpdateMethod::InPlace);
        assert_eq!(names(&none, &at("1", "v1")), "a b");
        assert_eq!(names(&at("1", "v1"), &at("2", "v2")), "b");
        assert_eq!(method(&at("1", "v1"), &at("1", "v1"), true), UpdateMethod::Annotations);
        assert_eq!(method(&at("1", "v1"), &none, true), UpdateMethod::Annotations);
        assert_eq!(names(&at("1", "v1"), &none), "");
        let mut hashed = none.clone();
        let hash = json!({"annotations": {(well_known::DEPENDENCIES_HASH): "1"}});
        hashed.0.insert("metadata".to_owned(), hash);
        assert_eq!(names(&none, &hashed), "a b");
        assert_eq!(method(&none, &hashed, true), UpdateMethod::InPlace);
        let init = json!([{"name": "i", "image": "i"}]);
        let mut before = none.clone();
        for template in [&mut before, &mut hashed] {
            template.0["spec"]["initContainers"] = init.clone();
        }
        assert_eq!(method(&before, &hashed, true), UpdateMethod::Recreate);
    }

    #[test]
    fn cpu_and_memory_change_in_place_if_resize_is_supported() {
        let requests = |name: &str, amount: &str| {
            template(json!({"spec": {"containers": [
                {"name": "a", "image": "v1", "resources": {"requests": {"cpu": "1", name: amount}}}]}}))
        };
        let from = requests("cpu", "1");
        assert_eq!(method(&from, &requests("cpu", "2"), true), UpdateMethod::InPlace);
        assert_eq!(method(&from, &requests("cpu", "2"), false), UpdateMethod::Recreate);
        assert_eq!(method(&from, &requests("example.com/gpu", "1"), true), UpdateMethod::Recreate);
        assert_eq!(method(&from, &requests("cpu", "1000m"), false), UpdateMethod::Annotations);
    }
}
