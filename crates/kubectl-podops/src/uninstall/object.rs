//! Kinds of objects, and the parts of an object that an uninstallation depends on.

use std::fmt;

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
pub(super) static ALL: [Kind; 32] = [
    kind(GROUP, VERSION, "CollaSet", "collasets", Scope::Namespaces),
    kind(GROUP, VERSION, "PodDecoration", "poddecorations", Scope::Namespaces),
    kind(GROUP, VERSION, "OperationJob", "operationjobs", Scope::Namespaces),
    kind(GROUP, VERSION, "PodTransitionRule", "podtransitionrules", Scope::Namespaces),
    kind(GROUP, VERSION, "ResourceContext", "resourcecontexts", Scope::Namespaces),
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

/// Kinds of the API group of Podops.
pub(super) const CUSTOM: [&str; 5] =
    ["CollaSet", "PodDecoration", "OperationJob", "PodTransitionRule", "ResourceContext"];

/// Kinds of installed objects, in the order in which they are deleted.
pub(super) struct Installed {
    /// Those that would reject the following steps once the operators are gone.
    pub(super) admission: &'static [&'static str],
    /// Those that are deleted last.
    pub(super) rest: &'static [&'static str],
    /// Names of the operators.
    pub(super) operators: [&'static str; 5],
}

pub(super) static INSTALLED: Installed = Installed {
    admission: &[
        "ValidatingWebhookConfiguration",
        "MutatingWebhookConfiguration",
        "ValidatingAdmissionPolicyBinding",
        "ValidatingAdmissionPolicy",
        "MutatingAdmissionPolicyBinding",
        "MutatingAdmissionPolicy",
    ],
    rest: &[
        "Service",
        "ClusterRoleBinding",
        "ClusterRole",
        "RoleBinding",
        "Role",
        "PodDisruptionBudget",
        "NetworkPolicy",
        "Lease",
        "ServiceAccount",
        "ConfigMap",
        "Secret",
        "PodMonitor",
        "PrometheusRule",
        "Namespace",
    ],
    operators: crate::facts::OPERATORS,
};

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
        let text = |field: &str| value["metadata"][field].as_str().map(str::to_owned);
        Self { kind, namespace: text("namespace"), name: text("name").unwrap_or_default(), value }
    }

    pub(super) fn label(&self, key: &str) -> Option<&str> {
        self.value["metadata"]["labels"][key].as_str()
    }

    pub(super) fn is_deleting(&self) -> bool {
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
