//! Which objects outlive the templates and the Instance that applied them.

use serde_json::Value;

use super::{ObjectType, annotation};

/// Annotation by which a template keeps its object, or permits the deletion of an object with data.
pub const PRUNE: &str = "kudo.dev/prune";
/// Annotation that permits the takeover of an object that another client created and no controller
/// owns.
pub const ADOPT: &str = "kudo.dev/adopt";
/// Annotation by which a Helm chart keeps its object, with the value `keep`.
const HELM_POLICY: &str = "helm.sh/resource-policy";

/// Kinds that contain data or definitions of other objects, by group.
const WITH_DATA: [(&str, &str); 4] = [
    ("", "PersistentVolumeClaim"),
    ("", "Namespace"),
    ("apiextensions.k8s.io", "CustomResourceDefinition"),
    ("kudo.dev", "Instance"),
];

/// Returns whether only a task or a user deletes an object that has left the templates: its template
/// forbids the deletion, or the object contains data and its template does not permit it.
#[must_use]
pub fn is_kept(object_type: &ObjectType, object: &Value) -> bool {
    is_kept_by_template(object).unwrap_or_else(|| has_data(object_type))
}

/// Returns whether the object outlives its Instance, and therefore has no owner: its template
/// forbids the deletion, or the object has data that existed before the Instance.
#[must_use]
pub fn outlives_instance(object_type: &ObjectType, object: &Value) -> bool {
    is_kept_by_template(object).unwrap_or_else(|| {
        let has_own_data = has_data(object_type) || object_type.is("", "Secret");
        annotation(object, ADOPT) == Some("true") && has_own_data
    })
}

/// Returns whether the template keeps its object; `None` if it has no annotation for that.
fn is_kept_by_template(object: &Value) -> Option<bool> {
    let is_kept_by_helm = annotation(object, HELM_POLICY) == Some("keep");
    let pruning = annotation(object, PRUNE).map(|prune| prune != "true");
    pruning.or(is_kept_by_helm.then_some(true))
}

fn has_data(object_type: &ObjectType) -> bool {
    WITH_DATA.iter().any(|(group, kind)| object_type.is(group, kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn annotations_and_data_decide_on_the_deletion() {
        let case = |kind: &str, annotations: Value| {
            let kind = ObjectType { api_version: "v1".to_owned(), kind: kind.to_owned() };
            let object = json!({ "metadata": { "annotations": annotations } });
            (is_kept(&kind, &object), outlives_instance(&kind, &object))
        };
        assert_eq!(case("ConfigMap", json!({})), (false, false));
        assert_eq!(case("ConfigMap", json!({ PRUNE: "false" })), (true, true));
        assert_eq!(case("ConfigMap", json!({ HELM_POLICY: "keep" })), (true, true));
        assert_eq!(
            case("ConfigMap", json!({ HELM_POLICY: "keep", PRUNE: "true" })),
            (false, false)
        );
        assert_eq!(case("ConfigMap", json!({ ADOPT: "true" })), (false, false));
        let claim = "PersistentVolumeClaim";
        assert_eq!(case(claim, json!({})), (true, false), "it was created for the Instance");
        assert_eq!(case(claim, json!({ ADOPT: "true" })), (true, true));
        assert_eq!(case(claim, json!({ ADOPT: "true", PRUNE: "true" })), (false, false));
        assert_eq!(case("Secret", json!({ ADOPT: "true" })), (false, true));
    }
}
