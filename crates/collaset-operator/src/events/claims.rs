//! Events of PersistentVolumeClaims that are deleted, released or grown. Each claim is named.

use std::collections::BTreeMap;

use podops_api::{collaset::Retention, ids::ClaimName};
use podops_client::event::{EventReason, ObjectEvent};

use crate::{
    plan::{
        Plan,
        action::{Action, ClaimChange, DisownReason, SetChange},
    },
    reasons,
    view::Observed,
};

/// Size of the names in one event, in bytes; the API server accepts messages of 1024.
const NAMES_MAX: usize = 700;

/// Claims of one event, or of several if their names are too long for one.
struct Group {
    reason: &'static EventReason,
    claims: Vec<String>,
}

/// Returns the events of the claims of a plan.
pub(super) fn events(observed: &Observed, plan: &Plan) -> Vec<ObjectEvent> {
    let mut by_text = BTreeMap::<String, Group>::new();
    let mut add = |name: &ClaimName, reason: &'static EventReason, text: String| {
        let group = by_text.entry(text).or_insert(Group { reason, claims: Vec::new() });
        group.claims.push(described(observed, name));
    };
    for action in &plan.actions {
        if let Action::Claim { name, change } = action
            && let Some((reason, text)) = fate(change)
        {
            add(name, reason, text);
        }
    }
    if plan.actions.contains(&Action::Set(SetChange::RemoveFinalizer)) {
        for name in deleted_with_set(observed) {
            add(name, &reasons::CLAIM_DELETED, DELETED_WITH_SET.to_owned());
        }
    }
    let events = by_text.iter().flat_map(|(text, Group { reason, claims })| {
        grouped(claims).into_iter().map(move |names| reason.with(format!("{names}: {text}")))
    });
    events.collect()
}

const DELETED_WITH_SET: &str =
    "deleted with the CollaSet, because persistentVolumeClaimRetentionPolicy.whenDeleted is Delete";

/// Claims that Kubernetes' garbage collector deletes with the CollaSet.
fn deleted_with_set(observed: &Observed) -> impl Iterator<Item = &ClaimName> {
    let is_deleted = observed.claim_retention().when_deleted == Retention::Delete;
    let owned = observed.claims.values().filter(move |claim| is_deleted && !claim.orphan);
    owned.map(|claim| &claim.name)
}

/// Reason and text of the event of a change; `None` if it has no event.
fn fate(change: &ClaimChange) -> Option<(&'static EventReason, String)> {
    let kept =
        |cause: &str| (&reasons::CLAIM_RELEASED, format!("kept without owner, because {cause}"));
    match change {
        ClaimChange::Delete => Some((
            &reasons::CLAIM_DELETED,
            "deleted, because the instance was scaled in and \
             persistentVolumeClaimRetentionPolicy.whenScaled is Delete"
                .to_owned(),
        )),
        ClaimChange::Disown { reason } => Some(match reason {
            DisownReason::SetDeleted => kept("the CollaSet is being deleted"),
            DisownReason::PodExcluded => kept("the Pod is excluded"),
            DisownReason::PodReleased => kept("spec.selector does not match the Pod any more"),
            DisownReason::PodReplaced => kept("a Pod of another instance replaces its Pod"),
            DisownReason::AnotherMounted => {
                kept("the Pod of the instance uses another one of the claim template")
            }
            DisownReason::TemplateRemoved => kept("no revision has its claim template"),
        }),
        ClaimChange::Grow { storage } => {
            Some((&reasons::CLAIM_GROWING, format!("requesting {storage}, as the claim template")))
        }
        ClaimChange::Adopt
        | ClaimChange::Include { .. }
        | ClaimChange::SetInstance { .. }
        | ClaimChange::Keep
        | ClaimChange::DeleteWithSet => None,
    }
}

fn described(observed: &Observed, name: &ClaimName) -> String {
    let instance = observed.claims.get(name).and_then(|claim| claim.instance);
    instance.map_or_else(|| name.to_string(), |id| format!("{name} (instance {id})"))
}

/// Joins names, each group with at most [`NAMES_MAX`] bytes.
fn grouped(names: &[String]) -> Vec<String> {
    let mut groups: Vec<String> = Vec::new();
    for name in names {
        match groups.last_mut() {
            Some(group) if group.len() + name.len() <= NAMES_MAX => {
                group.push_str(", ");
                group.push_str(name);
            }
            _ => groups.push(format!("PersistentVolumeClaim {name}")),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use podops_api::ids::InstanceId;

    use super::*;
    use crate::view::ClaimView;

    fn deletion(name: &ClaimName) -> Action {
        Action::Claim { name: name.clone(), change: ClaimChange::Delete }
    }

    #[test]
    fn each_claim_is_named() {
        let names: Vec<ClaimName> = (0..40).map(|n| format!("web-data-{n:0>40}").into()).collect();
        let claims = names.iter().map(|name| {
            let instance = Some(InstanceId(7));
            (name.clone(), ClaimView { name: name.clone(), instance, ..ClaimView::default() })
        });
        let observed = Observed { claims: claims.collect(), ..Observed::default() };
        let actions = names.iter().map(deletion).collect();
        let events = events(&observed, &Plan { actions, ..Plan::default() });
        assert!(events.len() < 10 && events.iter().all(|event| event.message.len() < 1024));
        let all: String = events.iter().map(|event| event.message.as_str()).collect();
        assert!(names.iter().all(|name| all.contains(&format!("{name} (instance 7)"))), "{all}");
        assert!(events.iter().all(|event| event.message.ends_with("whenScaled is Delete")));
    }
}
