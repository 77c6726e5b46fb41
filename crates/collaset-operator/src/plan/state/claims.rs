//! PVCs that an instance needs.

use podops_api::{
    ids::{InstanceId, RevisionName},
    template::ClaimTemplate,
};

use crate::{
    compat::{
        claim_hash::{hash, template_name},
        revision_data,
    },
    view::{ClaimView, Observed},
};

/// Claim template of a revision, with the PVC that an instance has of it.
#[derive(Clone, Debug)]
pub struct NeededClaim<'a> {
    /// The claim template.
    pub template: ClaimTemplate,
    /// The instance's PVC; `None` if it does not exist.
    pub claim: Option<&'a ClaimView>,
}

impl NeededClaim<'_> {
    /// Name of the claim template, which is also the name of the Pod's volume.
    #[must_use]
    pub fn name(&self) -> &str {
        template_name(&self.template)
    }
}

/// Returns an owned PVC that may belong to the instance, although its instance ID is unknown; the
/// instance must not get an empty PVC instead.
#[must_use]
pub fn possible_claim<'a>(
    observed: &'a Observed,
    instance: InstanceId,
    revision: &RevisionName,
) -> Option<&'a ClaimView> {
    let needed = needed_claims(observed, instance, revision);
    let mut missing = needed.iter().filter(|needed| needed.claim.is_none());
    missing.find_map(|needed| {
        let name = needed.name();
        let hash = hash(&needed.template);
        observed.claims.values().find(|claim| {
            claim.instance.is_none()
                && !claim.orphan
                && !claim.deleting
                && claim.is_of_template(name, &hash)
        })
    })
}

/// Returns the claim templates of a revision, each with the instance's PVC of it.
#[must_use]
pub fn needed_claims<'a>(
    observed: &'a Observed,
    instance: InstanceId,
    revision: &RevisionName,
) -> Vec<NeededClaim<'a>> {
    let data = observed.revisions.get(revision).map(|revision| &revision.data);
    let templates = data.map(revision_data::claim_templates).unwrap_or_default();
    let needed = templates.into_iter().map(|template| {
        let claim = find(observed, instance, &template);
        NeededClaim { template, claim }
    });
    needed.collect()
}

fn find<'a>(
    observed: &'a Observed,
    instance: InstanceId,
    template: &ClaimTemplate,
) -> Option<&'a ClaimView> {
    let name = template_name(template);
    let hash = hash(template);
    // An unowned PVC counts unless it was released: it is about to be adopted.
    let matching = observed.claims.values().filter(|claim| {
        claim.instance == Some(instance)
            && !claim.deleting
            && !claim.is_released()
            && claim.is_of_template(name, &hash)
    });
    let matching: Vec<&ClaimView> = matching.collect();
    match matching[..] {
        [] => None,
        [only] => Some(only),
        // Kuperator, and Podops before, made another PVC for a changed template.
        _ => matching.into_iter().min_by_key(|claim| Preference::of(observed, claim, &hash)),
    }
}

/// Which of several PVCs of an instance and template is used: the lowest.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Preference {
    /// True if no Pod has the data of the PVC in use.
    is_unused: bool,
    /// True if the PVC would have to be adopted.
    is_orphan: bool,
    /// True if another content of the template was current when the PVC was created.
    is_of_other_content: bool,
}

impl Preference {
    fn of(observed: &Observed, claim: &ClaimView, hash: &str) -> Self {
        Self {
            is_unused: !observed.all().any(|pod| pod.claims.contains_key(&claim.name)),
            is_orphan: claim.orphan,
            is_of_other_content: claim.hash() != Some(hash),
        }
    }
}
