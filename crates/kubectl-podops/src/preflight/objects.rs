//! Objects of the cluster.

use serde_json::Value;

/// Objects of a cluster, as JSON without `managedFields`.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    /// Minor version of the API server.
    pub server_minor: u32,
    /// CollaSets.
    pub sets: Vec<Value>,
    /// PodDecorations.
    pub decorations: Vec<Value>,
    /// PodTransitionRules.
    pub rules: Vec<Value>,
    /// OperationJobs.
    pub jobs: Vec<Value>,
    /// Pods with the label `kusionstack.io/control=true`.
    pub pods: Vec<Value>,
    /// PersistentVolumeClaims.
    pub claims: Vec<Value>,
    /// Services with the label `kusionstack.io/control=true`.
    pub services: Vec<Value>,
    /// Deployments.
    pub deployments: Vec<Value>,
    /// MutatingWebhookConfigurations.
    pub mutating_webhooks: Vec<Value>,
    /// ValidatingWebhookConfigurations.
    pub validating_webhooks: Vec<Value>,
}

/// `<kind> <namespace>/<name>` of an object.
pub(super) fn subject(kind: &str, object: &Value) -> String {
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str().unwrap_or_default();
    match metadata["namespace"].as_str() {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    }
}
