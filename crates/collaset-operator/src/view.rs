//! What planning needs to know of a CollaSet and what belongs to it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use podops_api::{
    collaset::{CollaSetSpec, CollaSetStatus, PodNamingSuffixPolicy},
    lifecycle::Labels,
    resource_context::ContextDetail,
    well_known,
};
use serde_json::Value;

use crate::plan::resources::Resources;

/// A CollaSet and what belongs to it.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// The set's namespace.
    pub namespace: String,
    /// The set's name.
    pub name: String,
    /// The set's UID.
    pub uid: String,
    /// The version of the set that was looked at.
    pub version: String,
    /// The generation of its spec.
    pub generation: i64,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Its finalizers.
    pub finalizers: Vec<String>,
    /// What it should be.
    pub spec: CollaSetSpec,
    /// What it was said to be.
    pub status: CollaSetStatus,
    /// The Pods that it owns, in the order of their names.
    pub pods: Vec<PodView>,
    /// The claims that it owns, and those that nobody owns and its selector matches.
    pub claims: Vec<ClaimView>,
    /// Pods in its namespace that nobody controls and its selector matches.
    pub orphans: Vec<PodView>,
    /// Its ResourceContext, if there is one.
    pub contexts: Option<ContextsView>,
    /// The ControllerRevisions that it owns, and those of a set of its name that was deleted without
    /// them.
    pub revisions: Vec<RevisionView>,
    /// Names that other sets' revisions have, of which one may be a set of this name that is gone.
    pub foreign_revisions: BTreeSet<String>,
    /// Whether the cluster can give running containers other resources.
    pub can_resize: bool,
    /// Revisions that the server was asked about, as far as anybody remembers: whether it makes
    /// Pods of them, or why not.
    pub dry_runs: BTreeMap<String, Result<(), String>>,
    /// Pods, by UID, whose resizing to their revision the server refused, as far as anybody
    /// remembers.
    pub rejected_resizes: BTreeMap<String, String>,
    /// The UID of the last Pod of each instance, be it gone or not, as far as anybody remembers.
    pub last_pods: BTreeMap<i64, String>,
}

impl Observed {
    /// How many Pods it should have.
    #[must_use]
    pub fn replicas(&self) -> usize {
        usize::try_from(self.spec.replicas.unwrap_or_default()).unwrap_or_default()
    }

    /// Whether Pods are named by their instance IDs.
    #[must_use]
    pub fn has_persistent_names(&self) -> bool {
        let policy = self.spec.naming_strategy.as_ref().map(|n| n.pod_naming_suffix_policy);
        policy == Some(PodNamingSuffixPolicy::PersistentSequence)
    }

    /// The name of its ResourceContext.
    #[must_use]
    pub fn context_name(&self) -> &str {
        let named = self.spec.scale_strategy.as_ref().and_then(|s| s.context.as_deref());
        named.filter(|name| !name.is_empty()).unwrap_or(&self.name)
    }

    /// How much longer the Pod has to serve to count as available; nothing if it does not serve.
    #[must_use]
    pub fn until_available(&self, pod: &PodView, now: Timestamp) -> Option<Duration> {
        let least = i64::from(self.spec.min_ready_seconds.unwrap_or_default());
        let served = now.duration_since(pod.available_since()?);
        Some(Duration::try_from(SignedDuration::from_secs(least) - served).unwrap_or_default())
    }

    /// Whether the Pod has served for long enough.
    #[must_use]
    pub fn is_available(&self, pod: &PodView, now: Timestamp) -> bool {
        self.until_available(pod, now).is_some_and(|left| left.is_zero())
    }

    /// The Pods that count as replicas.
    ///
    /// A Pod on its way out does not, so that another takes its place at once, unless they have to
    /// share a name; nor does one that ended.
    pub fn active(&self) -> impl Iterator<Item = &PodView> {
        let names = self.has_persistent_names();
        self.pods.iter().filter(move |pod| names || !pod.deleting && !pod.terminal)
    }
}

/// A Pod as planning sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodView {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The version that was looked at.
    pub version: String,
    /// Its labels.
    pub labels: Labels,
    /// Its finalizers.
    pub finalizers: Vec<String>,
    /// Its annotations, as far as they are the template's business or ours.
    pub annotations: Option<BTreeMap<String, String>>,
    /// When it was created.
    pub created: Timestamp,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Whether it succeeded or failed for good.
    pub terminal: bool,
    /// Whether it has a node.
    pub scheduled: bool,
    /// Since when it is Ready, if it is.
    pub ready: Option<Timestamp>,
    /// The names of the claims that its volumes are.
    pub claims: BTreeSet<String>,
    /// Its containers, in order.
    pub containers: Vec<Container>,
    /// The image each container really runs, by container.
    pub image_ids: BTreeMap<String, String>,
    /// The run of each container, by container: another after each restart.
    pub container_ids: BTreeMap<String, String>,
    /// The generation of its spec, and the one that its node has seen, if it tells.
    pub generation: i64,
    /// See `generation`.
    pub observed_generation: Option<i64>,
    /// What each container really has, by container, as far as its node tells.
    pub given: BTreeMap<String, Resources>,
    /// What hinders it from having the resources that it should have.
    pub resize: Option<Resize>,
    /// What keeps it from running, in the words of scheduler or kubelet.
    pub not_running_reason: Option<String>,
}

/// A container of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// Its name.
    pub name: String,
    /// The image that it should run.
    pub image: String,
    /// What it should have.
    pub resources: Resources,
}

/// Why a Pod does not have the resources that it should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resize {
    /// Its node is at it.
    InProgress,
    /// Its node tries in vain, in its words.
    Failing(String),
    /// Its node has no room at the moment, in its words.
    Deferred(String),
    /// Its node can never give them, in its words.
    Infeasible(String),
}

/// The instance ID among labels, if there is a readable one.
#[must_use]
pub fn instance_id(labels: &Labels) -> Option<i64> {
    labels.get(well_known::INSTANCE_ID).and_then(|id| id.parse().ok())
}

impl PodView {
    /// Its instance ID, if it has a readable one.
    #[must_use]
    pub fn id(&self) -> Option<i64> {
        instance_id(&self.labels)
    }

    /// The name of the revision it was made from, or brought to.
    #[must_use]
    pub fn revision(&self) -> &str {
        self.labels.get(well_known::REVISION).map_or("", String::as_str)
    }

    /// The number in an annotation of it; 0 if there is none.
    #[must_use]
    pub fn annotated(&self, key: &str) -> i32 {
        let annotation = self.annotations.as_ref().and_then(|a| a.get(key));
        annotation.and_then(|number| number.parse().ok()).unwrap_or_default()
    }

    /// Since when it serves, if it does.
    fn available_since(&self) -> Option<Timestamp> {
        let stamp = self.labels.get(well_known::SERVICE_AVAILABLE)?;
        let since = stamp.parse().ok().and_then(|nanos| Timestamp::from_nanosecond(nanos).ok());
        // Anybody may have written the label, with any value.
        Some(since.or(self.ready).unwrap_or(Timestamp::UNIX_EPOCH))
    }
}

/// A PersistentVolumeClaim as planning sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimView {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The version that was looked at.
    pub version: String,
    /// Its labels.
    pub labels: Labels,
    /// The instance it is of, if it has a readable ID; read once, as claims are searched by it.
    pub instance: Option<i64>,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Whether nobody owns it.
    pub orphan: bool,
}

impl ClaimView {
    /// The name of the template it was made from.
    #[must_use]
    pub fn template(&self) -> &str {
        self.labels.get(well_known::CLAIM_TEMPLATE_NAME).map_or("", String::as_str)
    }

    /// The hash of the template it was made from.
    #[must_use]
    pub fn hash(&self) -> &str {
        self.labels.get(well_known::CLAIM_TEMPLATE_HASH).map_or("", String::as_str)
    }
}

/// A ResourceContext as planning sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContextsView {
    /// Its UID.
    pub uid: String,
    /// The version that was looked at.
    pub version: String,
    /// Its entries.
    pub entries: Vec<ContextDetail>,
}

/// A ControllerRevision as planning sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RevisionView {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The version that was looked at.
    pub version: String,
    /// Whether nobody controls it.
    pub orphan: bool,
    /// Its place in history.
    pub revision: i64,
    /// What it holds.
    pub data: Value,
}

/// The IDs that Pods carry.
#[must_use]
pub fn ids<'a>(pods: impl Iterator<Item = &'a PodView>) -> BTreeSet<i64> {
    pods.filter_map(PodView::id).collect()
}

/// Keeps in mind the UID of each instance's last Pod.
pub fn record_last_pods(known: &mut BTreeMap<i64, String>, pods: &[PodView]) {
    // The newest last, as there may be more than one of an instance.
    let mut pods: Vec<&PodView> = pods.iter().collect();
    pods.sort_by_key(|pod| pod.created);
    for pod in pods {
        if let Some(id) = pod.id()
            && known.get(&id) != Some(&pod.uid)
            && !(pod.deleting && known.contains_key(&id))
        {
            known.insert(id, pod.uid.clone());
        }
    }
}
