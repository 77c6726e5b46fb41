//! Annotations of objects in templates: conditions of health, and fields left to other clients,
//! such as `spec.replicas` to an autoscaler.

use podops_expressions::{Expression, OBJECT};
use serde_json::Value;

/// Annotation with the expression that is true if the object is healthy.
pub const HEALTHY_WHEN: &str = "kudo.dev/healthy-when";
/// Annotation with the expression that is true if the object can never become healthy.
pub const FAILED_WHEN: &str = "kudo.dev/failed-when";
/// Annotation with the comma-separated paths of fields that are not sent.
pub const LEAVE: &str = "kudo.dev/leave";

/// Fields that identify the object.
const IDENTITY: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Returns the error of an object's annotations; `None` if the annotations are valid.
#[must_use]
pub fn invalid(object: &Value) -> Option<String> {
    let mut expressions = [HEALTHY_WHEN, FAILED_WHEN].into_iter();
    expressions.find_map(|key| invalid_expression(object, key)).or_else(|| invalid_path(object))
}

fn invalid_expression(object: &Value, key: &str) -> Option<String> {
    let error = Expression::compile(annotation(object, key)?, &OBJECT).err()?;
    Some(format!("annotation {key}: {error}"))
}

fn invalid_path(object: &Value) -> Option<String> {
    let path = left_paths(object).find(|path| !is_content(path))?.join(".");
    Some(format!("annotation {LEAVE}: {path:?} is no path of a field, such as spec.replicas"))
}

/// Removes the fields in the annotation [`LEAVE`] of an object. Paths that [`invalid`] reports are
/// skipped.
pub fn remove_left_fields(object: &mut Value) {
    let paths = left_paths(object).filter(|path| is_content(path));
    let paths: Vec<(String, String)> = paths
        .filter_map(|path| {
            let (field, parents) = path.split_last()?;
            Some((format!("/{}", parents.join("/")), (*field).to_owned()))
        })
        .collect();
    for (parent, field) in paths {
        if let Some(fields) = object.pointer_mut(&parent).and_then(Value::as_object_mut) {
            fields.remove(&field);
        }
    }
}

/// Returns the parts of each path in the annotation [`LEAVE`] of an object.
fn left_paths(object: &Value) -> impl Iterator<Item = Vec<&str>> {
    let paths = annotation(object, LEAVE).unwrap_or_default().split(',').map(str::trim);
    paths.filter(|path| !path.is_empty()).map(|path| path.split('.').collect())
}

/// Returns true if the path is a field of the object's content.
fn is_content(path: &[&str]) -> bool {
    path.len() > 1
        && !IDENTITY.contains(&path[0])
        && path.iter().all(|part| !part.is_empty() && !part.contains(['[', ']', '/']))
}

/// Returns an annotation; `None` if the annotation is missing.
#[must_use]
pub fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object.pointer("/metadata/annotations")?.get(key)?.as_str()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn annotated(key: &str, value: &str) -> Value {
        json!({
            "metadata": { "name": "a", "annotations": { key: value } },
            "spec": { "replicas": 2, "template": { "spec": { "x": 1, "y": 2 } } },
        })
    }

    fn left(paths: &str) -> Value {
        let mut object = annotated(LEAVE, paths);
        assert_eq!(invalid(&object), None);
        remove_left_fields(&mut object);
        object["spec"].take()
    }

    #[test]
    fn named_fields_are_removed() {
        let expected = json!({ "template": { "spec": { "y": 2 } } });
        assert_eq!(left("spec.replicas, spec.template.spec.x"), expected);
        let all = json!({ "replicas": 2, "template": { "spec": { "x": 1, "y": 2 } } });
        assert_eq!(left("spec.gone, spec.gone.x,"), all);
    }

    #[test]
    fn other_paths_are_rejected() {
        for path in ["metadata.name", "spec", "spec.containers[0].image", "spec..x", "kind"] {
            let mut object = annotated(LEAVE, path);
            let error = format!(
                "annotation kudo.dev/leave: {path:?} is no path of a field, such as spec.replicas"
            );
            assert_eq!(invalid(&object), Some(error));
            let before = object.clone();
            remove_left_fields(&mut object);
            assert_eq!(object, before);
        }
    }

    #[test]
    fn expressions_read_the_object_only() {
        let error = |source: &str| invalid(&annotated(HEALTHY_WHEN, source));
        let unknown = "annotation kudo.dev/healthy-when: unknown variable pod; available: self";
        assert_eq!(error("pod.status.x == 1").unwrap(), unknown);
        let field = "annotation kudo.dev/healthy-when: unknown field self.metadata.lables";
        assert_eq!(error("self.metadata.lables.a == ''").unwrap(), field);
        assert_eq!(error("self.status.phase == 'Ready' || self.data.a == 'b'"), None);
        let failed = invalid(&annotated(FAILED_WHEN, "self.status.phase ==")).unwrap();
        assert!(failed.starts_with("annotation kudo.dev/failed-when: "), "{failed}");
    }
}
