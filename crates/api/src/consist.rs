//! Annotations and finalizers of employers, such as Services, by which operations on their Pods
//! wait for the traffic to drain: the keys of Kuperator's ResourceConsist.

use md5::{Digest as _, Md5};

use crate::well_known::PROTECTION_FINALIZER;

/// Finalizer on an employer, removed after its finalizers on all Pods are removed.
pub const CLEAN_FINALIZER: &str = "resource-consist.kusionstack.io/clean-finalizer";

/// Annotation on an employer: its protection finalizer on Pods, so that new Pods are created with
/// it in their expected finalizers. Podops extension.
pub const FINALIZER: &str = "resource-consist.kusionstack.io/lifecycle-finalizer";

/// Prefix of the former name of [`CLEAN_FINALIZER`]: `<prefix><employer>`.
pub const OLD_CLEAN_FINALIZER: &str = "resource-consist.kusionstack.io/clean-";

/// Annotation on an employer: the backend that routes its traffic. Podops extension.
pub const BACKEND: &str = "resource-consist.kusionstack.io/backend";

/// Annotation on an employer. JSON: parameters of its backend. Podops extension.
pub const BACKEND_PARAMS: &str = "resource-consist.kusionstack.io/backend-params";

/// Annotation on an employer. JSON
/// `{"minSeconds":<n>,"maxSeconds":<n>,"atDeadline":"Hold|Proceed"}`: limits of the drain time of
/// its Pods. Podops extension.
pub const DRAIN: &str = "resource-consist.kusionstack.io/drain";

/// Employer kind that exists in every cluster.
pub const SERVICE: &str = "Service";

/// Returns the key of an employer in a Pod's available conditions.
#[must_use]
pub fn employer_key(kind: &str, namespace: &str, name: &str) -> String {
    format!("{kind}/{namespace}/{name}")
}

/// Returns the protection finalizer that an employer adds to its Pods.
///
/// The finalizer of a Service contains the hash of its name only, as Kuperator's does. Those of
/// other kinds also depend on kind and namespace; otherwise the first of two same-named employers
/// to drain a Pod would release it for both.
#[must_use]
pub fn lifecycle_finalizer(kind: &str, namespace: &str, name: &str) -> String {
    let suffix = if kind == SERVICE {
        half_md5(name)
    } else {
        let kind = kind.to_lowercase();
        let short: String = kind.chars().take(40).collect();
        format!("{short}-{}", half_md5(&employer_key(&kind, namespace, name)))
    };
    format!("{PROTECTION_FINALIZER}/{suffix}")
}

/// Returns the middle 16 of the 32 hexadecimal digits of the MD5.
fn half_md5(text: &str) -> String {
    let hash: [u8; 16] = Md5::digest(text.as_bytes()).into();
    format!("{:032x}", u128::from_be_bytes(hash)).chars().skip(8).take(16).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finalizers_of_services_are_kuperators() {
        let finalizer = |name| lifecycle_finalizer(SERVICE, "any", name);
        for (name, hash) in [
            ("foo", "4cc2f85cedef654f"),
            ("resource-consist-ut-svc", "abb2deba1db11299"),
            ("my-service", "46eef27947e71b52"),
        ] {
            assert_eq!(finalizer(name), format!("prot.podopslifecycle.kusionstack.io/{hash}"));
        }
    }

    /// Kuperator's known defect W7 (docs/KUPERATOR.md#known-defects).
    #[test]
    fn finalizers_differ_by_kind_and_namespace() {
        let all = [("Service", "a"), ("Ingress", "a"), ("Ingress", "b"), ("Gateway", "a")];
        let all = all.map(|(kind, namespace)| lifecycle_finalizer(kind, namespace, "web"));
        let distinct: std::collections::BTreeSet<&String> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
        let long = lifecycle_finalizer(&"K".repeat(63), "n", "x");
        assert!(long.split_once('/').is_some_and(|(_, name)| name.len() <= 63), "{long}");
    }
}
