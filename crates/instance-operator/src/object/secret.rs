//! Digests of an applied Secret, in an annotation of the Secret itself.
//!
//! The status of an Instance has the digests of all other objects. A user who may read the status
//! may not be permitted to read Secrets, and could guess a short value by its digest.

use serde_json::{Value, json};

use super::{
    annotation,
    hash::{self, ContentHash, NO_CONTENT},
    map_at, object_type,
};
use crate::values::digest;

/// Annotation of a Secret: its content's hash, as in [`hash::content`], and the digest of the applied
/// object, as `<hash>/<digest>`. Podops extension.
pub const APPLIED: &str = "kudo.dev/applied-content";

/// Fields of a Secret with its values.
const VALUES: [&str; 2] = ["data", "stringData"];

/// Returns whether an object is a Secret.
#[must_use]
pub fn is_secret(object: &Value) -> bool {
    object_type(object).is("", "Secret")
}

/// Removes the fields and annotations by which the values of a Secret could be guessed.
pub fn remove_values(secret: &mut Value) {
    let Some(fields) = secret.as_object_mut() else { return };
    fields.retain(|field, _| !VALUES.contains(&field.as_str()));
    if let Some(annotations) = map_at(secret, &["metadata", "annotations"]) {
        annotations.remove(APPLIED);
    }
}

/// Sets the annotation of an object that is about to be applied, if it is a Secret.
pub fn annotate(secret: &mut Value) {
    if !is_secret(secret) {
        return;
    }
    let content = hash::content(secret).unwrap_or(NO_CONTENT);
    let values: Vec<&Value> = VALUES.iter().map(|field| &secret[*field]).collect();
    let text = format!("{}/{}", hex::encode(content), digest(&json!(values).to_string()));
    if let Some(annotations) = map_at(secret, &["metadata", "annotations"]) {
        annotations.insert(APPLIED.to_owned(), json!(text));
    }
}

/// Returns the hash of the content that was last applied; `None` if the annotation is missing or
/// malformed.
#[must_use]
pub fn applied_content(live: &Value) -> Option<ContentHash> {
    let (content, _) = annotation(live, APPLIED)?.split_once('/')?;
    ContentHash::try_from(hex::decode(content).ok()?).ok()
}

/// Returns whether a Secret with the same values was last applied. Requires metadata only.
#[must_use]
pub fn has_equal_values(secret: &Value, live: &Value) -> bool {
    annotation(secret, APPLIED) == annotation(live, APPLIED)
}

/// Returns whether a Secret with other values was last applied; false if that is not known, because
/// another client has removed the annotation. Requires metadata only.
#[must_use]
pub fn has_other_values(secret: &Value, live: &Value) -> bool {
    annotation(live, APPLIED).is_some() && !has_equal_values(secret, live)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(pin: &str) -> Value {
        let mut secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "pin" },
            "stringData": { "pin": pin },
        });
        annotate(&mut secret);
        secret
    }

    #[test]
    fn the_annotation_states_the_applied_values() {
        assert!(has_equal_values(&secret("4711"), &secret("4711")));
        assert!(!has_equal_values(&secret("4711"), &secret("4712")));
        assert!(has_other_values(&secret("4711"), &secret("4712")));
        assert!(!has_other_values(&secret("4711"), &json!({ "metadata": {} })));
        let known = applied_content(&secret("4711"));
        assert_eq!(known, hash::content(&secret("4711")).ok());
        assert_eq!(applied_content(&json!({ "metadata": { "name": "pin" } })), None);
    }

    #[test]
    fn without_values_all_secrets_are_equal() {
        let [mut first, mut second] = ["4711", "4712"].map(secret);
        remove_values(&mut first);
        remove_values(&mut second);
        assert_eq!(first, second);
    }
}
