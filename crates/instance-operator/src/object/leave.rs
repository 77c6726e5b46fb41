//! Fields of an applied object that are left to other clients, such as `spec.replicas` to an autoscaler.

use serde_json::Value;

use super::annotation;

/// Annotation with the paths of fields that are not sent, separated by commas.
pub const LEAVE: &str = "kudo.dev/leave";

/// Fields without which it would be another object.
const IDENTITY: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// A path that cannot be left.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("annotation {LEAVE}: {path:?} is no path of a field, such as spec.replicas")]
pub struct InvalidPath {
    path: String,
}

/// Removes the fields that the annotation of an object names.
///
/// # Errors
///
/// [`InvalidPath`] if it names something else.
pub fn remove(object: &mut Value) -> Result<(), InvalidPath> {
    let Some(paths) = annotation(object, LEAVE).map(ToOwned::to_owned) else { return Ok(()) };
    for path in paths.split(',').map(str::trim).filter(|path| !path.is_empty()) {
        let parts: Vec<&str> = path.split('.').collect();
        let [parents @ .., field] = parts.as_slice() else { continue };
        let is_field = |part: &&str| !part.is_empty() && !part.contains(['[', ']', '/']);
        let is_content = parents.first().is_some_and(|first| !IDENTITY.contains(first));
        if !is_content || !parts.iter().all(is_field) {
            return Err(InvalidPath { path: path.to_owned() });
        }
        let parent = object.pointer_mut(&format!("/{}", parents.join("/")));
        if let Some(fields) = parent.and_then(Value::as_object_mut) {
            fields.remove(*field);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn left(paths: &str) -> Result<Value, String> {
        let mut object = json!({
            "metadata": { "name": "a", "annotations": { LEAVE: paths } },
            "spec": { "replicas": 2, "template": { "spec": { "x": 1, "y": 2 } } },
        });
        remove(&mut object).map_err(|error| error.to_string())?;
        Ok(object["spec"].take())
    }

    #[test]
    fn named_fields_are_removed() {
        let expected = json!({ "template": { "spec": { "y": 2 } } });
        assert_eq!(left("spec.replicas, spec.template.spec.x").unwrap(), expected);
        let all = json!({ "replicas": 2, "template": { "spec": { "x": 1, "y": 2 } } });
        assert_eq!(left("spec.gone, spec.gone.x,").unwrap(), all);
    }

    #[test]
    fn other_paths_are_rejected() {
        for path in ["metadata.name", "spec", "spec.containers[0].image", "spec..x", "kind"] {
            assert!(left(path).unwrap_err().contains("is no path of a field"), "{path}");
        }
    }
}
