//! What an employer, such as a Service, puts on its Pods so that their operations wait for its traffic:
//! the keys of Kuperator's ResourceConsist.

use md5::{Digest as _, Md5};

use crate::well_known::PROTECTION_FINALIZER;

/// Finalizer on an employer, until its Pods hold nothing of it.
pub const CLEAN_FINALIZER: &str = "resource-consist.kusionstack.io/clean-finalizer";

/// Annotation on an employer: the finalizer that it holds its Pods with, so that new Pods can be told to
/// expect it as they are created. Not Kuperator's.
pub const FINALIZER: &str = "resource-consist.kusionstack.io/lifecycle-finalizer";

/// What [`CLEAN_FINALIZER`] was called before: `<prefix><employer>`.
pub const OLD_CLEAN_FINALIZER: &str = "resource-consist.kusionstack.io/clean-";

/// Annotation on an employer: the backend that its traffic goes through. Not Kuperator's.
pub const BACKEND: &str = "resource-consist.kusionstack.io/backend";

/// Annotation on an employer. JSON: what its backend has to be told. Not Kuperator's.
pub const BACKEND_PARAMS: &str = "resource-consist.kusionstack.io/backend-params";

/// Annotation on an employer. JSON `{"minSeconds":<n>,"maxSeconds":<n>,"atDeadline":"Hold|Proceed"}`:
/// how long its Pods are drained. Not Kuperator's.
pub const DRAIN: &str = "resource-consist.kusionstack.io/drain";

/// The kind of the employers that everybody has.
pub const SERVICE: &str = "Service";

/// The key of an employer in a Pod's available conditions.
#[must_use]
pub fn employer_key(kind: &str, namespace: &str, name: &str) -> String {
    format!("{kind}/{namespace}/{name}")
}

/// The finalizer that an employer holds its Pods with.
///
/// Kuperator hashes the name alone. So is a Service's here; another kind's finalizer says more, since
/// otherwise the first of two namesakes to drain a Pod would let go of it for both.
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

/// The middle half of the hexadecimal MD5.
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

    #[test]
    fn weakness_w7_namesakes_of_other_kinds_and_namespaces_have_finalizers_of_their_own() {
        let all = [("Service", "a"), ("Ingress", "a"), ("Ingress", "b"), ("Gateway", "a")];
        let all = all.map(|(kind, namespace)| lifecycle_finalizer(kind, namespace, "web"));
        let distinct: std::collections::BTreeSet<&String> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
        let long = lifecycle_finalizer(&"K".repeat(63), "n", "x");
        assert!(long.split_once('/').is_some_and(|(_, name)| name.len() <= 63), "{long}");
    }
}
