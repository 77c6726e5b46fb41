//! Conditional patches of a Pod's labels.

use podops_api::lifecycle::{self, LabelKind};
use podops_client::write::JsonPatch;
use serde_json::Value;

use crate::view::PodView;

/// Starts a JSON Patch that applies only to this Pod's UID and while these labels of the CollaSet's
/// operation are unchanged. Without the resourceVersion, it does not conflict with other writers
/// such as the kubelet.
pub(super) fn preconditions(pod: &PodView, labels: &[LabelKind]) -> JsonPatch {
    let uid = JsonPatch::default().test(&["metadata", "uid"], pod.uid.as_str());
    labels.iter().fold(uid, |patch, label| {
        let key = label.key(lifecycle::COLLASET);
        let value = pod.labels.get(&key).map_or(Value::Null, |value| Value::from(value.as_str()));
        patch.test(&["metadata", "labels", &key], value)
    })
}
