//! Translates objects of API versions that Kubernetes removed to their successors.
//!
//! Seven of the 14 community packages have such objects. A translation that would change the
//! behaviour of an object is refused.

#![expect(clippy::wildcard_enum_match_arm, reason = "fields of any other type stay as they are")]

mod autoscaler;
mod crd;
mod fields;
mod ingress;

use serde_json::{Map, Value, json};

use self::fields::{default, object, objects};

/// Error of a translation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Kubernetes removed the kind.
    #[error("{0} is no longer served, and has no successor")]
    NoSuccessor(String),
    /// The successor would behave differently.
    #[error("{kind} {name}: {reason}")]
    Refused {
        /// API version and kind.
        kind: String,
        /// Name of the object.
        name: String,
        /// Reason of the refusal.
        reason: &'static str,
    },
}

/// Translation of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Translated {
    /// API version and kind before.
    pub from: String,
    /// API version and kind after.
    pub to: String,
}

type Change = fn(&mut Value) -> Result<(), &'static str>;

/// Successor of kinds whose API version was removed.
struct Successor {
    from: &'static [&'static str],
    kinds: &'static [&'static str],
    to: &'static str,
    /// Changes besides the API version.
    change: Change,
}

const ROLES: &[&str] = &["Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"];
const WORKLOADS: &[&str] = &["Deployment", "DaemonSet", "ReplicaSet", "StatefulSet"];
const WEBHOOKS: &[&str] = &["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"];
const STORAGE: &[&str] =
    &["StorageClass", "CSIDriver", "CSINode", "CSIStorageCapacity", "VolumeAttachment"];

const SUCCESSORS: [Successor; 15] = [
    successor(&["policy/v1beta1"], &["PodDisruptionBudget"], "policy/v1", budget),
    successor(
        &["rbac.authorization.k8s.io/v1alpha1", "rbac.authorization.k8s.io/v1beta1"],
        ROLES,
        "rbac.authorization.k8s.io/v1",
        role,
    ),
    successor(
        &["apiextensions.k8s.io/v1beta1"],
        &["CustomResourceDefinition"],
        "apiextensions.k8s.io/v1",
        crd::translate,
    ),
    successor(
        &["apps/v1beta1", "apps/v1beta2", "extensions/v1beta1"],
        WORKLOADS,
        "apps/v1",
        workload,
    ),
    successor(
        &["extensions/v1beta1", "networking.k8s.io/v1beta1"],
        &["Ingress"],
        "networking.k8s.io/v1",
        ingress::translate,
    ),
    successor(&["networking.k8s.io/v1beta1"], &["IngressClass"], "networking.k8s.io/v1", same),
    successor(&["extensions/v1beta1"], &["NetworkPolicy"], "networking.k8s.io/v1", same),
    successor(&["batch/v1beta1", "batch/v2alpha1"], &["CronJob"], "batch/v1", same),
    successor(
        &["autoscaling/v2beta1"],
        &["HorizontalPodAutoscaler"],
        "autoscaling/v2",
        autoscaler::translate,
    ),
    successor(&["autoscaling/v2beta2"], &["HorizontalPodAutoscaler"], "autoscaling/v2", same),
    successor(
        &["admissionregistration.k8s.io/v1beta1"],
        WEBHOOKS,
        "admissionregistration.k8s.io/v1",
        webhooks,
    ),
    successor(&["scheduling.k8s.io/v1beta1"], &["PriorityClass"], "scheduling.k8s.io/v1", same),
    successor(&["scheduling.k8s.io/v1alpha1"], &["PriorityClass"], "scheduling.k8s.io/v1", same),
    successor(&["storage.k8s.io/v1beta1"], STORAGE, "storage.k8s.io/v1", same),
    successor(&["coordination.k8s.io/v1beta1"], &["Lease"], "coordination.k8s.io/v1", same),
];

const fn successor(
    from: &'static [&'static str],
    kinds: &'static [&'static str],
    to: &'static str,
    change: Change,
) -> Successor {
    Successor { from, kinds, to, change }
}

/// Kinds without a successor.
const REMOVED: [(&str, &str); 2] =
    [("policy/v1beta1", "PodSecurityPolicy"), ("extensions/v1beta1", "PodSecurityPolicy")];

/// Paths of the metadata of objects and Pod templates.
const METADATA: [&str; 3] =
    ["/metadata", "/spec/template/metadata", "/spec/jobTemplate/spec/template/metadata"];

/// Removes `initializers`, which Kubernetes 1.16 removed from metadata: servers ignored the field,
/// and server-side apply rejects it.
fn remove_initializers(object: &mut Value) {
    for path in METADATA {
        if let Some(metadata) = object.pointer_mut(path).and_then(Value::as_object_mut) {
            metadata.remove("initializers");
        }
    }
}

/// Translates an object if its API version was removed, and removes obsolete metadata. Returns the
/// old and new version; `None` if the version is not translated.
///
/// # Errors
///
/// [`Error`] if the object has no successor, or the successor would behave differently.
pub fn translate(object: &mut Value) -> Result<Option<Translated>, Error> {
    remove_initializers(object);
    let version = object["apiVersion"].as_str().unwrap_or_default().to_owned();
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    let from = format!("{version} {kind}");
    if REMOVED.contains(&(&version, &kind)) {
        return Err(Error::NoSuccessor(from));
    }
    let known = SUCCESSORS.iter().find(|known| {
        known.from.contains(&version.as_str()) && known.kinds.contains(&kind.as_str())
    });
    let Some(known) = known else { return Ok(None) };
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    if let Err(reason) = (known.change)(object) {
        return Err(Error::Refused { kind: from, name, reason });
    }
    object["apiVersion"] = json!(known.to);
    Ok(Some(Translated { from, to: format!("{} {kind}", known.to) }))
}

#[expect(clippy::unnecessary_wraps, reason = "the signature of changes")]
fn same(_: &mut Value) -> Result<(), &'static str> {
    Ok(())
}

fn budget(budget: &mut Value) -> Result<(), &'static str> {
    let selector = &budget["spec"]["selector"];
    let has_labels = has_items(&selector["matchLabels"]);
    let has_expressions = has_items(&selector["matchExpressions"]);
    if selector.is_object() && !has_labels && !has_expressions {
        return Err("its empty selector selected no Pod, and would select all of the namespace");
    }
    Ok(())
}

fn has_items(value: &Value) -> bool {
    match value {
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    }
}

/// Subjects in `v1alpha1` have an API version instead of an API group.
#[expect(clippy::unnecessary_wraps, reason = "the signature of changes")]
fn role(role: &mut Value) -> Result<(), &'static str> {
    for subject in objects(role, "subjects") {
        if subject.remove("apiVersion").is_some() {
            let is_account = subject.get("kind").is_some_and(|kind| kind == "ServiceAccount");
            let group = if is_account { "" } else { "rbac.authorization.k8s.io" };
            default(subject, "apiGroup", json!(group));
            // The User `*` meant every user.
            let is_user = subject.get("kind").is_some_and(|kind| kind == "User");
            if is_user && subject.get("name").is_some_and(|name| name == "*") {
                subject.insert("kind".to_owned(), json!("Group"));
                subject.insert("name".to_owned(), json!("system:authenticated"));
            }
        }
    }
    Ok(())
}

/// Sets defaults that differ between the versions: the selector was that of the template's labels,
/// and the update strategy and its limits were different.
#[expect(clippy::unnecessary_wraps, reason = "the signature of changes")]
fn workload(workload: &mut Value) -> Result<(), &'static str> {
    let labels = workload["spec"]["template"]["metadata"]["labels"].clone();
    let version = workload["apiVersion"].as_str().unwrap_or_default().to_owned();
    let kind = workload["kind"].as_str().unwrap_or_default().to_owned();
    let spec = object(workload, "spec");
    for field in ["rollbackTo", "templateGeneration"] {
        spec.remove(field);
    }
    if labels.is_object() {
        default(spec, "selector", json!({ "matchLabels": labels }));
    }
    match (version.as_str(), kind.as_str()) {
        ("apps/v1beta1", "StatefulSet") | ("extensions/v1beta1", "DaemonSet") => {
            default(spec, "updateStrategy", json!({ "type": "OnDelete" }));
        }
        ("apps/v1beta1", "Deployment") => default(spec, "revisionHistoryLimit", json!(2)),
        ("extensions/v1beta1", "Deployment") => old_deployment(spec),
        _ => {}
    }
    Ok(())
}

/// Sets the defaults of `extensions/v1beta1`: no progress deadline, no history limit, and one Pod
/// at a time.
fn old_deployment(spec: &mut Map<String, Value>) {
    default(spec, "progressDeadlineSeconds", json!(i32::MAX));
    default(spec, "revisionHistoryLimit", json!(i32::MAX));
    default(spec, "strategy", json!({}));
    let Some(strategy) = spec.get_mut("strategy").and_then(Value::as_object_mut) else { return };
    if strategy.get("type").is_none_or(|kind| kind == "RollingUpdate") {
        default(strategy, "rollingUpdate", json!({}));
        if let Some(limits) = strategy.get_mut("rollingUpdate").and_then(Value::as_object_mut) {
            default(limits, "maxSurge", json!(1));
            default(limits, "maxUnavailable", json!(1));
        }
    }
}

/// Sets the defaults of the older version that the newer version changed.
fn webhooks(configuration: &mut Value) -> Result<(), &'static str> {
    for webhook in objects(configuration, "webhooks") {
        default(webhook, "failurePolicy", json!("Ignore"));
        default(webhook, "matchPolicy", json!("Exact"));
        default(webhook, "timeoutSeconds", json!(30));
        default(webhook, "admissionReviewVersions", json!(["v1beta1"]));
        let effects = webhook.get("sideEffects").and_then(Value::as_str);
        if !matches!(effects, Some("None" | "NoneOnDryRun")) {
            return Err("its webhooks have side effects, which dry runs would have too");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
