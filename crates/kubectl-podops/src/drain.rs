//! Drains a node: how each of its Pods leaves. Pure.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use podops_api::deletion_policy::DeletionPolicy;
use podops_api::well_known;

use crate::{
    pod_change::{is_of_set, is_replaced_first},
    pods,
};

/// Annotation of Pods that a kubelet runs from a file.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Options of a drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrainOptions {
    /// Permits the deletion of Pods without a controller.
    pub unmanaged: bool,
    /// Permits the deletion of Pods with emptyDir volumes.
    pub empty_dir: bool,
    /// Policy of Pods without the annotation.
    pub deletion_policy: DeletionPolicy,
}

/// How a Pod leaves a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// Stays: the DaemonSet or the kubelet would create the Pod again.
    Stays,
    /// Is being deleted, or its deletion is requested.
    Leaving,
    /// Its graceful deletion is requested, once its PodDisruptionBudget permits that; a Pod that is
    /// replaced first needs no permission.
    RequestDeletion {
        /// True if a replacement is created first.
        is_replaced_first: bool,
    },
    /// Is evicted, when its PodDisruptionBudget permits; in namespaces with graceful eviction, its
    /// lifecycle must also permit.
    Evict,
    /// Must not be deleted; the reason is shown to the user.
    Refused(&'static str),
}

/// Decides how a Pod leaves its node. `graceful` are the namespaces in which evictions wait for the
/// lifecycle.
#[must_use]
pub fn departure(pod: &Pod, graceful: &BTreeSet<String>, options: DrainOptions) -> Departure {
    let owner = pod.metadata.owner_references.iter().flatten();
    let owner = owner.into_iter().find(|owner| owner.controller == Some(true));
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let is_requested = pods::label(pod, well_known::TO_DELETE).is_some()
        || is_of_set(pod) && pods::label(pod, well_known::TO_REPLACE).is_some();
    let stays = owner.is_some_and(|owner| owner.kind == "DaemonSet");
    if stays || pods::annotation(pod, MIRROR).is_some() {
        Departure::Stays
    } else if pod.metadata.deletion_timestamp.is_some() {
        Departure::Leaving
    } else if pods::has_ended(pod) {
        Departure::Evict
    } else if owner.is_none() && !options.unmanaged {
        Departure::Refused("nothing creates it again; use --force to delete it")
    } else if has_empty_dir(pod) && !options.empty_dir {
        Departure::Refused(
            "it has emptyDir volumes, whose data would be lost; use --delete-emptydir-data",
        )
    } else if !pods::is_controlled(pod) || graceful.contains(namespace) {
        Departure::Evict
    } else if is_requested {
        Departure::Leaving
    } else {
        Departure::RequestDeletion {
            is_replaced_first: is_replaced_first(pod, options.deletion_policy),
        }
    }
}

/// Returns true for a Ready Pod whose deletion is requested; PodDisruptionBudgets do not yet treat
/// it as unavailable.
#[must_use]
pub fn is_uncounted(pod: &Pod) -> bool {
    pods::label(pod, well_known::TO_DELETE).is_some() && pods::has_condition(pod, "Ready")
}

fn has_empty_dir(pod: &Pod) -> bool {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.into_iter().any(|volume| volume.empty_dir.is_some())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(owner: Option<&str>, metadata: &Value, spec: &Value) -> Pod {
        let mut metadata = metadata.clone();
        metadata["namespace"] = json!("shop");
        let owner = owner.map(|kind| {
            json!({ "apiVersion": "v1", "kind": kind, "name": "a", "uid": "1", "controller": true })
        });
        metadata["ownerReferences"] = owner.into_iter().collect();
        serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
    }

    #[test]
    fn each_pod_leaves_in_its_way() {
        let spec = json!({ "containers": [] });
        let controlled = json!({ "labels": { well_known::CONTROL: "true" } });
        let mut requested = controlled.clone();
        requested["labels"][well_known::TO_DELETE] = json!("true");
        let mirror = json!({ "annotations": { MIRROR: "1" } });
        let plain = json!({});
        let depart = |pod: &Pod| departure(pod, &BTreeSet::new(), DrainOptions::default());
        let cases = [
            (pod(Some("DaemonSet"), &plain, &spec), Departure::Stays),
            (pod(None, &mirror, &spec), Departure::Stays),
            (pod(Some("ReplicaSet"), &plain, &spec), Departure::Evict),
            (
                pod(Some("CollaSet"), &controlled, &spec),
                Departure::RequestDeletion { is_replaced_first: false },
            ),
            (pod(Some("CollaSet"), &requested, &spec), Departure::Leaving),
        ];
        for (pod, expected) in cases {
            assert_eq!(depart(&pod), expected, "{pod:?}");
        }
        let graceful = BTreeSet::from(["shop".to_owned()]);
        let set = pod(Some("CollaSet"), &requested, &spec);
        assert_eq!(departure(&set, &graceful, DrainOptions::default()), Departure::Evict);
    }

    #[test]
    fn pods_that_would_be_lost_need_permission() {
        let volumes = json!([{ "name": "cache", "emptyDir": {} }]);
        let spec = json!({ "containers": [], "volumes": volumes });
        let bare = pod(None, &json!({}), &spec);
        let none = BTreeSet::new();
        let with = |unmanaged, empty_dir| {
            let options = DrainOptions { unmanaged, empty_dir, ..DrainOptions::default() };
            departure(&bare, &none, options)
        };
        assert!(matches!(with(false, true), Departure::Refused(why) if why.contains("--force")));
        assert!(matches!(with(true, false), Departure::Refused(why) if why.contains("emptyDir")));
        assert_eq!(with(true, true), Departure::Evict);
        let mut ended = bare.clone();
        ended.status.get_or_insert_default().phase = Some("Succeeded".to_owned());
        let departure = departure(&ended, &none, DrainOptions::default());
        assert_eq!(departure, Departure::Evict, "nothing of it is lost");
    }
}
