//! Renders changes of a PodDecoration as API writes.

use podops_api::{
    GROUP, VERSION,
    pod_decoration::{DecoratedSet, PodDecorationStatus},
    well_known,
};
use podops_client::write::{Change, FieldValidation, Resource, Target, Write};
use serde_json::json;

use super::{plan::DecorationAction, view::DecorationView};
use crate::{plan::state::revisions::NewRevision, render::REVISIONS};

/// PodDecorations.
pub const DECORATIONS: Resource =
    Resource { group: GROUP, version: VERSION, plural: "poddecorations" };

/// Renders an action; `None` if its revision does not exist.
#[must_use]
pub fn render(decoration: &DecorationView, action: &DecorationAction) -> Option<Write> {
    Some(match action {
        DecorationAction::AddFinalizer => {
            let known = decoration.finalizers.iter().map(String::as_str);
            finalizers(decoration, &known.chain([well_known::PROTECTED]).collect::<Vec<_>>())
        }
        DecorationAction::RemoveFinalizer => {
            let known = decoration.finalizers.iter().map(String::as_str);
            finalizers(
                decoration,
                &known.filter(|f| *f != well_known::PROTECTED).collect::<Vec<_>>(),
            )
        }
        DecorationAction::CreateRevision(new) => create_revision(decoration, new),
        DecorationAction::MakeNewest { name, position } => {
            let known = decoration.revisions.get(name)?;
            let body = json!({
                "metadata": { "uid": known.uid, "resourceVersion": known.resource_version },
                "revision": position,
            });
            let target = Target::new(REVISIONS, &decoration.namespace, name);
            Write::Patch { target, change: Change::Merge(body) }
        }
        DecorationAction::DeleteRevision { name } => {
            let known = decoration.revisions.get(name)?;
            Write::Delete {
                target: Target::new(REVISIONS, &decoration.namespace, name),
                uid: known.uid.to_string(),
                version: Some(known.resource_version.to_string()),
            }
        }
    })
}

fn target(decoration: &DecorationView) -> Target {
    Target::new(DECORATIONS, &decoration.namespace, &decoration.name)
}

fn finalizers(decoration: &DecorationView, list: &[&str]) -> Write {
    let metadata = json!({ "resourceVersion": decoration.resource_version, "finalizers": list });
    let change = Change::Merge(json!({ "metadata": metadata }));
    Write::Patch { target: target(decoration), change }
}

fn create_revision(decoration: &DecorationView, new: &NewRevision) -> Write {
    let selector = decoration.spec.selector.as_ref();
    let mut labels = selector.and_then(|s| s.match_labels.clone()).unwrap_or_default();
    // A schema cannot restrict keys, and stored objects may be older than the schema.
    labels.retain(|key, value| is_label(key, value));
    labels.insert(well_known::REVISION_HASH.to_owned(), new.hash.clone());
    labels.insert(well_known::REVISION_COLLISION.to_owned(), new.collisions.to_string());
    let owner = json!([{
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": "PodDecoration",
        "name": decoration.name,
        "uid": decoration.uid,
        "controller": true,
        "blockOwnerDeletion": true,
    }]);
    let body = json!({
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": { "name": new.name, "labels": labels, "ownerReferences": owner },
        "revision": new.revision,
        "data": new.data,
    });
    let target = Target::new(REVISIONS, &decoration.namespace, &new.name);
    Write::Create { target, body, validation: FieldValidation::Warn }
}

/// Returns the write of a status.
#[must_use]
pub fn status(decoration: &DecorationView, status: &PodDecorationStatus) -> Write {
    let mut reported = decoration.status.clone();
    if !decoration.details.is_empty() {
        // Only its existence matters: a list is replaced as a whole.
        reported.details.push(DecoratedSet::default());
    }
    let change = Change::status(&decoration.uid, &reported, status);
    Write::Patch { target: target(decoration).subresource("status"), change }
}

/// Returns whether the API server accepts a label.
fn is_label(key: &str, value: &str) -> bool {
    let (prefix, name) = key.rsplit_once('/').unwrap_or(("", key));
    let has_prefix =
        prefix.len() <= 253 && prefix.bytes().all(is_domain_byte) && !key.starts_with('/');
    has_prefix && is_name(name) && (value.is_empty() || is_name(value))
}

fn is_domain_byte(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'.' || byte == b'-'
}

/// Returns whether this is the name of a label, or a value that is not empty.
fn is_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    bytes.len() <= 63
        && text.bytes().all(is_name_byte)
        && ends.iter().all(|end| end.is_some_and(u8::is_ascii_alphanumeric))
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_that_the_api_server_rejects_are_left_out() {
        for (key, value) in [("app", "web"), ("example.com/a_b", ""), ("a", "1.2-3")] {
            assert!(is_label(key, value), "{key}={value}");
        }
        for (key, value) in
            [("app", "\u{fc}"), ("a b", "x"), ("", "x"), ("/a", "x"), ("A.B/c", "x"), ("a", "-x")]
        {
            assert!(!is_label(key, value), "{key}={value}");
        }
        assert!(!is_label("a", &"x".repeat(64)));
    }
}
