//! Observed state of PodDecorations, from the caches.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kube::Resource as _;
use podops_api::{
    collaset::{CollaSet, REPLICAS},
    ids::{InstanceId, RevisionName},
    well_known,
};
use podops_client::{decode::Decoded, object_key::ObjectKey};

use super::super::cache::{Caches, SlimDecoration, SlimRevision, owner_name};
use crate::{
    compat::{claim_hash::template_names, revision_hash},
    decoration::{
        Decorated, Decorations, Instance, Scope,
        applied::{AppliedDecorations, label},
        inject::{Host, fit},
        rollout::{Candidate, in_scope},
        view::{
            DecorationRevisionView, DecorationView, ObservedDecoration, SelectedPod, SelectedSet,
            is_decorated,
        },
    },
    view::{DryRuns, PodView},
};

/// Returns the decorations of a namespace; the caches' part of [`Observed`](crate::view::Observed).
pub(crate) fn observe(namespace: &str, caches: &Caches) -> Decorations {
    let mut decorations = Decorations::default();
    let mut members = Members::new(namespace, caches);
    for decoration in caches.decorations.find(namespace) {
        match &*decoration {
            Decoded::Object(decoration) => {
                let view = view(decoration, caches);
                let mut known = view.decoration(members.in_scope(&view));
                // Its revisions are still needed to update Pods without it.
                known.selector = known.selector.filter(|_| !view.deleting);
                decorations.known.insert(view.name, known);
            }
            Decoded::Invalid(invalid) => {
                let name = invalid.metadata.name.clone().unwrap_or_default();
                decorations.undecodable.insert(name.into());
            }
        }
    }
    decorations
}

/// Observed state of one decoration.
fn view(decoration: &SlimDecoration, caches: &Caches) -> DecorationView {
    let metadata = &decoration.metadata;
    let name = metadata.name.clone().unwrap_or_default();
    let namespace = metadata.namespace.clone().unwrap_or_default();
    let uid = metadata.uid.clone().unwrap_or_default();
    let revisions: BTreeMap<RevisionName, DecorationRevisionView> =
        caches.revisions.find(&uid).iter().filter_map(|known| revision(known)).collect();
    let prefix = revision_hash::prefix(&name);
    let same_prefix = caches.revisions.with_name_prefix(&namespace, &prefix);
    let foreign_revisions = same_prefix
        .iter()
        .filter_map(|revision| Some(RevisionName::from(revision.metadata.name.as_deref()?)))
        .filter(|name| !revisions.contains_key(name))
        .collect();
    DecorationView {
        uid: uid.into(),
        resource_version: metadata.resource_version.clone().unwrap_or_default().into(),
        generation: metadata.generation.unwrap_or_default(),
        deleting: metadata.deletion_timestamp.is_some(),
        finalizers: metadata.finalizers.clone().unwrap_or_default(),
        spec: decoration.spec.clone(),
        status: decoration.status.clone(),
        details: decoration.details,
        name: name.into(),
        namespace,
        revisions,
        foreign_revisions,
    }
}

/// Name and view of a decoration's revision; `None` if it is no decoration's.
fn revision(revision: &SlimRevision) -> Option<(RevisionName, DecorationRevisionView)> {
    let metadata = &revision.metadata;
    let view = DecorationRevisionView {
        uid: metadata.uid.clone().unwrap_or_default().into(),
        resource_version: metadata.resource_version.clone().unwrap_or_default().into(),
        revision: revision.revision,
        content: revision.decoration.clone()?,
    };
    Some((metadata.name.as_deref()?.into(), view))
}

/// Instances of all CollaSets of a namespace; read only if a decoration has a partition.
struct Members<'a> {
    namespace: &'a str,
    caches: &'a Caches,
    known: Option<Vec<Member>>,
}

/// Instance of a CollaSet.
struct Member {
    instance: Instance,
    /// Its Pod; `None` without one.
    pod: Option<Arc<PodView>>,
    /// Decorations that are recorded for it.
    recorded: AppliedDecorations,
}

impl<'a> Members<'a> {
    fn new(namespace: &'a str, caches: &'a Caches) -> Self {
        Self { namespace, caches, known: None }
    }

    /// Returns the instances that get the updated revision of a decoration with a partition.
    fn in_scope(&mut self, decoration: &DecorationView) -> Option<BTreeSet<Instance>> {
        let partition = decoration.partition()?;
        let selector = decoration.decoration(None);
        let updated = decoration.updated_revision();
        let members = self.known.get_or_insert_with(|| members(self.namespace, self.caches));
        let candidates = members.iter().filter_map(|member| {
            let recorded = member.recorded.revision(&decoration.name);
            let labels = member.pod.as_ref().map(|pod| &pod.labels);
            let is_selected = match labels {
                Some(labels) => selector.selects(labels),
                // The labels of its next Pod are not known here.
                None => recorded.is_some(),
            };
            let applied = labels.and_then(|labels| labels.get(&label(&decoration.name)));
            is_selected.then(|| Candidate {
                instance: member.instance.clone(),
                applied: applied.map(|name| name.as_str().into()),
                recorded: recorded.cloned(),
            })
        });
        Some(in_scope(candidates.collect(), updated.name(), partition))
    }
}

/// Returns the instances of all CollaSets of a namespace.
fn members(namespace: &str, caches: &Caches) -> Vec<Member> {
    let mut members = BTreeMap::<Instance, Member>::new();
    for contexts in caches.contexts.with_name_prefix(namespace, "") {
        for entry in &contexts.spec.contexts {
            let Some(set) = entry.data.get(well_known::context::OWNER) else { continue };
            let instance = Instance { id: entry.id, set: set.clone() };
            let recorded = entry.data.get(well_known::context::DECORATIONS);
            let recorded = AppliedDecorations::parse(recorded.map(String::as_str));
            let member = Member { instance: instance.clone(), pod: None, recorded };
            members.insert(instance, member);
        }
    }
    for pod in pods_of_sets(namespace, caches) {
        let instance = Instance { id: pod.id, set: pod.set };
        let unknown = Member {
            instance: instance.clone(),
            pod: None,
            recorded: AppliedDecorations::default(),
        };
        members.entry(instance).or_insert(unknown).pod = Some(pod.pod);
    }
    members.into_values().collect()
}

/// Pod of a CollaSet.
struct PodOfSet {
    set: String,
    id: InstanceId,
    pod: Arc<PodView>,
}

/// Returns the active Pods of all CollaSets of a namespace.
fn pods_of_sets(namespace: &str, caches: &Caches) -> Vec<PodOfSet> {
    let pods = caches.pods.with_name_prefix(namespace, "").into_iter();
    let active = pods.filter(|pod| !pod.view.deleting && !pod.view.terminal);
    active
        .filter_map(|pod| {
            let set = owner_name(&*pod)?;
            let pod = pod.view.clone();
            Some(PodOfSet { set, id: pod.instance?, pod })
        })
        .collect()
}

/// Observes one decoration and its Pods. `set` returns the CollaSet of a name.
pub(crate) fn observe_one(
    decoration: &SlimDecoration,
    caches: &Caches,
    set: impl Fn(&str) -> Option<CollaSet>,
) -> ObservedDecoration {
    let view = view(decoration, caches);
    let mut members = Members::new(&view.namespace, caches);
    let known = view.decoration(members.in_scope(&view));
    let mut observed = ObservedDecoration::default();
    for PodOfSet { set, id, pod } in pods_of_sets(&view.namespace, caches) {
        let labels = &pod.labels;
        let selected = !view.deleting && known.selects(labels);
        if !selected && !is_decorated(labels, &view.name) {
            continue;
        }
        let instance = Instance { id, set: set.clone() };
        observed.pods.push(SelectedPod {
            name: pod.name.clone(),
            selected,
            in_scope: match &known.scope {
                Scope::All => true,
                Scope::Labels(selector) => kube::core::SelectorExt::matches(selector, labels),
                Scope::Instances(instances) => instances.contains(&instance),
            },
            revision: labels.get(&label(&view.name)).map(|name| name.as_str().into()),
            ready: pod.ready.is_some(),
            available: labels.contains_key(well_known::SERVICE_AVAILABLE),
            set,
        });
    }
    let names: BTreeSet<&String> = observed.pods.iter().map(|pod| &pod.set).collect();
    let others = observe(&view.namespace, caches);
    let sets = names.into_iter().filter_map(|name| {
        let dry_runs = caches.dry_runs.of(&ObjectKey::new(&view.namespace, name));
        Some((name.clone(), selected_set(&set(name)?, &view, &others, &dry_runs)))
    });
    observed.sets = sets.collect();
    observed.recorded = recorded(&view, caches);
    observed.decoration = view;
    observed
}

/// Revisions of the decoration that ResourceContexts of its namespace record.
fn recorded(view: &DecorationView, caches: &Caches) -> BTreeSet<RevisionName> {
    let contexts = caches.contexts.with_name_prefix(&view.namespace, "");
    let entries = contexts.iter().flat_map(|contexts| &contexts.spec.contexts);
    let records = entries.filter_map(|entry| entry.data.get(well_known::context::DECORATIONS));
    records
        .filter_map(|json| AppliedDecorations::parse(Some(json)).revision(&view.name).cloned())
        .collect()
}

/// Returns whether the CollaSet has all its Pods, and why the decoration does not fit its template.
fn selected_set(
    set: &CollaSet,
    view: &DecorationView,
    decorations: &Decorations,
    dry_runs: &DryRuns,
) -> SelectedSet {
    let status = set.status.clone().unwrap_or_default();
    let labels = set.spec.template.labels();
    let decorated = Decorated {
        instance: InstanceId::default(),
        set: set.meta().name.as_deref().unwrap_or_default(),
        labels: &labels,
        applied: &AppliedDecorations::default(),
        is_new: true,
    };
    let choices = decorations.choices(&decorated);
    let host = Host {
        selector: &set.spec.selector,
        claims: template_names(&set.spec.volume_claim_templates),
        revision: status.updated_revision.as_str().into(),
        dry_runs,
    };
    let fitting = fit(&set.spec.template, &host, &choices, decorations);
    let unfit = fitting.unfit.into_iter().find(|unfit| unfit.name == view.name);
    SelectedSet {
        complete: set.spec.replicas.unwrap_or(REPLICAS) == status.replicas,
        conflict: unfit.map(|unfit| unfit.conflict.to_string()),
    }
}
