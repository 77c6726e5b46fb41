//! Allow lists of external resources by namespace, from flags.
//!
//! Users of the cluster act with the operator's external permissions, so patterns are per
//! namespace.

/// Returns whether a pattern `<namespace>/<resource>` matches; either part may end with the
/// wildcard `*`.
#[must_use]
pub fn is_allowed(patterns: &[String], namespace: &str, resource: &str) -> bool {
    let mut split = patterns.iter().filter_map(|pattern| pattern.split_once('/'));
    split.any(|(namespaces, resources)| {
        matches(namespaces, namespace) && matches(resources, resource)
    })
}

/// Returns whether a text matches a pattern, which may end with the wildcard `*`.
fn matches(pattern: &str, text: &str) -> bool {
    pattern.strip_suffix('*').map_or(text == pattern, |prefix| text.starts_with(prefix))
}
