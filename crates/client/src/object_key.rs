//! Namespace and name of an object.

use kube::Resource;

/// Returns whether a name or a namespace stands in the URL of its object as it is. References
/// written by users may contain any text, `kube` does not escape them, and `a/b` or `a?b` would be
/// another URL.
#[must_use]
pub fn is_path_segment(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"/%?#".contains(&byte);
    !matches!(name, "" | "." | "..") && name.bytes().all(is_plain)
}

/// Namespace and name of an object, which identify it within its kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Namespace; empty for cluster-scoped kinds.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl ObjectKey {
    /// Returns the key of these parts.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// Returns the key of an object.
    #[must_use]
    pub fn of<K: Resource>(object: &K) -> Self {
        Self {
            namespace: object.meta().namespace.clone().unwrap_or_default(),
            name: object.meta().name.clone().unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_change_the_url() {
        for name in ["web-1", "system:aggregate-to-view", "a.b", "..."] {
            assert!(is_path_segment(name), "{name}");
        }
        for name in ["", ".", "..", "a/b", "a?dryRun=All", "a#b", "a%2Fb", "a b", "\u{fc}", "a\n"] {
            assert!(!is_path_segment(name), "{name}");
        }
    }
}
