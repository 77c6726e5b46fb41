//! Which Pods next, and by which way.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use podops_api::{
    collaset::PodUpgradePolicy,
    lifecycle::{self, Word},
    marks,
};
use serde::{Deserialize, Serialize};

use super::{
    Action, Draft, Hindrance, allowed_since,
    ids::Contexts,
    is_during,
    replace::{self, Pairs},
    template::{Way, way},
};
use crate::view::{Container, Observed, PodView};

/// Annotation `collaset.kusionstack.io/last-pod-status`: what ran before an update in place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LastPodStatus {
    /// By container.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub container_states: BTreeMap<String, LastContainerState>,
}

/// What a container ran before an update in place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LastContainerState {
    /// The image it is to run.
    #[serde(rename = "latestImage", skip_serializing_if = "String::is_empty")]
    pub latest_image: String,
    /// What it really ran, if that is to change.
    #[serde(rename = "lastImageID", skip_serializing_if = "String::is_empty")]
    pub last_image_id: String,
    /// The image whose run that is; the peer does not know it.
    #[serde(rename = "lastImage", skip_serializing_if = "String::is_empty")]
    pub last_image: String,
    /// Its run, if that is to change; the peer does not know it.
    #[serde(rename = "lastContainerID", skip_serializing_if = "String::is_empty")]
    pub last_container_id: String,
}

/// How many of the new instances are made from the updated revision.
pub(super) fn updated_share(seen: &Observed, on_updated: usize, missing: usize) -> usize {
    let rolling = seen.spec.update_strategy.rolling_update.as_ref();
    if rolling.is_some_and(|r| r.by_label.is_some()) {
        return 0;
    }
    seen.replicas().saturating_sub(partition(seen)).saturating_sub(on_updated).min(missing)
}

fn partition(seen: &Observed) -> usize {
    let rolling = seen.spec.update_strategy.rolling_update.as_ref();
    let kept =
        rolling.and_then(|r| r.by_partition.as_ref()).and_then(|p| p.partition).unwrap_or_default();
    usize::try_from(kept).unwrap_or_default()
}

/// The instances that are to be on the updated revision, and records so, so that one whose Pod is
/// lost meanwhile comes back on it.
pub(super) fn scope(draft: &Draft<'_>, contexts: &mut Contexts) -> BTreeSet<i64> {
    let seen = draft.seen;
    let pods: BTreeMap<i64, &PodView> =
        seen.active().filter_map(|pod| Some((pod.id()?, pod))).collect();
    let by_label =
        seen.spec.update_strategy.rolling_update.as_ref().is_some_and(|r| r.by_label.is_some());
    let scope: BTreeSet<i64> = if by_label {
        let included =
            pods.iter().filter(|(_, pod)| pod.labels.contains_key(marks::UPDATE_INCLUDED));
        included.map(|(id, _)| *id).collect()
    } else {
        let count = match partition(seen) {
            0 => usize::MAX,
            kept => seen.replicas().saturating_sub(kept),
        };
        let mut order: Vec<i64> =
            contexts.own.keys().filter(|id| !contexts.is_extra(**id)).copied().collect();
        let updated = draft.revisions.updated.as_str();
        order.sort_by_key(|id| {
            let pod = pods.get(id).copied();
            // An instance without a Pod is of the revision that its next one is made from.
            let revision = pod.map(PodView::revision).or(contexts.revision(*id));
            (revision != Some(updated), priority(pod))
        });
        order.into_iter().take(count).collect()
    };
    for (id, pod) in &pods {
        let stays = !scope.contains(id) && !contexts.is_extra(*id);
        if stays && draft.revisions.has(pod.revision()) {
            contexts.set_revision(*id, pod.revision());
        }
    }
    for id in &scope {
        contexts.set_revision(*id, &draft.revisions.updated);
    }
    scope
}

/// Who is updated first, of those that are not: those that are being, then those that serve nobody.
fn priority(pod: Option<&PodView>) -> impl Ord + use<> {
    (
        !pod.is_some_and(|p| is_during(p, lifecycle::UPDATE)),
        pod.is_none(),
        pod.is_some_and(|p| p.ready.is_some()),
        Reverse(pod.and_then(|p| p.ready)),
        Reverse(pod.map(|p| p.created)),
    )
}

/// Whether the set's operation on the Pod is being cancelled.
pub(super) fn is_undone(pod: &PodView) -> bool {
    pod.labels.contains_key(&Word::UndoOperationType.key(lifecycle::COLLASET))
}

/// Brings Pods closer to the updated revision.
pub(super) fn plan(draft: &mut Draft<'_>, contexts: &mut Contexts, scope: &BTreeSet<i64>) {
    if !draft.revisions.is_recorded() {
        return;
    }
    let seen = draft.seen;
    let (ways, pairs) = (ways(draft), Pairs::read(seen));
    for pod in seen.active() {
        let skip = pod.deleting
            || draft.touched.contains(&pod.name)
            || pairs.is_extra(pod)
            || is_undone(pod)
            || is_during(pod, lifecycle::SCALE_IN);
        if skip {
            continue;
        }
        let wanted = pod.id().is_some_and(|id| scope.contains(&id));
        let updated = pod.revision() == draft.revisions.updated;
        let replaces = seen.spec.update_strategy.pod_upgrade_policy == PodUpgradePolicy::Replace;
        if pod.labels.contains_key(marks::REPLACED_BY_REPLACE_UPDATE) && (!wanted || updated) {
            keep(draft, pod);
        } else if is_during(pod, lifecycle::UPDATE) {
            go_on(draft, pod, &ways, (wanted, updated));
        } else if wanted && !updated && !seen.spec.paused {
            if replaces {
                replace(draft, contexts, &pairs, pod);
            } else {
                begin(draft, pod, &ways);
            }
        }
    }
}

/// Has a Pod replaced by one of the updated revision; one that is being replaced already, by that.
fn replace(draft: &mut Draft<'_>, contexts: &mut Contexts, pairs: &Pairs<'_>, pod: &PodView) {
    let updated = draft.revisions.updated.clone();
    let asked = pod.labels.contains_key(marks::TO_REPLACE);
    if asked && pod.labels.get(marks::REPLACED_BY_REPLACE_UPDATE) == Some(&updated) {
        return;
    }
    if asked || pairs.new_of(pod).is_some() {
        draft.touch(pod, Action::ReplaceUpdate(pod.name.clone(), updated));
    } else {
        replace::begin(draft, contexts, pod, Some(&updated));
    }
}

/// Has a Pod replaced no longer, unless it is on its way out.
fn keep(draft: &mut Draft<'_>, pod: &PodView) {
    if !pod.labels.contains_key(marks::TO_DELETE) {
        draft.touch(pod, Action::CancelReplace(pod.name.clone()));
    }
}

/// The way from each revision that a Pod is of, worked out once for all Pods of it.
type Ways = BTreeMap<String, Way>;

fn ways(draft: &Draft<'_>) -> Ways {
    let revisions = &draft.revisions;
    let old: BTreeSet<&str> =
        draft.seen.pods.iter().map(PodView::revision).filter(|r| *r != revisions.updated).collect();
    let updated = if old.is_empty() { None } else { revisions.template(&revisions.updated) };
    let claims = revisions.claims(&revisions.updated);
    let known = old.into_iter().filter_map(|revision| {
        let way = if revisions.claims(revision) == claims {
            way(&revisions.template(revision)?, updated.as_ref()?)
        } else {
            // A volume cannot be exchanged under a Pod.
            Way::Recreate
        };
        Some((revision.to_owned(), way))
    });
    known.collect()
}

fn begin(draft: &mut Draft<'_>, pod: &PodView, ways: &Ways) {
    let name = pod.name.clone();
    match chosen_way(draft, pod, ways) {
        Ok(Way::Metadata) => {
            let updated = draft.revisions.updated.clone();
            draft.touch(pod, Action::Apply(name, updated, false));
        }
        Ok(Way::Images) => draft.touch(pod, Action::Begin(name, lifecycle::UPDATE, false)),
        Ok(Way::Recreate) => draft.touch(pod, Action::Begin(name, lifecycle::UPDATE, true)),
        Err(hindrance) => {
            if !draft.plan.hindrances.contains(&hindrance) {
                draft.plan.hindrances.push(hindrance);
            }
        }
    }
}

/// The next move of an update under way.
fn go_on(draft: &mut Draft<'_>, pod: &PodView, ways: &Ways, (wanted, updated): (bool, bool)) {
    let name = pod.name.clone();
    let Some(since) = allowed_since(pod, lifecycle::UPDATE) else {
        if !wanted || updated {
            draft.touch(pod, Action::Undo(name, lifecycle::UPDATE));
        }
        return;
    };
    if updated {
        if is_finished(pod) {
            draft.touch(pod, Action::Finish(name));
        }
    } else if !wanted {
        // A Pod that left the scope is not kept out of service for it.
        draft.touch(pod, Action::Undo(name, lifecycle::UPDATE));
    } else if pod.labels.contains_key(marks::TO_REPLACE) {
        // It goes once its replacement serves, which therefore has to be of the new revision.
        let (update, target) = (marks::REPLACED_BY_REPLACE_UPDATE, draft.revisions.updated.clone());
        if pod.labels.get(update) != Some(&target) {
            draft.touch(pod, Action::ReplaceUpdate(name, target));
        }
    } else if let Some(wait) =
        draft.delayed(since, draft.seen.spec.update_strategy.operation_delay_seconds)
    {
        draft.look_again(wait);
    } else {
        match chosen_way(draft, pod, ways) {
            Ok(Way::Metadata | Way::Images) => {
                let updated = draft.revisions.updated.clone();
                draft.touch(pod, Action::Apply(name, updated, true));
            }
            Ok(Way::Recreate) => draft.touch(pod, Action::Delete(name, lifecycle::UPDATE)),
            Err(hindrance) => {
                draft.plan.hindrances.push(hindrance);
                draft.touch(pod, Action::Undo(name, lifecycle::UPDATE));
            }
        }
    }
}

/// The way a Pod is updated under the set's policy.
fn chosen_way(draft: &Draft<'_>, pod: &PodView, ways: &Ways) -> Result<Way, Hindrance> {
    let way = ways.get(pod.revision()).copied().unwrap_or(Way::Recreate);
    let hindrance =
        |reason, message: &str| Hindrance { scaling: false, reason, message: message.to_owned() };
    match draft.seen.spec.update_strategy.pod_upgrade_policy {
        PodUpgradePolicy::Recreate => Ok(Way::Recreate),
        PodUpgradePolicy::InPlaceIfPossible => Ok(way),
        PodUpgradePolicy::InPlaceOnly if way == Way::Recreate => Err(hindrance(
            "InPlaceUpdateImpossible",
            "spec.updateStrategy.podUpgradePolicy is InPlaceOnly, and the template changes more than images and metadata",
        )),
        PodUpgradePolicy::InPlaceOnly => Ok(way),
        // Only a Pod whose update began under another policy comes here.
        PodUpgradePolicy::Replace => Ok(way),
    }
}

/// Whether every container runs the image that the update gave it.
fn is_finished(pod: &PodView) -> bool {
    if pod.image_ids.len() < pod.containers.len() {
        return false;
    }
    let last = noted(pod);
    pod.containers.iter().all(|container| {
        let state = last.container_states.get(&container.name);
        state
            .is_none_or(|state| state.latest_image != container.image || ran(pod, container, state))
    })
}

/// What was noted before the update that is under way.
fn noted(pod: &PodView) -> LastPodStatus {
    let annotation = pod.annotations.as_ref().and_then(|a| a.get(marks::LAST_POD_STATUS));
    annotation.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// Whether a container has run since its state was noted, if it was to.
fn ran(pod: &PodView, container: &Container, noted: &LastContainerState) -> bool {
    let changed = |now: &BTreeMap<String, String>, last: &str| {
        !last.is_empty() && now.get(&container.name).is_some_and(|id| id != last)
    };
    // Two tags may be of one image, which then only starts anew.
    noted.last_image_id.is_empty()
        || changed(&pod.image_ids, &noted.last_image_id)
        || changed(&pod.container_ids, &noted.last_container_id)
}

/// What to remember of a Pod before its images change: `{}` if none does.
#[must_use]
pub fn last_status(pod: &PodView, images: &BTreeMap<String, String>) -> LastPodStatus {
    let before = noted(pod);
    let states = pod.containers.iter().filter_map(|container| {
        let image = images.get(&container.name)?;
        // A kubelet that has not got to the last change still runs what was there before it, and
        // does nothing if that is wanted again.
        let known = before.container_states.get(&container.name);
        let idle = known.filter(|state| {
            !state.last_image.is_empty()
                && state.latest_image == container.image
                && !ran(pod, container, state)
        });
        let runs = idle.map_or(&container.image, |state| &state.last_image);
        let changes = image != runs;
        let last = |ids: &BTreeMap<String, String>| {
            ids.get(&container.name).filter(|_| changes).cloned().unwrap_or_default()
        };
        let state = LastContainerState {
            latest_image: image.clone(),
            last_image: if changes { runs.clone() } else { String::new() },
            last_image_id: last(&pod.image_ids),
            last_container_id: last(&pod.container_ids),
        };
        Some((container.name.clone(), state))
    });
    LastPodStatus { container_states: states.collect() }
}
