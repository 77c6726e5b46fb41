//! The template's revision and the revision history.

use std::collections::BTreeSet;

use podops_api::{ids::RevisionName, well_known};

use crate::{
    plan::{
        action::{Action, RevisionChange},
        planner::{Blocker, Planner},
        state::revisions::Record,
    },
    reasons,
    view::{Observed, RevisionView},
};

/// Creates the template's revision and deletes unused revisions beyond `historyLimit`.
pub(in crate::plan) fn plan(planner: &mut Planner<'_>) {
    let observed = planner.observed;
    record(planner);
    if let Some(name) = planner.revisions.missing.clone() {
        planner.block(Blocker::updating(
            &reasons::REVISION_NOT_FOUND,
            format!("spec.updateStrategy.revision: this CollaSet has no ControllerRevision {name}"),
        ));
    }
    for orphan in observed.revisions.values().filter(|r| r.orphan) {
        let name = orphan.name.clone();
        planner.add(Action::Revision { name, change: RevisionChange::Adopt });
    }
    let revisions = &planner.revisions;
    let mut used = used_revisions(observed);
    used.extend(
        [&*revisions.updated, &*revisions.current, &*revisions.template].map(String::as_str),
    );
    let kept = usize::try_from(observed.spec.history_limit).unwrap_or_default() + 2;
    let mut oldest_first: Vec<&RevisionView> =
        observed.revisions.values().filter(|r| !r.orphan).collect();
    oldest_first.sort_by_key(|r| r.revision);
    let surplus = oldest_first.len().saturating_sub(kept);
    let unused = oldest_first.into_iter().filter(|r| !used.contains(r.name.as_str()));
    let unused: Vec<RevisionName> = unused.take(surplus).map(|r| r.name.clone()).collect();
    for name in unused {
        planner.add(Action::Revision { name, change: RevisionChange::Delete });
    }
}

/// Plans the change that makes the template's revision the newest.
fn record(planner: &mut Planner<'_>) {
    match planner.revisions.record.clone() {
        Record::UpToDate => {}
        Record::MakeNewest { position } => {
            let name = planner.revisions.template.clone();
            let change = RevisionChange::MakeNewest { position };
            planner.add(Action::Revision { name, change });
        }
        Record::Create(new) => planner.add(Action::CreateRevision(new)),
    }
}

/// Revisions that Pods have, or that instances' next Pods will have.
fn used_revisions(observed: &Observed) -> BTreeSet<&str> {
    let of_pods = observed.all().map(|pod| pod.revision.as_str());
    let own = observed.instance_entries().iter().filter(|entry| observed.owns(entry));
    let of_instances =
        own.filter_map(|entry| entry.data.get(well_known::context::REVISION)).map(String::as_str);
    of_pods.chain(of_instances).collect()
}
