//! A CollaSet with its revisions and Pods, as lines of text. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use podops_api::{
    collaset::{CollaSet, CollaSetStatus},
    lifecycle::{Operation, Phase, PodLifecycle},
    well_known,
};
use serde::Serialize;

use crate::{
    explain::{self, Facts, age},
    pods::{is_in_service, label, labels, name},
};

/// Cells of the progress bar.
const BAR: usize = 20;
/// Maximum number of Pods of a revision that wait for nothing and are listed one by one.
const MAX_IDLE: usize = 10;

/// A CollaSet with its revisions.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Tree {
    /// `collaset/<name>`.
    pub subject: String,
    /// Number of desired Pods.
    pub desired: i32,
    /// Number of available Pods.
    pub available: i32,
    /// Number of available Pods at the updated revision.
    pub updated: i32,
    /// Reason and message of the condition Progressing.
    pub progress: String,
    /// Revisions that Pods run, the updated one first.
    pub revisions: Vec<RevisionNode>,
}

/// Pods of one revision.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RevisionNode {
    /// Name of the ControllerRevision.
    pub name: String,
    /// Whether it is the updated revision.
    pub is_updated: bool,
    /// Its Pods, those that wait first.
    pub pods: Vec<PodNode>,
}

/// One Pod.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodNode {
    /// Name.
    pub name: String,
    /// Phase of its operation, if it has one, and since when.
    pub phase: Option<String>,
    /// Whether it is in service.
    pub is_in_service: bool,
    /// What it waits for; empty if nothing.
    pub waits_for: String,
}

/// Returns the tree of a CollaSet; `None` if it is not among the facts.
#[must_use]
pub fn tree(facts: &Facts, set: &str) -> Option<Tree> {
    let set = facts.sets.iter().find(|known| known.metadata.name.as_deref() == Some(set))?;
    let status = set.status.clone().unwrap_or_default();
    let mut by_revision: BTreeMap<&str, Vec<PodNode>> = BTreeMap::new();
    for pod in facts.pods.iter().filter(|pod| is_owned(pod, set)) {
        let revision = label(pod, well_known::REVISION).unwrap_or_default();
        by_revision.entry(revision).or_default().push(node(facts, pod));
    }
    let mut revisions: Vec<RevisionNode> = by_revision
        .into_iter()
        .map(|(name, mut pods)| {
            pods.sort_by_key(|pod| (pod.waits_for.is_empty(), pod.name.clone()));
            RevisionNode {
                name: name.to_owned(),
                is_updated: name == status.updated_revision,
                pods,
            }
        })
        .collect();
    revisions.sort_by_key(|revision| !revision.is_updated);
    Some(Tree {
        subject: format!("collaset/{}", crate::rollout::name(set)),
        desired: set.spec.replicas.unwrap_or_default(),
        available: status.available_replicas,
        updated: status.updated_available_replicas,
        progress: progress(&status),
        revisions,
    })
}

fn is_owned(pod: &Pod, set: &CollaSet) -> bool {
    let owners = pod.metadata.owner_references.iter().flatten();
    owners.into_iter().any(|owner| Some(&owner.uid) == set.metadata.uid.as_ref())
}

fn progress(status: &CollaSetStatus) -> String {
    let progressing = podops_api::condition::find(&status.conditions, "Progressing");
    progressing.and_then(|condition| condition.reason.clone()).unwrap_or_default()
}

fn node(facts: &Facts, pod: &Pod) -> PodNode {
    let lifecycle = PodLifecycle::parse(&labels(pod)).unwrap_or_default();
    let phase = lifecycle.operations.values().find_map(phase);
    let is_idle = phase.is_none() && is_in_service(pod);
    let explanation = (!is_idle).then(|| explain::explain_pod(facts, name(pod))).flatten();
    let cause = explanation.and_then(|explanation| explanation.causes.into_iter().next());
    let waits_for = cause.map(|cause| {
        let since = cause.since.map(|since| format!(" {}", age(since, facts.now)));
        let first = cause.because.first().map_or(cause.message.clone(), |b| b.message.clone());
        format!("{first}{}", since.unwrap_or_default())
    });
    PodNode {
        name: name(pod).to_owned(),
        phase,
        is_in_service: is_in_service(pod),
        waits_for: waits_for.unwrap_or_default(),
    }
}

fn phase(operation: &Operation) -> Option<String> {
    (!operation.is_empty()).then(|| Phase::of(operation).to_string())
}

/// Returns the lines of a tree, at most `width` characters wide.
#[must_use]
pub fn lines(tree: &Tree, width: usize) -> Vec<String> {
    let Tree { subject, desired, available, updated, progress, revisions } = tree;
    let mut lines = vec![
        format!("{subject}  {progress}"),
        format!(
            "{}  {updated} of {desired} updated, {available} available",
            bar(*updated, *desired)
        ),
    ];
    for (index, revision) in revisions.iter().enumerate() {
        let is_last = index + 1 == revisions.len();
        let (branch, indent) = if is_last { ("└─", "  ") } else { ("├─", "│ ") };
        let updated = if revision.is_updated { " (updated)" } else { "" };
        let count = revision.pods.len();
        lines.push(format!("{branch} {}{updated}: {count} Pods", revision.name));
        lines.extend(pod_lines(revision).into_iter().map(|line| format!("{indent} {line}")));
    }
    lines.into_iter().map(|line| line.chars().take(width).collect()).collect()
}

fn pod_lines(revision: &RevisionNode) -> Vec<String> {
    let waiting = revision.pods.iter().filter(|pod| !pod.waits_for.is_empty()).count();
    let shown = revision.pods.len().min(waiting + MAX_IDLE);
    let mut lines: Vec<String> = revision.pods.iter().take(shown).map(pod_line).collect();
    let rest = revision.pods.len() - shown;
    if rest > 0 {
        lines.push(format!("… {rest} more in service"));
    }
    let last = lines.len().saturating_sub(1);
    let with_branch = |(index, line)| {
        let branch = if index == last { "└─" } else { "├─" };
        format!("{branch} {line}")
    };
    lines.into_iter().enumerate().map(with_branch).collect()
}

fn pod_line(pod: &PodNode) -> String {
    let PodNode { name, phase, is_in_service, waits_for } = pod;
    let mark = if *is_in_service { "✔" } else { "✖" };
    let phase = phase.as_deref().unwrap_or(if *is_in_service { "in service" } else { "" });
    format!("{mark} {name}  {phase:<10}  {waits_for}").trim_end().to_owned()
}

fn bar(done: i32, total: i32) -> String {
    let [done, total] = [done, total].map(|number| usize::try_from(number).unwrap_or_default());
    let filled = (done * BAR).checked_div(total).unwrap_or(BAR).min(BAR);
    format!("{}{}", "█".repeat(filled), "░".repeat(BAR - filled))
}
