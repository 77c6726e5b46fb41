//! Current and updated revision, and history.

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

/// The longest name of a revision: it is also the value of a label.
const NAME_MAX: usize = 63;

/// A revision to be recorded.
#[derive(Clone, Debug, PartialEq)]
pub struct NewRevision {
    /// Its name.
    pub name: String,
    /// The hash part of the name.
    pub hash: String,
    /// The collision count that went into the hash.
    pub collisions: i32,
    /// Its place in history.
    pub revision: i64,
    /// What it holds.
    pub data: Value,
}

/// The set's revisions, and which of them matter.
pub(super) struct Revisions<'a> {
    known: &'a [RevisionView],
    /// The name of the template's revision, whether or not it is recorded yet.
    pub(super) updated: String,
    /// The name of the revision outside the update's scope.
    pub(super) current: String,
    /// How often the hash met another's name.
    pub(super) collisions: i32,
    record: Option<Action>,
    /// The name of the template's revision, which Pods may not follow at the moment.
    template: String,
    /// The revision that the spec names and nobody has recorded.
    unknown: Option<String>,
}

impl<'a> Revisions<'a> {
    /// Finds the revision that Pods are to follow: the one that the spec names, or else the
    /// template's, which is recorded if it is not yet.
    pub(super) fn read(observed: &'a Observed) -> Self {
        let mut revisions = Self::of_template(observed);
        if let Some(named) = &observed.spec.update_strategy.revision
            && !named.is_empty()
        {
            if revisions.has(named) {
                revisions.updated.clone_from(named);
            } else {
                revisions.unknown = Some(named.clone());
                // What Pods followed before, so that a slip of the pen moves none.
                let before = &observed.status.updated_revision;
                if revisions.has(before) {
                    revisions.updated.clone_from(before);
                }
            }
        }
        revisions
    }

    /// Finds the template's revision among the recorded ones, or names a new one.
    fn of_template(observed: &'a Observed) -> Self {
        let data = data(&observed.spec);
        let equal = equal(&observed.revisions, &data);
        let newest = observed.revisions.iter().map(|r| r.revision).max().unwrap_or_default();
        let mut collisions = observed.status.collision_count;
        let (updated, record) = match equal {
            Some(known) if known.revision == newest => (known.name.clone(), None),
            Some(known) => {
                (known.name.clone(), Some(Action::BumpRevision(known.name.clone(), newest + 1)))
            }
            None => {
                let named = |collisions| {
                    let hash = hash(&data, collisions);
                    (name(&observed.name, &hash), hash)
                };
                let taken = |name: &str| {
                    observed.revisions.iter().any(|r| r.name == name)
                        || observed.foreign_revisions.contains(name)
                };
                while taken(&named(collisions).0) {
                    collisions += 1;
                }
                let (name, hash) = named(collisions);
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
        let recorded = |name: &str| observed.revisions.iter().any(|r| r.name == name);
        let mut current = observed.status.current_revision.clone();
        if !recorded(&current) {
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
            unknown: None,
        }
    }

    /// Whether the template's revision is recorded.
    pub(super) fn is_recorded(&self) -> bool {
        !matches!(self.record, Some(Action::CreateRevision(_)))
    }

    /// The Pod template of a recorded revision.
    pub(super) fn template(&self, name: &str) -> Option<PodTemplate> {
        self.known.iter().find(|r| r.name == name).map(|r| template_of(&r.data))
    }

    /// The claims of a recorded revision's instances: the names and hashes of their templates.
    pub(super) fn claims(&self, name: &str) -> BTreeSet<(String, String)> {
        let known = self.known.iter().filter(|r| r.name == name);
        let templates = known.flat_map(|r| claim_templates_of(&r.data));
        templates.map(|t| (template_name(&t).to_owned(), claims::hash(&t))).collect()
    }

    /// Whether a revision of this name is recorded.
    pub(super) fn has(&self, name: &str) -> bool {
        self.known.iter().any(|r| r.name == name)
    }
}

/// The newest of the revisions that mean the same as `data`.
fn equal<'a>(known: &'a [RevisionView], data: &Value) -> Option<&'a RevisionView> {
    let newest = known.iter().max_by_key(|r| r.revision)?;
    // Nearly always the newest holds just that, and nothing has to be put in its normal form.
    if newest.data == *data {
        return Some(newest);
    }
    let wanted = normal(data);
    known.iter().filter(|r| normal(&r.data) == wanted).max_by_key(|r| r.revision)
}

/// The claim templates in a revision's data.
#[must_use]
pub fn claim_templates_of(data: &Value) -> Vec<ClaimTemplate> {
    let templates = data["spec"]["volumeClaimTemplates"].as_array().into_iter().flatten();
    templates.filter_map(|t| t.as_object().cloned().map(ClaimTemplate)).collect()
}

/// The Pod template in a revision's data.
#[must_use]
pub fn template_of(data: &Value) -> PodTemplate {
    let mut template = data["spec"]["template"].as_object().cloned().unwrap_or_default();
    template.remove("$patch");
    PodTemplate(template)
}

/// Records the template and forgets what history need not keep.
pub(super) fn plan(planner: &mut Planner<'_>) {
    planner.plan.actions.extend(planner.revisions.record.clone());
    let observed = planner.observed;
    if let Some(name) = &planner.revisions.unknown {
        planner.plan.blockers.push(Blocker {
            scaling: false,
            reason: "RevisionNotFound",
            message: format!("spec.updateStrategy.revision: {name} is no revision of this set"),
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
    let surplus = old.len().saturating_sub(keep);
    let forget = old.into_iter().filter(|r| !used.contains(r.name.as_str())).take(surplus);
    let forget: Vec<Action> = forget.map(|r| Action::DeleteRevision(r.name.clone())).collect();
    planner.plan.actions.extend(forget);
}

/// What a revision of this spec holds; Kuperator's form, keys sorted.
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

/// A short name part from anything: the same for the same.
#[must_use]
pub fn suffix(of: &str) -> String {
    safe_encode(fnv1_32(of.as_bytes()))
}

/// The longest hash: a digit of 32 bits' a character.
const HASH_MAX: usize = 10;

/// A set's name as a DNS-1035 label of at most so many characters.
fn label(set: &str, longest: usize) -> String {
    let lower = set.to_ascii_lowercase();
    let from_letter = lower.trim_start_matches(|c: char| !c.is_ascii_lowercase());
    let allowed = |c: char| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' };
    let label: String = from_letter.chars().map(allowed).take(longest).collect();
    label.trim_end_matches('-').to_owned()
}

/// What the names of all revisions of a set begin with.
#[must_use]
pub fn prefix(set: &str) -> String {
    label(set, NAME_MAX - HASH_MAX - 1)
}

/// `<set>-<hash>` as a DNS-1035 label.
#[must_use]
pub fn name(set: &str, hash: &str) -> String {
    format!("{}-{hash}", label(set, NAME_MAX - hash.len() - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_kuperators() {
        let data = r#"{"spec":{"template":{"$patch":"replace","metadata":{"creationTimestamp":null,"labels":{"app":"foo"}},"spec":{"containers":[{"image":"nginx:v1","name":"foo","resources":{}}]}}}}"#;
        assert_eq!(suffix(&format!("{data}0")), "5875f669f4");
        assert_eq!(suffix(&format!("{data}1")), "5875f669f5");
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(hash(&data, 0), "5875f669f4");
    }

    #[test]
    fn names_are_dns_labels() {
        assert_eq!(name("web", "abc"), "web-abc");
        assert_eq!(name("1.Web.x.", "abc"), "web-x-abc");
        assert_eq!(name(&"w".repeat(80), "abc").len(), 63);
    }
}
