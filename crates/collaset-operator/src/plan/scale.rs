//! Out and in.

use std::{cmp::Reverse, collections::BTreeSet, time::Duration};

use podops_api::{lifecycle, marks};

use super::{Action, Draft, Hindrance, allowed_since, ids::Contexts, is_during};
use crate::view::{PodView, ids};

/// Brings the number of Pods closer to what it should be.
pub(super) fn plan(draft: &mut Draft<'_>, contexts: &mut Contexts) {
    let seen = draft.seen;
    let counted: Vec<&PodView> =
        seen.active().filter(|pod| !draft.touched.contains(&pod.name)).collect();
    let surplus = counted.len().saturating_sub(seen.replicas());
    scale_in(draft, contexts, &counted, surplus);
    let missing = seen.replicas().saturating_sub(counted.len());
    if missing > 0 && !seen.spec.paused {
        scale_out(draft, contexts, missing);
    }
}

fn scale_out(draft: &mut Draft<'_>, contexts: &Contexts, missing: usize) {
    let seen = draft.seen;
    if !draft.revisions.is_recorded() {
        return;
    }
    if !seen.spec.volume_claim_templates.is_empty() {
        draft.plan.hindrances.push(Hindrance {
            scaling: true,
            reason: "VolumeClaimTemplatesNotSupported",
            message: "spec.volumeClaimTemplates: this version makes no Pods with claims".to_owned(),
        });
        return;
    }
    let carried = ids(seen.active());
    let now = missing.min(draft.room());
    if now < missing {
        draft.look_again(Duration::ZERO);
    }
    let free: Vec<i64> =
        contexts.own.keys().filter(|id| !carried.contains(id)).take(now).copied().collect();
    for id in free {
        let revision = contexts.revision(id).filter(|r| draft.revisions.has(r));
        let revision = revision.unwrap_or(&draft.revisions.updated).to_owned();
        draft.plan.actions.push(Action::CreatePod(id, revision, contexts.is_new(id)));
    }
}

fn scale_in(draft: &mut Draft<'_>, contexts: &mut Contexts, counted: &[&PodView], surplus: usize) {
    let leaving: BTreeSet<&str> =
        victims(counted).into_iter().take(surplus).map(|pod| pod.name.as_str()).collect();
    let delay = draft.seen.spec.scale_strategy.as_ref().and_then(|s| s.operation_delay_seconds);
    for pod in counted.iter().filter(|pod| !pod.deleting) {
        let leaves = leaving.contains(pod.name.as_str());
        let mut deleted = false;
        if let Some(since) = allowed_since(pod, lifecycle::SCALE_IN) {
            // A Pod that was given is out of service: it goes, and if need be another comes.
            if let Some(wait) = draft.delayed(since, delay) {
                draft.look_again(wait);
            } else {
                deleted = true;
                draft.touch(pod, Action::Delete(pod.name.clone(), lifecycle::SCALE_IN));
            }
        } else if is_during(pod, lifecycle::SCALE_IN) {
            if !leaves && !super::update::is_undone(pod) {
                draft.touch(pod, Action::Undo(pod.name.clone(), lifecycle::SCALE_IN));
            }
        } else if leaves && !draft.seen.spec.paused {
            draft.touch(pod, Action::Begin(pod.name.clone(), lifecycle::SCALE_IN, true));
        }
        if let Some(id) = pod.id() {
            contexts.set_scale_in(id, deleted);
        }
    }
}

/// The Pods in the order in which they may go: those that somebody wants deleted, those already
/// asked for, those that serve nobody, then the latest to become ready, then the youngest.
///
/// A Pod once asked for stays first, so that two looks never ask for more Pods than must go.
fn victims<'a>(counted: &[&'a PodView]) -> Vec<&'a PodView> {
    let mut order = counted.to_vec();
    order.sort_by_key(|pod| {
        (
            !pod.deleting,
            !pod.labels.contains_key(marks::TO_DELETE),
            !is_during(pod, lifecycle::SCALE_IN),
            pod.ready.is_some(),
            Reverse(pod.ready),
            Reverse(pod.created),
            Reverse(pod.id()),
        )
    });
    order
}
