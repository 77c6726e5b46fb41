//! The installed objects of Podops, and the objects that depend on them. Pure.

use std::fmt;

use jiff::Timestamp;
use serde_json::Value;

/// Where objects of a kind are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// In namespaces.
    Namespaces,
    /// In the namespace of the operators; others are not read.
    OperatorNamespace,
    /// In no namespace.
    Cluster,
}

/// Kind of objects.
#[derive(Debug, PartialEq, Eq)]
pub struct Kind {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// API version.
    pub version: &'static str,
    /// Name of the kind.
    pub name: &'static str,
    /// Plural in paths.
    pub plural: &'static str,
    /// Where the objects are.
    pub scope: Scope,
}

const fn kind(
    group: &'static str,
    version: &'static str,
    name: &'static str,
    plural: &'static str,
    scope: Scope,
) -> Kind {
    Kind { group, version, name, plural, scope }
}

const ADMISSION: &str = "admissionregistration.k8s.io";
const RBAC: &str = "rbac.authorization.k8s.io";
const GROUP: &str = podops_api::GROUP;
const VERSION: &str = podops_api::VERSION;

/// All kinds that are read.
#[rustfmt::skip]
static ALL: [Kind; 33] = [
    kind(GROUP, VERSION, "CollaSet", "collasets", Scope::Namespaces),
    kind(GROUP, VERSION, "PodDecoration", "poddecorations", Scope::Namespaces),
    kind(GROUP, VERSION, "OperationJob", "operationjobs", Scope::Namespaces),
    kind(GROUP, VERSION, "PodTransitionRule", "podtransitionrules", Scope::Namespaces),
    kind(GROUP, VERSION, "ResourceContext", "resourcecontexts", Scope::Namespaces),
    kind("kudo.dev", "v1beta1", "Instance", "instances", Scope::Namespaces),
    kind("", "v1", "Pod", "pods", Scope::Namespaces),
    kind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", Scope::Namespaces),
    kind("", "v1", "Service", "services", Scope::Namespaces),
    kind("apps", "v1", "ControllerRevision", "controllerrevisions", Scope::Namespaces),
    kind("apps", "v1", "Deployment", "deployments", Scope::Namespaces),
    kind("apps", "v1", "StatefulSet", "statefulsets", Scope::Namespaces),
    kind("apps", "v1", "DaemonSet", "daemonsets", Scope::Namespaces),
    kind(ADMISSION, "v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", Scope::Cluster),
    kind(ADMISSION, "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", Scope::Cluster),
    kind(ADMISSION, "v1", "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", Scope::Cluster),
    kind(ADMISSION, "v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies", Scope::Cluster),
    kind(ADMISSION, "v1", "MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings", Scope::Cluster),
    kind(ADMISSION, "v1", "MutatingAdmissionPolicy", "mutatingadmissionpolicies", Scope::Cluster),
    kind(RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings", Scope::Cluster),
    kind(RBAC, "v1", "ClusterRole", "clusterroles", Scope::Cluster),
    kind(RBAC, "v1", "RoleBinding", "rolebindings", Scope::Namespaces),
    kind(RBAC, "v1", "Role", "roles", Scope::Namespaces),
    kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", Scope::OperatorNamespace),
    kind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", Scope::OperatorNamespace),
    kind("coordination.k8s.io", "v1", "Lease", "leases", Scope::OperatorNamespace),
    kind("", "v1", "ServiceAccount", "serviceaccounts", Scope::OperatorNamespace),
    kind("", "v1", "ConfigMap", "configmaps", Scope::OperatorNamespace),
    kind("", "v1", "Secret", "secrets", Scope::OperatorNamespace),
    kind("", "v1", "Namespace", "namespaces", Scope::Cluster),
    kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", Scope::Cluster),
    kind("monitoring.coreos.com", "v1", "PodMonitor", "podmonitors", Scope::OperatorNamespace),
    kind("monitoring.coreos.com", "v1", "PrometheusRule", "prometheusrules", Scope::OperatorNamespace),
];

/// Oldest supported minor version of Kubernetes.
pub(crate) const OLDEST_MINOR: u32 = 33;
/// First minor version of Kubernetes that serves MutatingAdmissionPolicies, which `install.yaml`
/// has.
pub(crate) const POLICIES_SINCE: u32 = 36;

/// Operators of Podops.
pub(crate) const OPERATORS: [&str; 6] = [
    "collaset-operator",
    "consist-operator",
    "instance-operator",
    "lifecycle-operator",
    "operationjob-operator",
    "transition-rule-operator",
];

/// Kinds of the API group of Podops.
pub(crate) const CUSTOM: [&str; 5] =
    ["CollaSet", "PodDecoration", "OperationJob", "PodTransitionRule", "ResourceContext"];

/// Label of the objects of Podops.
const PART_OF: &str = "app.kubernetes.io/part-of";
/// Value of [`PART_OF`].
const PODOPS: &str = "podops";

/// All kinds that are read.
pub fn kinds() -> impl Iterator<Item = &'static Kind> {
    ALL.iter()
}

/// Returns whether a CustomResourceDefinition defines one of [`CUSTOM`].
pub(crate) fn defines_custom(definition: &Object) -> bool {
    let is_definition = definition.kind.name == "CustomResourceDefinition";
    is_definition && custom_definitions().any(|name| name == definition.name)
}

/// Names of the CustomResourceDefinitions of [`CUSTOM`].
pub(crate) fn custom_definitions() -> impl Iterator<Item = String> {
    let custom = ALL.iter().filter(|kind| CUSTOM.contains(&kind.name));
    custom.map(|kind| format!("{}.{GROUP}", kind.plural))
}

/// Items of a list in an object; none if there is no list.
pub(crate) fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// Returns whether the object runs Kuperator, or calls its webhooks.
pub(crate) fn is_of_kuperator(object: &Object) -> bool {
    match object.kind.name {
        "Deployment" => {
            let containers = &object.value["spec"]["template"]["spec"]["containers"];
            let mut images = items(containers).filter_map(|c| c["image"].as_str());
            images.any(|image| image.contains("kuperator"))
        }
        "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration" => {
            let names = items(&object.value["webhooks"]).filter_map(|hook| hook["name"].as_str());
            !object.is_part() && names.into_iter().any(|name| name.ends_with("kusionstack.io"))
        }
        _ => false,
    }
}

/// Objects and operators of Podops in a cluster.
#[derive(Clone, Debug, Default)]
pub struct Installation {
    /// Objects of all kinds in [`kinds`] that are of Podops or concern it.
    pub objects: Vec<Object>,
    /// Operators that are not running.
    pub absent_operators: Vec<String>,
    /// Namespace of the operators.
    pub operator_namespace: String,
    /// Minor version of the API server.
    pub server_minor: u32,
    /// Time of the observation.
    pub now: Timestamp,
}

impl Installation {
    pub(crate) fn of(&self, kind: &'static str) -> impl Iterator<Item = &Object> {
        self.objects.iter().filter(move |object| object.kind.name == kind)
    }

    /// Objects of some kinds.
    pub(crate) fn of_kinds<'a>(&'a self, kinds: &'a [&'a str]) -> impl Iterator<Item = &'a Object> {
        self.objects.iter().filter(|object| kinds.contains(&object.kind.name))
    }

    /// Objects of a kind that belong to the installation by their label.
    pub(crate) fn installed(&self, kind: &'static str) -> impl Iterator<Item = &Object> {
        self.of(kind).filter(|object| object.is_part())
    }

    pub(crate) fn is_absent(&self, operator: &str) -> bool {
        self.absent_operators.iter().any(|absent| absent == operator)
    }
}

/// Object in a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its kind.
    pub kind: &'static Kind,
    /// Its namespace.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
    /// All of it, as JSON.
    pub value: Value,
}

impl Object {
    /// Creates an object.
    #[must_use]
    pub fn new(kind: &'static Kind, value: Value) -> Self {
        let metadata = &value["metadata"];
        let namespace = metadata["namespace"].as_str().map(str::to_owned);
        let name = metadata["name"].as_str().unwrap_or_default().to_owned();
        Self { kind, namespace, name, value }
    }

    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        self.value["metadata"]["labels"][key].as_str()
    }

    /// Returns whether the object has the label of Podops' manifests.
    pub(crate) fn is_part(&self) -> bool {
        self.label(PART_OF) == Some(PODOPS)
    }

    /// Returns the condition of this type if it is True.
    pub(crate) fn true_condition(&self, type_: &str) -> Option<&Value> {
        let mut conditions = items(&self.value["status"]["conditions"]);
        conditions.find(|condition| condition["type"] == type_ && condition["status"] == "True")
    }

    /// Returns whether the object has this finalizer.
    pub(crate) fn has_finalizer(&self, finalizer: &str) -> bool {
        self.finalizers().any(|known| known == finalizer)
    }

    pub(crate) fn finalizers(&self) -> impl Iterator<Item = &str> {
        items(&self.value["metadata"]["finalizers"]).filter_map(Value::as_str)
    }

    pub(crate) fn is_deleting(&self) -> bool {
        self.value["metadata"]["deletionTimestamp"].is_string()
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind.name.to_lowercase();
        match &self.namespace {
            Some(namespace) => write!(f, "{kind}/{} in namespace {namespace}", self.name),
            None => write!(f, "{kind}/{}", self.name),
        }
    }
}
