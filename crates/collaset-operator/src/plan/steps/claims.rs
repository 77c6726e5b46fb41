//! PersistentVolumeClaims: one per claim template and instance, retained or deleted with it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use podops_api::{
    collaset::Retention,
    ids::{ClaimName, InstanceId, RevisionName},
};
use serde_json::Value;

use crate::{
    compat::{
        claim_hash::{self, template_name},
        quantity, revision_data,
    },
    plan::{
        action::{Action, ClaimChange, DisownReason},
        planner::Planner,
        state::{
            claims::{NeededClaim, needed_claims},
            counted::is_exclusion_requested,
            instance_ids::{Instances, RemovalReason},
        },
    },
    view::{ClaimView, Observed, PodView, instance_id},
};

/// Creates the missing PVCs of an instance's next Pod; returns whether all exist already.
pub(in crate::plan) fn ensure(
    planner: &mut Planner<'_>,
    instance: InstanceId,
    revision: &RevisionName,
) -> bool {
    let needed = needed_claims(planner.observed, instance, revision);
    let missing: Vec<String> = needed
        .iter()
        .filter(|needed| needed.claim.is_none())
        .map(|needed| needed.name().to_owned())
        .collect();
    let all_exist = missing.is_empty();
    for template in missing {
        let revision = revision.clone();
        planner.add(Action::CreateClaim { instance, revision, template, name: None });
    }
    all_exist
}

/// Creates the PVCs again that a Pod waits for and that were deleted before it started; they have
/// the names by which the Pod mounts them.
pub(in crate::plan) fn restore(planner: &mut Planner<'_>) {
    let observed = planner.observed;
    let waits = |pod: &&PodView| {
        let lacks_claim = pod.claims.keys().any(|name| !observed.claims.contains_key(name));
        lacks_claim && !pod.deleting && !pod.terminal && !pod.has_started()
    };
    for pod in observed.active().filter(waits) {
        let Some(instance) = pod.instance else { continue };
        let needed = needed_claims(observed, instance, &pod.revision);
        let missing = needed.iter().filter(|needed| needed.claim.is_none());
        for template in missing.map(NeededClaim::name) {
            let mounted = pod.claims.iter().find(|(_, volume)| *volume == template);
            let Some((name, _)) = mounted else { continue };
            if observed.claims.contains_key(name) || observed.taken_claims.contains(name) {
                continue;
            }
            planner.add(Action::CreateClaim {
                instance,
                revision: pod.revision.clone(),
                template: template.to_owned(),
                name: Some(name.clone()),
            });
        }
    }
}

/// A Pod that still uses a PVC that another is to use.
pub(in crate::plan) struct ClaimUser<'a> {
    pub(in crate::plan) pod: &'a PodView,
    claim: &'a ClaimName,
}

impl ClaimUser<'_> {
    /// Reason for which the next Pod of the instance is not created yet.
    pub(in crate::plan) fn reason(&self, instance: InstanceId) -> String {
        let claim = self.claim;
        format!(
            "uses PersistentVolumeClaim {claim}, which the next Pod of instance {instance} needs"
        )
    }
}

/// Returns a Pod that exists, also one that terminates or has left the CollaSet, and mounts a PVC
/// that the next Pod of an instance needs: at most one Pod uses a PVC.
pub(in crate::plan) fn user_of<'a>(
    observed: &'a Observed,
    instance: InstanceId,
    revision: &RevisionName,
) -> Option<ClaimUser<'a>> {
    let needed = needed_claims(observed, instance, revision);
    let mut needed = needed.into_iter().filter_map(|needed| needed.claim).peekable();
    needed.peek()?;
    let others = observed.orphans.values().map(Arc::as_ref);
    // The containers of a terminal Pod have ended, but a finalizer may still use its volumes.
    let uses = |pod: &&PodView| !pod.terminal || pod.deleting;
    let pods: Vec<&PodView> = observed.all().chain(others).filter(uses).collect();
    needed.find_map(|claim| {
        let pod = pods.iter().find(|pod| pod.claims.contains_key(&claim.name))?;
        Some(ClaimUser { pod, claim: &claim.name })
    })
}

/// Adopts unowned PVCs that match the selector, grows those of Pods whose revision requests more
/// storage, and deletes or releases those that no instance will use.
///
/// The only PVCs that are deleted are those of instances that were scaled in, under the retention
/// policy Delete.
pub(in crate::plan) fn plan(planner: &mut Planner<'_>, instances: &Instances) {
    let observed = planner.observed;
    // Most CollaSets have no PVCs.
    if observed.claims.is_empty() {
        return;
    }
    for claim in observed.claims.values().filter(|claim| claim.orphan && !claim.deleting) {
        let is_ours = claim.instance.is_some() && claim.hash().is_some();
        if is_ours && !claim.is_released() && observed.selects(&claim.labels) {
            let name = claim.name.clone();
            planner.add(Action::Claim { name, change: ClaimChange::Adopt });
        }
    }
    restore_instance_ids(planner);
    keep_or_delete_with_set(planner);
    take_back(planner);
    grow(planner);
    let mounted: BTreeSet<&ClaimName> =
        observed.active().flat_map(|pod| pod.claims.keys()).collect();
    let in_use: BTreeSet<InstanceTemplate<'_>> = observed
        .active()
        .filter(|pod| !pod.deleting && !pod.terminal)
        .flat_map(|pod| observed.claims_of(pod))
        .filter_map(InstanceTemplate::of)
        .collect();
    let templates = template_names(observed);
    for claim in observed.claims.values() {
        if claim.deleting || claim.orphan || mounted.contains(&claim.name) {
            continue;
        }
        let is_template_removed =
            claim.template.as_ref().is_some_and(|template| !templates.contains(template));
        let change = match claim.instance.and_then(|id| instances.removal_reason(id)) {
            Some(RemovalReason::ScaledIn) => {
                let policy = observed.claim_retention().when_scaled;
                (policy == Retention::Delete).then_some(ClaimChange::Delete)
            }
            Some(RemovalReason::Replaced) => {
                Some(ClaimChange::Disown { reason: DisownReason::PodReplaced })
            }
            // An earlier release made another one for a changed template.
            None if InstanceTemplate::of(claim).is_some_and(|of| in_use.contains(&of)) => {
                Some(ClaimChange::Disown { reason: DisownReason::AnotherMounted })
            }
            None if is_template_removed => {
                Some(ClaimChange::Disown { reason: DisownReason::TemplateRemoved })
            }
            None => None,
        };
        if let Some(change) = change {
            planner.add(Action::Claim { name: claim.name.clone(), change });
        }
    }
}

/// Instance and claim template, of which there is one PVC.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct InstanceTemplate<'a> {
    instance: InstanceId,
    template: &'a str,
}

impl<'a> InstanceTemplate<'a> {
    fn of(claim: &'a ClaimView) -> Option<Self> {
        Some(Self { instance: claim.instance?, template: claim.template.as_deref()? })
    }
}

/// Lets the namespace own the PVCs as well if they are to outlive the CollaSet, and only then.
fn keep_or_delete_with_set(planner: &mut Planner<'_>) {
    let observed = planner.observed;
    if observed.namespace_uid.is_none() {
        return;
    }
    let keeps = observed.has_claims_to_keep();
    let owned = observed.claims.values().filter(|claim| !claim.orphan && !claim.deleting);
    for claim in owned.filter(|claim| claim.kept != keeps) {
        let change = if keeps { ClaimChange::Keep } else { ClaimChange::DeleteWithSet };
        planner.add(Action::Claim { name: claim.name.clone(), change });
    }
}

/// Takes back the PVCs of Pods that were to leave and have not: their labels match again, or their
/// exclusion was withdrawn, before they were released as well.
fn take_back(planner: &mut Planner<'_>) {
    let observed = planner.observed;
    let staying = observed.active().filter(|pod| {
        !pod.deleting
            && observed.selects(&pod.labels)
            && !is_exclusion_requested(observed, pod)
            && !planner.released.contains(&pod.name)
    });
    let staying: Vec<&PodView> = staying.collect();
    for pod in staying {
        let Some(instance) = pod.instance else { continue };
        for claim in observed.claims_of(pod).filter(|claim| claim.is_released()) {
            let change = ClaimChange::Include { instance };
            planner.add(Action::Claim { name: claim.name.clone(), change });
        }
    }
}

/// Names of the claim templates of the spec and of all revisions, to which a rollback may return.
fn template_names(observed: &Observed) -> BTreeSet<String> {
    let mut names = claim_hash::template_names(&observed.spec.volume_claim_templates);
    for revision in observed.revisions.values() {
        names.extend(claim_hash::template_names(&revision_data::claim_templates(&revision.data)));
    }
    names
}

/// Raises the request of bound PVCs to that of the claim template of their Pod's revision. A lower
/// request of the claim template changes no existing PVC.
fn grow(planner: &mut Planner<'_>) {
    let observed = planner.observed;
    let bound = observed.claims.values().filter(|claim| !claim.orphan && !claim.deleting);
    let mut bound = bound.filter(|claim| claim.bound_storage.is_some()).peekable();
    if bound.peek().is_none() {
        return;
    }
    let staying = observed.active().filter(|pod| !pod.deleting && !pod.terminal);
    let pods: BTreeMap<InstanceId, &PodView> =
        staying.filter_map(|pod| Some((pod.instance?, pod))).collect();
    let storage: BTreeMap<&RevisionName, StorageByTemplate> = observed
        .revisions
        .iter()
        .map(|(name, revision)| (name, storage_of(&revision.data)))
        .collect();
    for claim in bound {
        let pod = claim.instance.and_then(|id| pods.get(&id));
        let Some(pod) = pod.filter(|pod| pod.claims.contains_key(&claim.name)) else { continue };
        let templates = storage.get(&pod.revision);
        let wanted = templates.and_then(|known| known.get(claim.template.as_ref()?));
        let Some(wanted) = wanted else { continue };
        let requested = claim.bound_storage.as_deref().and_then(quantity::value);
        let is_larger = requested.zip(quantity::value(wanted)).is_some_and(|(old, new)| new > old);
        if is_larger {
            let change = ClaimChange::Grow { storage: wanted.clone() };
            planner.add(Action::Claim { name: claim.name.clone(), change });
        }
    }
}

/// Requested storage, by the name of the claim template.
type StorageByTemplate = BTreeMap<String, String>;

fn storage_of(revision: &Value) -> StorageByTemplate {
    let templates = revision_data::claim_templates(revision);
    let storage = templates.iter().filter_map(|template| {
        let spec = template.0.get("spec")?;
        let storage = spec["resources"]["requests"]["storage"].as_str()?;
        Some((template_name(template).to_owned(), storage.to_owned()))
    });
    storage.collect()
}

/// Restores the missing instance ID of PVCs that a Pod mounts: once the Pod is deleted, nothing
/// else shows which instance they belong to.
fn restore_instance_ids(planner: &mut Planner<'_>) {
    for claim in planner.observed.claims.values().filter(|claim| !claim.orphan && !claim.deleting) {
        if let (Some(instance), None) = (claim.instance, instance_id(&claim.labels)) {
            let change = ClaimChange::SetInstance { instance };
            planner.add(Action::Claim { name: claim.name.clone(), change });
        }
    }
}
