//! Input of planning: one CollaSet and the objects that belong to it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString};
use podops_api::{
    collaset::{
        ClaimRetention, CollaSetSpec, CollaSetStatus, PodNamingSuffixPolicy, REPLICAS, Retention,
        RollingUpdate,
    },
    condition,
    ids::{
        ClaimName, DecorationName, InstanceId, LifecycleTime, PodName, ResourceVersion,
        RevisionName, Uid,
    },
    image_reference::other_reference,
    int_or_percent::{Rounding, resolve},
    lifecycle::{self, LabelKind, Labels},
    resource_context::ContextDetail,
    well_known,
};
use serde_json::Value;

use crate::{
    decoration::{Decorations, applied::AppliedDecorations},
    template::resources::Resources,
};

/// Operation that a CollaSet runs on its Pods, under the operation ID `collaset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnOperation {
    /// Brings the Pod to another revision.
    Update,
    /// Deletes a surplus Pod.
    ScaleIn,
}

impl OwnOperation {
    /// Value of the label `operation-type…`.
    #[must_use]
    pub const fn operation_type(self) -> &'static str {
        match self {
            Self::Update => lifecycle::UPDATE,
            Self::ScaleIn => lifecycle::SCALE_IN,
        }
    }
}

/// Revisions from which a Pod is built.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodSource {
    /// Revision of its CollaSet.
    pub revision: RevisionName,
    /// Revisions of PodDecorations.
    pub decorations: AppliedDecorations,
}

impl PodSource {
    /// Returns whether the source has all decorations of another one of the same revision, and
    /// further ones.
    #[must_use]
    pub fn has_more_than(&self, other: &Self) -> bool {
        let has = |(name, revision): (&DecorationName, &RevisionName)| {
            self.decorations.revision(name) == Some(revision)
        };
        self.revision == other.revision
            && self.decorations != other.decorations
            && other.decorations.iter().all(has)
    }
}

impl From<RevisionName> for PodSource {
    fn from(revision: RevisionName) -> Self {
        Self { revision, decorations: AppliedDecorations::default() }
    }
}

impl fmt::Display for PodSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.revision)?;
        self.decorations.iter().try_for_each(|(_, revision)| write!(f, "+{revision}"))
    }
}

/// Last step of a rollout whose pause a user has ended, see [`well_known::APPROVED_STEP`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApprovedStep {
    /// Revision that is rolled out.
    pub revision: RevisionName,
    /// Number of the step, from 1.
    pub step: usize,
}

impl ApprovedStep {
    /// Parses the annotation; `None` if it is not `<revision>/<number>`.
    #[must_use]
    pub fn parse(annotation: &str) -> Option<Self> {
        let (revision, step) = annotation.rsplit_once('/')?;
        Some(Self { revision: revision.into(), step: step.parse().ok()? })
    }
}

/// Result of a dry-run creation of a Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DryRunResult {
    /// The API server would create the Pod.
    Accepted,
    /// The API server rejects the Pod, with its message.
    Rejected {
        /// The API server's message.
        message: String,
        /// True if it was rejected after a Pod with fewer of the decorations was accepted, so that
        /// the others are the cause, and not an object that was missing meanwhile.
        is_confirmed: bool,
    },
}

/// Results of dry-run creations of Pods.
pub type DryRuns = BTreeMap<PodSource, DryRunResult>;

/// Records the result of a dry run.
pub fn record_dry_run(known: &mut DryRuns, source: PodSource, mut result: DryRunResult) {
    match &mut result {
        DryRunResult::Accepted => {
            let more = known.iter_mut().filter(|(other, _)| other.has_more_than(&source));
            for (_, rejected) in more {
                if let DryRunResult::Rejected { is_confirmed, .. } = rejected {
                    *is_confirmed = false;
                }
            }
        }
        DryRunResult::Rejected { is_confirmed, .. } => {
            let mut accepted =
                known.iter().filter(|(_, result)| **result == DryRunResult::Accepted);
            *is_confirmed = accepted.any(|(other, _)| source.has_more_than(other));
        }
    }
    known.insert(source, result);
}

/// Observed state of one CollaSet.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// Namespace of the CollaSet.
    pub namespace: String,
    /// Name of the CollaSet.
    pub name: String,
    /// UID of the CollaSet.
    pub uid: Uid,
    /// UID of the namespace; `None` if it is not needed.
    pub namespace_uid: Option<Uid>,
    /// Observed resourceVersion of the CollaSet.
    pub resource_version: ResourceVersion,
    /// `metadata.generation` of the CollaSet.
    pub generation: i64,
    /// True if the CollaSet has a deletion timestamp.
    pub deleting: bool,
    /// Finalizers of the CollaSet.
    pub finalizers: Vec<String>,
    /// Desired state.
    pub spec: CollaSetSpec,
    /// Last reported status.
    pub status: CollaSetStatus,
    /// Pods controlled by the CollaSet.
    pub pods: BTreeMap<PodName, Arc<PodView>>,
    /// PVCs owned by the CollaSet, and unowned PVCs that its selector matches.
    pub claims: BTreeMap<ClaimName, ClaimView>,
    /// Pods of the namespace without a controller that the selector matches or `podToInclude`
    /// lists.
    pub orphans: BTreeMap<PodName, Arc<PodView>>,
    /// Names of the Pods in `podToInclude` that another controller owns.
    pub foreign_pods: BTreeSet<PodName>,
    /// ResourceContext of the CollaSet; `None` if not found.
    pub contexts: Option<ContextsView>,
    /// ControllerRevisions owned by the CollaSet, and those left by a deleted CollaSet of the same
    /// name.
    pub revisions: BTreeMap<RevisionName, RevisionView>,
    /// Names of ControllerRevisions that have this CollaSet's name prefix but other owners,
    /// possibly a deleted CollaSet of the same name.
    pub foreign_revisions: BTreeSet<RevisionName>,
    /// `maxUnavailable` of a CollaSet that does not set it; `None` for no limit.
    pub default_max_unavailable: Option<IntOrString>,
    /// True if the cluster serves the `pods/resize` subresource.
    pub can_resize: bool,
    /// Revision that the annotation [`well_known::RESUME_ROLLOUT`] names.
    pub resumed_revision: Option<RevisionName>,
    /// Step that the annotation [`well_known::APPROVED_STEP`] names.
    pub approved_step: Option<ApprovedStep>,
    /// PodDecorations of the namespace.
    pub decorations: Decorations,
    /// Remembered results of dry-run creations of Pods.
    pub dry_runs: DryRuns,
    /// Remembered Pods of which the API server rejected the last create.
    pub rejected_creates: BTreeSet<PodSource>,
    /// Remembered Pods, by UID, whose resize the API server rejected, with the revision that they
    /// were resized to.
    pub rejected_resizes: BTreeMap<Uid, RevisionName>,
    /// Remembered names of Pods that a create found taken by an object of another owner.
    pub taken_pods: BTreeSet<PodName>,
    /// Remembered names of PVCs that a create found taken by an object of another owner.
    pub taken_claims: BTreeSet<ClaimName>,
    /// Remembered UIDs of the Pods whose labels the selector has not matched since they were observed
    /// first.
    pub never_selected: BTreeSet<Uid>,
    /// Remembered time before which the next Pod of an instance is not created, because its last
    /// ones have ended within seconds.
    pub creation_due: BTreeMap<InstanceId, Timestamp>,
    /// Remembered last Pod of each instance, which may be deleted.
    pub last_pods: BTreeMap<InstanceId, LastPod>,
}

/// Last observed Pod of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastPod {
    /// UID of the Pod.
    pub uid: Uid,
    /// Revision of the Pod; `None` if it was being updated, so that its instance goes on with the
    /// revision of the update.
    pub revision: Option<RevisionName>,
}

impl Observed {
    /// Returns whether `spec.selector` matches the labels.
    #[must_use]
    pub fn selects(&self, labels: &Labels) -> bool {
        is_selected(&self.spec.selector, labels)
    }

    /// Returns whether the CollaSet has this finalizer.
    #[must_use]
    pub fn has_finalizer(&self, name: &str) -> bool {
        self.finalizers.iter().any(|finalizer| finalizer == name)
    }

    /// Entries of the ResourceContext, also those of other workloads.
    #[must_use]
    pub fn instance_entries(&self) -> &[ContextDetail] {
        self.contexts.as_ref().map_or(&[], |contexts| &contexts.entries)
    }

    /// Returns whether an entry of the ResourceContext belongs to the CollaSet.
    #[must_use]
    pub fn owns(&self, entry: &ContextDetail) -> bool {
        entry.data.get(well_known::context::OWNER).is_some_and(|owner| *owner == self.name)
    }

    /// Returns the desired number of Pods.
    #[must_use]
    pub fn replicas(&self) -> usize {
        if self.keeps_zero_replicas() {
            return 0;
        }
        usize::try_from(self.spec.replicas.unwrap_or(REPLICAS)).unwrap_or_default()
    }

    /// Returns whether the default of `replicas`, which was 0 in earlier releases, is not followed:
    /// the CollaSet was complete without a Pod, and has not been changed since.
    #[must_use]
    pub fn keeps_zero_replicas(&self) -> bool {
        let status = &self.status;
        let ready = condition::find(&status.conditions, "Ready");
        self.spec.replicas == Some(REPLICAS)
            && status.observed_generation == self.generation
            && status.replicas == 0
            && ready.is_some_and(|ready| ready.status == "True")
            && self.pods.is_empty()
    }

    /// Returns whether Pods are named by their instance IDs.
    #[must_use]
    pub fn has_persistent_names(&self) -> bool {
        let policy = self.spec.naming_strategy.as_ref().map(|n| n.pod_naming_suffix_policy);
        policy == Some(PodNamingSuffixPolicy::PersistentSequence)
    }

    /// Name of the ResourceContext: `spec.scaleStrategy.context`, or else the CollaSet's name.
    #[must_use]
    pub fn context_name(&self) -> &str {
        context_name(&self.spec, &self.name)
    }

    /// Time until the Pod has been in service for `minReadySeconds`; `None` if it is not in
    /// service.
    #[must_use]
    pub fn until_available(&self, pod: &PodView, now: Timestamp) -> Option<Duration> {
        let min_ready = i64::from(self.spec.min_ready_seconds.unwrap_or_default());
        let available_for = now.duration_since(pod.available_since()?);
        Some(
            Duration::try_from(SignedDuration::from_secs(min_ready) - available_for)
                .unwrap_or_default(),
        )
    }

    /// Returns whether the Pod has been in service for at least `minReadySeconds`.
    #[must_use]
    pub fn is_available(&self, pod: &PodView, now: Timestamp) -> bool {
        self.until_available(pod, now).is_some_and(|left| left.is_zero())
    }

    /// All Pods, also terminating and terminal ones.
    pub fn all(&self) -> impl Iterator<Item = &PodView> {
        self.pods.values().map(Arc::as_ref)
    }

    /// Pods that count as replicas.
    ///
    /// Terminating and terminal Pods are not replicas, so that their replacements are created at
    /// once. With persistent names they are, because the replacement needs the same name.
    pub fn active(&self) -> impl Iterator<Item = &PodView> {
        let names = self.has_persistent_names();
        self.all().filter(move |pod| names || !pod.deleting && !pod.terminal)
    }

    /// Parameters of the rolling update, if the spec has any.
    #[must_use]
    pub fn rolling_update(&self) -> Option<&RollingUpdate> {
        self.spec.update_strategy.rolling_update.as_ref()
    }

    /// Returns whether the update covers labelled Pods only.
    #[must_use]
    pub fn is_by_label(&self) -> bool {
        self.rolling_update().is_some_and(|rolling| rolling.by_label.is_some())
    }

    /// Number of instances that stay at older revisions.
    #[must_use]
    pub fn partition(&self) -> usize {
        self.specified_partition().map_or(0, |partition| kept_back(partition, self.replicas()))
    }

    fn specified_partition(&self) -> Option<&IntOrString> {
        self.rolling_update()?.by_partition.as_ref()?.partition.as_ref()
    }

    /// Returns whether the spec keeps Pods back from the update, even if there are too few of them.
    #[must_use]
    pub fn has_partition(&self) -> bool {
        match self.specified_partition() {
            Some(IntOrString::Int(count)) => *count > 0,
            Some(IntOrString::String(percentage)) => percentage != "0%",
            None => false,
        }
    }

    /// Returns whether the rollout of a revision has been complete: every Pod in the update's scope
    /// was available. Pods that are lost or fail afterwards do not change that.
    #[must_use]
    pub fn is_rolled_out(&self, revision: &RevisionName) -> bool {
        match &self.status.rolled_out_revision {
            Some(rolled_out) => *rolled_out == **revision,
            // A status of Kuperator, or of an earlier release.
            None => {
                self.status.observed_generation > 0 && self.status.current_revision == **revision
            }
        }
    }

    /// Retention policy of the CollaSet's PVCs: Retain or Delete for each case.
    #[must_use]
    pub fn claim_retention(&self) -> ClaimRetention {
        let strategy = self.spec.scale_strategy.as_ref();
        let policy = strategy.and_then(|s| s.persistent_volume_claim_retention_policy.clone());
        let policy = policy.unwrap_or_default();
        let default = self.claim_retention_default().or(Retention::Delete);
        ClaimRetention {
            when_deleted: policy.when_deleted.or(default),
            when_scaled: policy.when_scaled.or(default),
        }
    }

    /// Retention policy to record in the status: Retain for a CollaSet that has no status yet, so
    /// that CollaSets of Kuperator and of earlier releases keep their default, which is Delete.
    #[must_use]
    pub fn claim_retention_default(&self) -> Retention {
        let is_new = self.status.observed_generation == 0;
        if is_new { Retention::Retain } else { self.status.claim_retention_default }
    }

    /// Returns whether PVCs exist, or are to be created, that outlive the CollaSet.
    #[must_use]
    pub fn has_claims_to_keep(&self) -> bool {
        let has_claims = !self.spec.volume_claim_templates.is_empty() || !self.claims.is_empty();
        has_claims && self.claim_retention().when_deleted == Retention::Retain
    }

    /// PVCs that the Pod mounts.
    pub fn claims_of<'a>(&'a self, pod: &'a PodView) -> impl Iterator<Item = &'a ClaimView> {
        pod.claims.keys().filter_map(|name| self.claims.get(name))
    }
}

/// Returns whether the selector of a CollaSet matches the labels.
#[must_use]
pub fn is_selected(selector: &LabelSelector, labels: &Labels) -> bool {
    let equal = selector.match_labels.iter().flatten().all(|(k, v)| labels.get(k) == Some(v));
    let expressions = selector.match_expressions.iter().flatten();
    equal
        && expressions.into_iter().all(|e| {
            let value = labels.get(&e.key);
            let listed = value.is_some_and(|v| e.values.iter().flatten().any(|known| known == v));
            match e.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                _ => false,
            }
        })
}

/// Number of `replicas` Pods that a partition does not update. A percentage below 100 % leaves at
/// least one Pod to update.
#[must_use]
pub fn kept_back(partition: &IntOrString, replicas: usize) -> usize {
    let count = resolve(partition, replicas, Rounding::Up);
    match partition {
        IntOrString::String(percentage) if percentage != "100%" => {
            count.min(replicas.saturating_sub(1))
        }
        IntOrString::String(_) | IntOrString::Int(_) => count,
    }
}

/// Observed state of one Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodView {
    /// Name of the Pod.
    pub name: PodName,
    /// UID of the Pod.
    pub uid: Uid,
    /// Observed resourceVersion.
    pub resource_version: ResourceVersion,
    /// Labels of the Pod.
    pub labels: Labels,
    /// Instance ID, from the labels; `None` if it is missing or not a number.
    pub instance: Option<InstanceId>,
    /// Current revision, from the labels; empty if it is missing.
    pub revision: RevisionName,
    /// Decorations of the Pod, from the annotation.
    pub decorations: AppliedDecorations,
    /// Finalizers of the Pod.
    pub finalizers: Vec<String>,
    /// Annotations, without kubectl's last-applied copy; `None` if the Pod has no annotations
    /// field.
    pub annotations: Option<BTreeMap<String, String>>,
    /// Creation timestamp.
    pub created: Timestamp,
    /// True if the Pod has a deletion timestamp.
    pub deleting: bool,
    /// True if the phase is Succeeded or Failed.
    pub terminal: bool,
    /// Name of the node; `None` before the Pod is scheduled.
    pub node: Option<String>,
    /// Time at which the Pod became Ready; `None` if it is not.
    pub ready: Option<Timestamp>,
    /// State of a Pod that is not Ready; `None` if it is, or nothing is reported.
    pub unready: Option<Unready>,
    /// Names of the volumes of the PVCs that the Pod mounts, by the name of the PVC.
    pub claims: BTreeMap<ClaimName, String>,
    /// Containers in spec order.
    pub containers: Vec<Container>,
    /// State of the containers, as the kubelet reports it.
    pub reports: Vec<ContainerReport>,
    /// `metadata.generation`.
    pub generation: i64,
    /// Generation observed by the kubelet; `None` on clusters whose kubelets do not report it.
    pub observed_generation: Option<i64>,
    /// State of a pending resize; `None` without one.
    pub resize: Option<Resize>,
    /// Reason, reported by scheduler or kubelet, why the Pod does not run.
    pub not_running_reason: Option<String>,
}

/// State of a Pod that is not Ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unready {
    /// Time since which its containers are not, or else the Pod.
    pub since: Timestamp,
    /// True if the containers are ready, and the readiness gate of PodOpsLifecycle is closed.
    pub waits_for_service: bool,
}

/// State of a container, as the kubelet reports it. In a list rather than in maps by name, which
/// would take 2 KiB for each Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerReport {
    /// Name of the container.
    pub name: String,
    /// `imageID`; empty before its image is pulled.
    pub image_id: String,
    /// `containerID`, which changes with every restart; empty before it has started.
    pub container_id: String,
    /// Resources in effect; `None` if they are not reported.
    pub resources: Option<Resources>,
}

/// Container of a Pod, from its spec.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// Name of the container.
    pub name: String,
    /// Desired image.
    pub image: String,
    /// Desired resources.
    pub resources: Resources,
}

/// State of a resize that is not complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resize {
    /// The kubelet is applying the resources.
    InProgress,
    /// The kubelet failed to apply the resources, with its message; it retries.
    Failing(String),
    /// The node lacks free resources at the moment, with the kubelet's message.
    Deferred(String),
    /// The node can never provide the resources, with the kubelet's message.
    Infeasible(String),
}

impl fmt::Display for Resize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InProgress => write!(f, "kubelet is applying the resources"),
            Self::Failing(message) => {
                write!(f, "kubelet failed to apply the resources: {message}")
            }
            Self::Deferred(message) => {
                write!(f, "resize deferred, node lacks free resources: {message}")
            }
            Self::Infeasible(message) => {
                write!(f, "resize infeasible, node cannot provide the resources: {message}")
            }
        }
    }
}

/// Returns the name of the ResourceContext of the CollaSet `name`.
#[must_use]
pub fn context_name<'a>(spec: &'a CollaSetSpec, name: &'a str) -> &'a str {
    let named = spec.scale_strategy.as_ref().and_then(|strategy| strategy.context.as_deref());
    named.filter(|context| !context.is_empty()).unwrap_or(name)
}

/// Returns the instance ID in the labels; `None` if it is missing or not a number.
#[must_use]
pub fn instance_id(labels: &Labels) -> Option<InstanceId> {
    labels.get(well_known::INSTANCE_ID).and_then(|id| id.parse().ok())
}

/// Returns the revision in the labels; empty if it is missing.
#[must_use]
pub fn revision_name(labels: &Labels) -> RevisionName {
    labels.get(well_known::REVISION).map(|name| name.as_str().into()).unwrap_or_default()
}

impl PodView {
    /// Returns whether the Pod has the label.
    #[must_use]
    pub fn has_label(&self, key: &str) -> bool {
        self.labels.contains_key(key)
    }

    /// Revision with which the instance goes on if this Pod is lost; `None` if the Pod is being
    /// updated, so that it is that of the update.
    #[must_use]
    pub fn kept_revision(&self) -> Option<&RevisionName> {
        (!self.is_during(OwnOperation::Update)).then_some(&self.revision)
    }

    /// Revisions from which the Pod was built, or to which it was last updated.
    #[must_use]
    pub fn source(&self) -> PodSource {
        PodSource { revision: self.revision.clone(), decorations: self.decorations.clone() }
    }

    /// Returns whether the Pod was built from this, or last updated to it.
    #[must_use]
    pub fn is_at(&self, source: &PodSource) -> bool {
        self.revision == source.revision && self.decorations == source.decorations
    }

    /// Returns whether the Pod takes part in PodOpsLifecycle.
    #[must_use]
    pub fn is_controlled(&self) -> bool {
        well_known::is_controlled(&self.labels)
    }

    /// Returns whether this operation is requested on the Pod.
    #[must_use]
    pub fn is_during(&self, operation: OwnOperation) -> bool {
        lifecycle::is_during(&self.labels, lifecycle::COLLASET, operation.operation_type())
    }

    /// Time since which the Pod may be operated on by this operation; `None` while it may not.
    #[must_use]
    pub fn allowed_since(&self, operation: OwnOperation) -> Option<Timestamp> {
        lifecycle::allowed_since(&self.labels, lifecycle::COLLASET, operation.operation_type())
    }

    /// Returns whether the CollaSet's operation on the Pod is being cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.has_label(&LabelKind::UndoOperationType.key(lifecycle::COLLASET))
    }

    /// Another reference to the image that a container runs, which restarts it; `None` if the
    /// kubelet reports no digest of the image.
    #[must_use]
    pub fn restart_image(&self, container: &Container) -> Option<String> {
        other_reference(&container.image, &self.report(&container.name)?.image_id)
    }

    /// Returns the state of a container, as the kubelet reports it.
    #[must_use]
    pub fn report(&self, container: &str) -> Option<&ContainerReport> {
        self.reports.iter().find(|report| report.name == container)
    }

    /// Returns whether a container of the Pod has run.
    #[must_use]
    pub fn has_started(&self) -> bool {
        self.ready.is_some() || self.reports.iter().any(|report| !report.container_id.is_empty())
    }

    /// Returns whether the kubelet reports the images of all containers.
    #[must_use]
    pub fn has_all_images(&self) -> bool {
        let reported = self.reports.iter().filter(|report| !report.image_id.is_empty());
        reported.count() >= self.containers.len()
    }

    /// Value of an annotation.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// Value of an integer annotation; 0 if it is missing or invalid.
    #[must_use]
    pub fn int_annotation(&self, key: &str) -> i32 {
        self.annotation(key).and_then(|number| number.parse().ok()).unwrap_or_default()
    }

    /// Returns whether the containers are ready, and the Pod is not yet or no more in service.
    #[must_use]
    pub fn waits_for_service(&self) -> bool {
        self.unready.is_some_and(|unready| unready.waits_for_service)
    }

    /// Time since which the Pod is in service; `None` if it is not.
    fn available_since(&self) -> Option<Timestamp> {
        let stamp = self.labels.get(well_known::SERVICE_AVAILABLE)?;
        let since = LifecycleTime::parse(stamp).map(|time| time.0);
        // The label value is not validated; fall back to the Ready time if it is no timestamp.
        Some(since.or(self.ready).unwrap_or(Timestamp::UNIX_EPOCH))
    }
}

/// Observed state of one PersistentVolumeClaim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimView {
    /// Name of the PVC.
    pub name: ClaimName,
    /// UID of the PVC.
    pub uid: Uid,
    /// Observed resourceVersion.
    pub resource_version: ResourceVersion,
    /// Labels of the PVC.
    pub labels: Labels,
    /// Instance ID, from the labels or else that of the Pod that mounts the PVC; `None` if unknown.
    pub instance: Option<InstanceId>,
    /// Name of the claim template that the PVC was created from, see [`template_in_name`]; `None`
    /// if unknown.
    pub template: Option<String>,
    /// True if the PVC has a deletion timestamp.
    pub deleting: bool,
    /// True if no CollaSet controls the PVC.
    pub orphan: bool,
    /// True if the namespace owns the PVC too, so that the garbage collector does not delete it with
    /// the CollaSet.
    pub kept: bool,
    /// Requested storage of a bound PVC, which alone can grow; `None` of any other.
    pub bound_storage: Option<String>,
}

impl ClaimView {
    /// Returns whether the PVC was released: its Pod was excluded or replaced, or its claim template
    /// removed.
    #[must_use]
    pub fn is_released(&self) -> bool {
        self.orphan && self.labels.contains_key(well_known::ORPHANED)
    }

    /// Hash of the claim template that the PVC was created from; `None` if the label is missing.
    #[must_use]
    pub fn hash(&self) -> Option<&str> {
        self.labels.get(well_known::CLAIM_TEMPLATE_HASH).map(String::as_str)
    }

    /// Returns whether the PVC was created from the claim template with this name.
    ///
    /// The name identifies a template: its PVCs remain the same when any other field changes. Only
    /// for a PVC whose template has no known name, the hash decides, as in Kuperator.
    #[must_use]
    pub fn is_of_template(&self, name: &str, hash: &str) -> bool {
        match &self.template {
            Some(known) => known == name,
            None => self.hash() == Some(hash),
        }
    }
}

/// Returns the name of the claim template in the name of a PVC of the CollaSet `set`:
/// `<set>-<template>-<suffix>`; `None` if the name has another form.
///
/// PVCs that Kuperator created before February 2025 have no `pvc-template-name` label.
#[must_use]
pub fn template_in_name<'a>(set: &str, claim: &'a str) -> Option<&'a str> {
    let (template, suffix) = claim.strip_prefix(set)?.strip_prefix('-')?.rsplit_once('-')?;
    (!template.is_empty() && !suffix.is_empty()).then_some(template)
}

/// Observed state of the ResourceContext.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContextsView {
    /// UID of the ResourceContext.
    pub uid: Uid,
    /// Observed resourceVersion.
    pub resource_version: ResourceVersion,
    /// Entries, of all CollaSets that share the ResourceContext.
    pub entries: Vec<ContextDetail>,
}

/// Observed state of one ControllerRevision.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RevisionView {
    /// Name of the ControllerRevision.
    pub name: RevisionName,
    /// UID of the ControllerRevision.
    pub uid: Uid,
    /// Observed resourceVersion.
    pub resource_version: ResourceVersion,
    /// True if no CollaSet controls the ControllerRevision.
    pub orphan: bool,
    /// Position in the revision history; the highest is the newest.
    pub revision: i64,
    /// Templates recorded in the revision.
    pub data: Value,
}

/// Returns the instance IDs of the Pods.
#[must_use]
pub fn ids<'a>(pods: impl Iterator<Item = &'a PodView>) -> BTreeSet<InstanceId> {
    pods.filter_map(|pod| pod.instance).collect()
}

/// Age up to which a Pod that is observed for the first time has probably had its labels since its
/// creation.
const RECENT: SignedDuration = SignedDuration::from_secs(600);

/// Records in `never_selected` the Pods that are observed for the first time, according to
/// `last_pods`, soon after their creation, with labels that the selector does not match.
pub fn record_never_selected(
    never_selected: &mut BTreeSet<Uid>,
    last_pods: &BTreeMap<InstanceId, LastPod>,
    observed: &Observed,
    now: Timestamp,
) {
    let mut unselected = BTreeSet::new();
    // Usually none.
    for pod in observed.all().filter(|pod| !observed.selects(&pod.labels)) {
        let is_known = last_pods.values().any(|last| last.uid == pod.uid);
        let is_new = !is_known && now.duration_since(pod.created) < RECENT;
        if is_new || never_selected.contains(&pod.uid) {
            unselected.insert(pod.uid.clone());
        }
    }
    *never_selected = unselected;
}

/// Records the newest Pod of each instance in `known`.
pub fn record_last_pods<'a>(
    known: &mut BTreeMap<InstanceId, LastPod>,
    pods: impl Iterator<Item = &'a PodView>,
) {
    // Newest last, because an instance may have more than one Pod.
    let mut oldest_first: Vec<&PodView> = pods.collect();
    oldest_first.sort_by_key(|pod| pod.created);
    for pod in oldest_first {
        let Some(id) = pod.instance else { continue };
        let revision = pod.kept_revision();
        let is_recorded = known.get(&id).is_some_and(|last| {
            let is_same = last.uid == pod.uid && last.revision.as_ref() == revision;
            is_same || pod.deleting
        });
        if !is_recorded {
            known.insert(id, LastPod { uid: pod.uid.clone(), revision: revision.cloned() });
        }
    }
}
