//! Kinds of installed objects, by the stage in which they are deleted.

/// Those that would reject the following steps once the operators are gone.
pub(super) const ADMISSION: [&str; 6] = [
    "ValidatingWebhookConfiguration",
    "MutatingWebhookConfiguration",
    "ValidatingAdmissionPolicyBinding",
    "ValidatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
    "MutatingAdmissionPolicy",
];

/// Those that are deleted after the objects of users are released.
pub(super) const REST: [&str; 14] = [
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
];
