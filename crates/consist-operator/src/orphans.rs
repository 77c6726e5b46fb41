//! Decides which Pods are orphaned: their employer was deleted, or is no longer under control,
//! without having released them, because another client removed the employer's finalizer.

use podops_api::{
    availability::AvailableConditions,
    consist::{self, lifecycle_finalizer},
};

use crate::{
    employer::{EmployerKey, SlimEmployer},
    observe::SlimPod,
    plan::PodChange,
};

/// State of the employer that a Pod's available conditions name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmployerLookup {
    /// The object is an employer, or may be one.
    Active,
    /// The object exists, but is not under control.
    Unmanaged,
    /// The object does not exist.
    NotFound,
}

impl EmployerLookup {
    /// Returns the state of an employer as cached; `is_complete` is true once the first list is
    /// complete. Until then, a missing object may exist.
    #[must_use]
    pub fn new(cached: Option<&SlimEmployer>, is_complete: bool) -> Self {
        match cached {
            Some(employer) if !employer.is_managed_or_releasing() => Self::Unmanaged,
            None if is_complete => Self::NotFound,
            Some(_) | None => Self::Active,
        }
    }
}

/// An orphaned Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// Name of the former employer.
    pub employer: String,
    /// Change that releases the Pod.
    pub change: PodChange,
}

impl Orphan {
    /// Returns the message of the event that reports the release.
    #[must_use]
    pub fn message(&self, kind: &str) -> String {
        format!(
            "removed protection finalizer: {kind} {} no longer exists or is no longer under control",
            self.employer
        )
    }
}

/// Returns the first employer of a kind that the Pod's available conditions name and that is no
/// employer any more, with the change that releases the Pod.
#[must_use]
pub fn orphaned(
    pod: &SlimPod,
    kind: &str,
    lookup: impl Fn(&str, &str) -> EmployerLookup,
) -> Option<Orphan> {
    let member = pod.view(false, "");
    let namespace = pod.metadata.namespace.as_deref()?;
    let expected = member.expected_finalizers.as_ref()?;
    expected.keys().find_map(|key| {
        let EmployerKey { kind: of_kind, namespace: of, name } = EmployerKey::parse(key)?;
        if of_kind != kind || of != namespace {
            return None;
        }
        let found = lookup(namespace, name);
        let finalizer = lifecycle_finalizer(kind, namespace, name);
        let has_finalizer = member.has_finalizer(&finalizer);
        // lifecycle-operator removes entries of deleted Services without a finalizer, but not those
        // of other kinds.
        let by_lifecycle =
            !has_finalizer && kind == consist::SERVICE && found == EmployerLookup::NotFound;
        if found == EmployerLookup::Active || by_lifecycle {
            return None;
        }
        let mut left = expected.clone();
        left.remove(key);
        let text =
            serde_json::to_string(&AvailableConditions { expected_finalizers: left }).ok()?;
        let others = member.finalizers.iter().filter(|f| **f != finalizer).cloned().collect();
        let change = PodChange {
            name: member.name.clone(),
            uid: member.uid.clone(),
            resource_version: member.resource_version.clone(),
            has_annotations: member.has_annotations,
            finalizers: has_finalizer.then(|| (member.finalizers.clone(), others)),
            releases: has_finalizer,
            available_conditions: Some((member.available_conditions.clone(), text)),
        };
        Some(Orphan { employer: name.to_owned(), change })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use podops_api::well_known;
    use serde_json::json;

    #[test]
    fn only_pods_of_a_missing_or_unmanaged_service_are_released() {
        let ours = lifecycle_finalizer("Service", "ns", "web");
        let pod = |finalizer: &str| -> SlimPod {
            let entries = [("Service/ns/web".to_owned(), ours.clone())];
            let content = AvailableConditions { expected_finalizers: entries.into() };
            let text = serde_json::to_string(&content).unwrap();
            serde_json::from_value(json!({ "metadata": {
                "name": "a", "namespace": "ns", "uid": "1", "resourceVersion": "7",
                "finalizers": [finalizer, "other"],
                "annotations": { well_known::AVAILABLE_CONDITIONS: text },
            } }))
            .unwrap()
        };
        let not_found = |_: &str, _: &str| EmployerLookup::NotFound;
        let orphan = orphaned(&pod(&ours), "Service", not_found).unwrap();
        assert_eq!(
            (orphan.employer.as_str(), orphan.change.finalizers.unwrap().1),
            ("web", vec!["other".to_owned()])
        );
        assert!(orphaned(&pod(&ours), "Service", |_, _| EmployerLookup::Active).is_none());
        assert!(orphaned(&pod(&ours), "Gateway", not_found).is_none());
        assert!(orphaned(&pod("foreign"), "Service", not_found).is_none());
        // A Service that lost its label and our finalizer in one write has not released its Pods.
        for finalizer in [&ours, "foreign"] {
            assert!(
                orphaned(&pod(finalizer), "Service", |_, _| EmployerLookup::Unmanaged).is_some()
            );
        }
    }

    /// Kuperator's known defect W19 (docs/KUPERATOR.md#known-defects).
    #[test]
    fn expected_finalizers_of_other_kinds_go_with_their_employer() {
        let entries =
            r#"{"expectedFinalizers":{"Gateway/ns/web":"prot/1","Service/ns/web":"prot/2"}}"#;
        let pod: SlimPod = serde_json::from_value(json!({ "metadata": {
            "name": "a", "namespace": "ns", "uid": "1", "resourceVersion": "7",
            "annotations": { well_known::AVAILABLE_CONDITIONS: entries },
        } }))
        .unwrap();
        let orphan = orphaned(&pod, "Gateway", |_, _| EmployerLookup::NotFound).unwrap();
        assert_eq!((orphan.employer.as_str(), orphan.change.finalizers), ("web", None));
        let left = orphan.change.available_conditions.unwrap().1;
        assert!(left.contains("Service/ns/web") && !left.contains("Gateway"), "{left}");
        assert!(orphaned(&pod, "Gateway", |_, _| EmployerLookup::Active).is_none());
    }
}
