//! Current and updated revision, and the revision history.

use std::collections::BTreeSet;

use podops_api::{
    collaset::CollaSetSpec,
    template::{ClaimTemplate, PodTemplate},
    well_known,
};
use serde_json::{Map, Value, json};

use super::{
    Action, Blocker, Planner,
    claims::{self, template_name},
    ids,
    template::normal,
};
use crate::view::{Observed, RevisionView};

/// Maximum length of a revision's name: it is also a label value.
const NAME_MAX: usize = 63;

/// ControllerRevision to create.
#[derive(Clone, Debug, PartialEq)]
pub struct NewRevision {
    /// Name of the ControllerRevision.
    pub name: String,
    /// Hash part of the name.
    pub hash: String,
    /// Collision count included in the hash.
    pub collisions: i32,
    /// Position in the revision history; the highest is the newest.
    pub revision: i64,
    /// Templates to record.
    pub data: Value,
}

/// Revisions of the CollaSet, with the current and the updated one resolved.
pub(super) struct Revisions<'a> {
    known: &'a [RevisionView],
    /// Name of the updated revision, which may not exist yet.
    pub(super) updated: String,
    /// Name of the current revision, which Pods outside the update's scope keep.
    pub(super) current: String,
    /// Number of name collisions.
    pub(super) collisions: i32,
    record: Option<Action>,
    /// Name of the template's revision; differs from `updated` if the spec names a revision.
    template: String,
    /// Revision named by the spec that does not exist.
    missing: Option<String>,
}

impl<'a> Revisions<'a> {
    /// Resolves the updated revision: the one named by the spec, or else the template's, which is
    /// created if it does not exist.
    pub(super) fn read(observed: &'a Observed) -> Self {
        let mut revisions = Self::of_template(observed);
        if let Some(named) = &observed.spec.update_strategy.revision
            && !named.is_empty()
        {
            if revisions.has(named) {
                revisions.updated.clone_from(named);
            } else {
                revisions.missing = Some(named.clone());
                // Keep the previous revision, so that a mistyped name changes no Pod.
                let previous = &observed.status.updated_revision;
                if revisions.has(previous) {
                    revisions.updated.clone_from(previous);
                }
            }
        }
        revisions
    }

    /// Finds the existing revision of the template, or names a new one.
    fn of_template(observed: &'a Observed) -> Self {
        let data = data(&observed.spec);
        let equal = find_equal(&observed.revisions, &data);
        let newest = observed.revisions.iter().map(|r| r.revision).max().unwrap_or_default();
        let mut collisions = observed.status.collision_count;
        let (updated, record) = match equal {
            Some(known) if known.revision == newest => (known.name.clone(), None),
            Some(known) => {
                (known.name.clone(), Some(Action::BumpRevision(known.name.clone(), newest + 1)))
            }
            None => {
                let candidate = |collisions| {
                    let hash = hash(&data, collisions);
                    (name(&observed.name, &hash), hash)
                };
                let is_taken = |name: &str| {
                    observed.revisions.iter().any(|r| r.name == name)
                        || observed.foreign_revisions.contains(name)
                };
                while is_taken(&candidate(collisions).0) {
                    collisions += 1;
                }
                let (name, hash) = candidate(collisions);
                let new = NewRevision {
                    name: name.clone(),
                    hash,
                    collisions,
                    revision: newest + 1,
                    data,
                };
                (name, Some(Action::CreateRevision(new)))
            }
        };
        let exists = |name: &str| observed.revisions.iter().any(|r| r.name == name);
        let mut current = observed.status.current_revision.clone();
        if !exists(&current) {
            current.clone_from(&updated);
        }
        let template = updated.clone();
        Self {
            known: &observed.revisions,
            updated,
            current,
            collisions,
            record,
            template,
            missing: None,
        }
    }

    /// Returns whether the template's revision exists.
    pub(super) fn is_recorded(&self) -> bool {
        !matches!(self.record, Some(Action::CreateRevision(_)))
    }

    /// Returns the Pod template of an existing revision.
    pub(super) fn template(&self, name: &str) -> Option<PodTemplate> {
        self.known.iter().find(|r| r.name == name).map(|r| template_of(&r.data))
    }

    /// Returns names and hashes of the claim templates of an existing revision.
    pub(super) fn claims(&self, name: &str) -> BTreeSet<(String, String)> {
        let known = self.known.iter().filter(|r| r.name == name);
        let templates = known.flat_map(|r| claim_templates_of(&r.data));
        templates.map(|t| (template_name(&t).to_owned(), claims::hash(&t))).collect()
    }

    /// Returns whether a revision of this name exists.
    pub(super) fn has(&self, name: &str) -> bool {
        self.known.iter().any(|r| r.name == name)
    }
}

/// Returns the newest revision whose data is equivalent to `data`.
fn find_equal<'a>(known: &'a [RevisionView], data: &Value) -> Option<&'a RevisionView> {
    let newest = known.iter().max_by_key(|r| r.revision)?;
    // Fast path: usually the newest revision is identical, and nothing has to be normalized.
    if newest.data == *data {
        return Some(newest);
    }
    let wanted = normal(data);
    known.iter().filter(|r| normal(&r.data) == wanted).max_by_key(|r| r.revision)
}

/// Returns the claim templates in a revision's data.
#[must_use]
pub fn claim_templates_of(data: &Value) -> Vec<ClaimTemplate> {
    let templates = data["spec"]["volumeClaimTemplates"].as_array().into_iter().flatten();
    templates.filter_map(|t| t.as_object().cloned().map(ClaimTemplate)).collect()
}

/// Returns the Pod template in a revision's data.
#[must_use]
pub fn template_of(data: &Value) -> PodTemplate {
    let mut template = data["spec"]["template"].as_object().cloned().unwrap_or_default();
    template.remove("$patch");
    PodTemplate(template)
}

/// Creates the template's revision and deletes unused revisions beyond `historyLimit`.
pub(super) fn plan(planner: &mut Planner<'_>) {
    planner.plan.actions.extend(planner.revisions.record.clone());
    let observed = planner.observed;
    if let Some(name) = &planner.revisions.missing {
        planner.plan.blockers.push(Blocker {
            scaling: false,
            reason: "RevisionNotFound",
            message: format!(
                "spec.updateStrategy.revision: this CollaSet has no ControllerRevision {name}"
            ),
        });
    }
    let orphans = observed.revisions.iter().filter(|r| r.orphan);
    planner.plan.actions.extend(orphans.map(|r| Action::AdoptRevision(r.name.clone())));
    let entries = observed.contexts.iter().flat_map(|c| &c.entries);
    let mut used: BTreeSet<&str> =
        observed.pods.iter().map(super::super::view::PodView::revision).collect();
    used.extend(
        entries
            .filter(|e| ids::is_owned(e, &observed.name))
            .filter_map(|e| e.data.get(well_known::context::REVISION))
            .map(String::as_str),
    );
    let revisions = &planner.revisions;
    used.extend([&*revisions.updated, &*revisions.current, &*revisions.template]);
    let keep = usize::try_from(observed.spec.history_limit).unwrap_or_default() + 2;
    let mut old: Vec<&RevisionView> = observed.revisions.iter().filter(|r| !r.orphan).collect();
    old.sort_by_key(|r| r.revision);
    let surplus_count = old.len().saturating_sub(keep);
    let surplus = old.into_iter().filter(|r| !used.contains(r.name.as_str())).take(surplus_count);
    let deletions: Vec<Action> = surplus.map(|r| Action::DeleteRevision(r.name.clone())).collect();
    planner.plan.actions.extend(deletions);
}

/// Returns the revision data of this spec in Kuperator's format, keys sorted.
fn data(spec: &CollaSetSpec) -> Value {
    let mut template = spec.template.0.clone();
    template.insert("$patch".to_owned(), json!("replace"));
    let mut inner = Map::from_iter([("template".to_owned(), Value::Object(template))]);
    if !spec.volume_claim_templates.is_empty() {
        inner.insert("volumeClaimTemplates".to_owned(), json!(spec.volume_claim_templates));
    }
    json!({ "spec": inner })
}

fn hash(data: &Value, collisions: i32) -> String {
    safe_encode(fnv1_32(format!("{data}{collisions}").as_bytes()))
}

/// FNV-1 (not 1a), 32 bits.
fn fnv1_32(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .fold(0x811c_9dc5, |hash: u32, byte| hash.wrapping_mul(0x0100_0193) ^ u32::from(*byte))
}

/// Kubernetes' "safe encoding" of a number's decimal digits: no vowels, so no words.
fn safe_encode(number: u32) -> String {
    const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    number
        .to_string()
        .bytes()
        .map(|byte| char::from(ALPHABET[usize::from(byte) % ALPHABET.len()]))
        .collect()
}

/// Returns a short, deterministic name suffix: the hash of `of`.
#[must_use]
pub fn suffix(of: &str) -> String {
    safe_encode(fnv1_32(of.as_bytes()))
}

/// Maximum length of a hash: one character per decimal digit of a 32-bit number.
const HASH_MAX: usize = 10;

/// Converts a CollaSet's name to a DNS-1035 label of at most `longest` characters.
fn label(set: &str, longest: usize) -> String {
    let lower = set.to_ascii_lowercase();
    let from_letter = lower.trim_start_matches(|c: char| !c.is_ascii_lowercase());
    let allowed = |c: char| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' };
    let label: String = from_letter.chars().map(allowed).take(longest).collect();
    label.trim_end_matches('-').to_owned()
}

/// Returns the common name prefix of all revisions of a CollaSet.
#[must_use]
pub fn prefix(set: &str) -> String {
    label(set, NAME_MAX - HASH_MAX - 1)
}

/// Returns `<set>-<hash>` as a DNS-1035 label.
#[must_use]
pub fn name(set: &str, hash: &str) -> String {
    format!("{}-{hash}", label(set, NAME_MAX - hash.len() - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revision_hash_equals_kuperators() {
        let data = r#"{"spec":{"template":{"$patch":"replace","metadata":{"creationTimestamp":null,"labels":{"app":"foo"}},"spec":{"containers":[{"image":"nginx:v1","name":"foo","resources":{}}]}}}}"#;
        assert_eq!(suffix(&format!("{data}0")), "5875f669f4");
        assert_eq!(suffix(&format!("{data}1")), "5875f669f5");
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(hash(&data, 0), "5875f669f4");
    }

    #[test]
    fn revision_names_are_dns_labels() {
        assert_eq!(name("web", "abc"), "web-abc");
        assert_eq!(name("1.Web.x.", "abc"), "web-x-abc");
        assert_eq!(name(&"w".repeat(80), "abc").len(), 63);
    }
}
