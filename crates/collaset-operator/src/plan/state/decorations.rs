//! Chooses the decorations of each instance's Pods.

use std::collections::BTreeMap;

use podops_api::{
    ids::{InstanceId, RevisionName},
    lifecycle::Labels,
    well_known,
};

use super::{facts::Facts, instance_ids::Instances};
use crate::{
    decoration::{
        Choice, Decorated,
        inject::{Fitting, Host, fit},
    },
    view::PodView,
};

/// Key of the results of [`fit`]: few combinations, compared with the number of Pods.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Case {
    revision: RevisionName,
    choices: Vec<Choice>,
}

/// Chooses decorations; each combination of revision and choices is computed once.
pub(in crate::plan) struct Decorator<'a> {
    facts: &'a Facts<'a>,
    known: BTreeMap<Case, Fitting>,
}

impl<'a> Decorator<'a> {
    pub(in crate::plan) fn new(facts: &'a Facts<'a>) -> Self {
        Self { facts, known: BTreeMap::new() }
    }

    /// Chooses the decorations of an instance whose Pods are to be at this revision, and records
    /// them in the ResourceContext if they do not follow from the PodDecorations alone.
    pub(in crate::plan) fn choose(
        &mut self,
        id: InstanceId,
        pod: Option<&PodView>,
        revision: &RevisionName,
        instances: &mut Instances,
    ) -> Fitting {
        let decorations = &self.facts.observed.decorations;
        if decorations.is_empty() {
            return Fitting::default();
        }
        let recorded = instances.decorations(id);
        let next_labels;
        let decorated = if let Some(pod) = pod {
            Decorated {
                instance: id,
                set: &self.facts.observed.name,
                labels: &pod.labels,
                applied: &pod.decorations,
                is_new: false,
            }
        } else {
            next_labels = self.labels_of_next_pod(id, revision);
            Decorated {
                instance: id,
                set: &self.facts.observed.name,
                labels: &next_labels,
                applied: &recorded,
                is_new: true,
            }
        };
        let mut choices = decorations.choices(&decorated);
        // Only a change of the Pod's own revision decides on its decorations again.
        if let Some(pod) = pod.filter(|pod| pod.revision == *revision) {
            for choice in &mut choices {
                choice.kept = pod.decorations.revision(&choice.name).cloned();
            }
        }
        let fitting = self.fit(revision, choices);
        let to_record = decorations.to_record(decorated.labels, &fitting.applied);
        if !recorded.is_empty() || to_record.is_some() {
            let is_recorded = to_record.as_ref().unwrap_or(&fitting.applied) == &recorded;
            if !is_recorded {
                instances.record_decorations(id, to_record.as_ref());
            }
        }
        fitting
    }

    /// Returns the labels that decorations select the next Pod of an instance by.
    fn labels_of_next_pod(&self, id: InstanceId, revision: &RevisionName) -> Labels {
        let template = self.facts.revisions.template(revision).unwrap_or_default();
        let mut labels = template.labels();
        for (key, value) in [
            (well_known::INSTANCE_ID, id.to_string()),
            (well_known::CONTROL, well_known::CONTROL_ON.to_owned()),
            (well_known::REVISION, revision.to_string()),
        ] {
            labels.insert(key.to_owned(), value);
        }
        labels
    }

    fn fit(&mut self, revision: &RevisionName, choices: Vec<Choice>) -> Fitting {
        let facts = self.facts;
        let known = self.known.entry(Case { revision: revision.clone(), choices });
        let fitted = known.or_insert_with_key(|case| {
            let template = facts.revisions.template(&case.revision).unwrap_or_default();
            let host = Host {
                selector: &facts.observed.spec.selector,
                claims: facts.revisions.claim_templates(&case.revision),
                revision: case.revision.clone(),
                dry_runs: &facts.observed.dry_runs,
            };
            fit(&template, &host, &case.choices, &facts.observed.decorations)
        });
        fitted.clone()
    }
}
