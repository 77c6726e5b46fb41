//! Manifests that `init` applies: those of the kustomize overlay `packages`.

use std::collections::BTreeSet;

use instance_operator::object::{ObjectId, ObjectType, map_at};
use serde_json::{Value, json};

/// Syntax error in a manifest; a test rules it out.
pub type Invalid = serde_saphyr::Error;

const DEFINITIONS: [&str; 3] = [
    include_str!("../../../crds/kudo/kudo.dev_operators.yaml"),
    include_str!("../../../crds/kudo/kudo.dev_operatorversions.yaml"),
    include_str!("../../../crds/kudo/kudo.dev_instances.yaml"),
];
const NAMESPACE: &str = include_str!("../../../deploy/namespace/namespace.yaml");
const ACCESS: &str = include_str!("../../../deploy/instance-operator/rbac.yaml");
const ADMIN: &str =
    include_str!("../../../deploy/components/package-admin/cluster-role-binding.yaml");
const PEOPLE: &str = include_str!("../../../deploy/aggregated-roles/packages/roles.yaml");
const ADMISSION: &str =
    include_str!("../../../deploy/components/instance-admission/instance-admission.yaml");
const CONTROLLER: [&str; 3] = [
    include_str!("../../../deploy/instance-operator/deployment.yaml"),
    include_str!("../../../deploy/components/network-policy/network-policy.yaml"),
    include_str!("../../../deploy/components/pod-disruption-budget/pod-disruption-budget.yaml"),
];

/// Name of the Deployment, and of its image in the manifest.
pub const NAME: &str = "instance-operator";
/// Namespace of the operator.
pub const NAMESPACE_NAME: &str = "podops-system";
/// Label of all Podops objects, which kustomize adds.
pub const PART_OF: (&str, &str) = ("app.kubernetes.io/part-of", "podops");

/// Objects that are installed together.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Name of the part in KUDO's output.
    pub name: &'static str,
    /// Objects, in the order of installation.
    pub objects: Vec<Value>,
}

/// Returns the CustomResourceDefinitions of KUDO.
///
/// # Errors
///
/// [`Invalid`] if a manifest is not YAML.
pub fn definitions() -> Result<Part, Invalid> {
    Ok(Part { name: "crds", objects: objects(&DEFINITIONS)? })
}

/// Returns the parts of instance-operator with an image, in the order of installation.
///
/// # Errors
///
/// [`Invalid`] if a manifest is not YAML.
pub fn operator(image: &str, is_admin: bool) -> Result<Vec<Part>, Invalid> {
    let mut access = objects(&[ACCESS])?;
    let mut people = objects(&[PEOPLE])?;
    if is_admin {
        access.extend(objects(&[ADMIN])?);
        people.retain(|role| ObjectId::of(role) != editors());
    }
    access.extend(people);
    let mut controller = objects(&CONTROLLER)?;
    for object in &mut controller {
        if let Some(container) = object.pointer_mut("/spec/template/spec/containers/0") {
            container["image"] = json!(image);
        }
    }
    let mut parts = vec![
        Part { name: "namespace", objects: objects(&[NAMESPACE])? },
        Part { name: "service account", objects: access },
        Part { name: "admission policy", objects: objects(&[ADMISSION])? },
        Part { name: "kudo controller", objects: controller },
    ];
    for object in parts.iter_mut().flat_map(|part| &mut part.objects) {
        let (key, value) = PART_OF;
        if let Some(labels) = map_at(object, &["metadata", "labels"]) {
            labels.insert(key.to_owned(), json!(value));
        }
    }
    Ok(parts)
}

/// Role of those who may edit a namespace. It must not exist where the operator has all rights,
/// because their Instances would have them too.
#[must_use]
pub fn editors() -> ObjectId {
    object_id("rbac.authorization.k8s.io/v1", "ClusterRole", "", "podops-packages-edit")
}

/// Returns the objects of KUDO that must be removed. A manager that does not run blocks every write
/// of Instances by its webhook; a running manager would conflict with instance-operator.
/// `namespaces` are those of the manager.
#[must_use]
pub fn of_kudo(namespaces: &BTreeSet<String>) -> Vec<ObjectId> {
    let webhook = "kudo-manager-instance-admission-webhook-config";
    let mut ids = vec![
        object_id("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", "", webhook),
        object_id(
            "rbac.authorization.k8s.io/v1",
            "ClusterRoleBinding",
            "",
            "kudo-manager-rolebinding",
        ),
    ];
    for namespace in namespaces {
        ids.push(object_id("apps/v1", "StatefulSet", namespace, "kudo-controller-manager"));
        ids.push(object_id("v1", "Service", namespace, "kudo-controller-manager-service"));
    }
    ids
}

fn object_id(api_version: &str, kind: &str, namespace: &str, name: &str) -> ObjectId {
    ObjectId {
        object_type: ObjectType { api_version: api_version.to_owned(), kind: kind.to_owned() },
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

fn objects(texts: &[&str]) -> Result<Vec<Value>, Invalid> {
    let documents = texts.iter().flat_map(|text| text.split("\n---\n"));
    documents.map(serde_saphyr::from_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_manifest_is_an_object_of_its_kind() {
        let parts = operator("registry/image:1", true).unwrap();
        let ids: Vec<String> = std::iter::once(definitions().unwrap())
            .chain(parts.clone())
            .flat_map(|part| part.objects)
            .map(|object| ObjectId::of(&object).to_string())
            .collect();
        let expected = [
            "CustomResourceDefinition operators.kudo.dev",
            "CustomResourceDefinition operatorversions.kudo.dev",
            "CustomResourceDefinition instances.kudo.dev",
            "Namespace podops-system",
            "ServiceAccount podops-system/instance-operator",
            "ClusterRole podops-instance-operator",
            "ClusterRoleBinding podops-instance-operator",
            "Role podops-system/instance-operator",
            "RoleBinding podops-system/instance-operator",
            "ClusterRoleBinding podops-package-admin",
            "ClusterRole podops-packages-view",
            "ValidatingAdmissionPolicy podops-instance-admission",
            "ValidatingAdmissionPolicyBinding podops-instance-admission",
            "Deployment podops-system/instance-operator",
            "Service podops-system/instance-operator",
            "NetworkPolicy podops-system/podops",
            "PodDisruptionBudget podops-system/podops",
        ];
        assert_eq!(ids, expected);
        let deployment = &parts[3].objects[0];
        assert_eq!(
            deployment["spec"]["template"]["spec"]["containers"][0]["image"],
            "registry/image:1"
        );
        let access = &operator("a", false).unwrap()[1].objects;
        assert_eq!(access.len(), 7);
        assert!(access.iter().any(|role| ObjectId::of(role) == editors()));
    }
}
