//! The reconcile of collaset-operator.

use std::{collections::BTreeMap, time::Duration};

use collaset_operator::{
    plan::{
        self, Plan,
        action::{Action, ApplyMode, CreateReason, OperationEnd, PodChange},
    },
    render,
    shell::observe_objects,
    status::status,
    view::{DryRunResult, LastPod, Observed, OwnOperation, PodSource, record_last_pods},
};
use podops_api::{
    collaset::{CollaSet, CollaSetStatus},
    ids::InstanceId,
};
use podops_client::write::Write;

use super::{Api, earlier};
use crate::{prediction::Method, rollout::Settings};

const OPERATOR: &str = "collaset-operator";

/// The state that collaset-operator remembers.
#[derive(Debug, Default)]
pub(crate) struct CollaSets {
    last_pods: BTreeMap<InstanceId, LastPod>,
    /// Pods that were created as a dry run; each is accepted.
    dry_runs: BTreeMap<PodSource, DryRunResult>,
    settings: Settings,
}

/// Decisions of one reconcile.
#[derive(Debug, Default)]
pub(crate) struct SetDecision {
    /// Changes to Pods that begin.
    pub(crate) events: Vec<PodEvent>,
    /// The status that is reported.
    pub(crate) status: CollaSetStatus,
    /// Time after which to reconcile again without an event.
    pub(crate) requeue_after: Option<Duration>,
}

/// Begin of a change to a Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodEvent {
    /// Name of the Pod; of a Pod that is created, its instance ID.
    pub(crate) pod: String,
    /// Kind of change.
    pub(crate) method: Method,
}

impl CollaSets {
    /// Returns an operator with these settings.
    pub(crate) fn new(settings: Settings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// Observes and decides.
    ///
    /// # Errors
    ///
    /// If an object violates the schema of its kind.
    pub(crate) fn plan(&mut self, api: &Api, name: &str) -> serde_json::Result<(Observed, Plan)> {
        let object = api.objects.get("collasets", name).cloned().unwrap_or_default();
        let set: CollaSet = serde_json::from_value(object)?;
        let objects = |plural: &str| api.objects.all(plural).cloned().collect();
        let mut observed = observe_objects(&set, objects)?;
        record_last_pods(&mut self.last_pods, observed.all());
        observed.last_pods.clone_from(&self.last_pods);
        observed.can_resize = self.settings.can_resize;
        observed.default_max_unavailable.clone_from(&self.settings.default_max_unavailable);
        observed.dry_runs.clone_from(&self.dry_runs);
        let plan = plan::plan(&observed, api.objects.now);
        Ok((observed, plan))
    }

    /// Observes, decides and writes.
    ///
    /// # Errors
    ///
    /// If an object violates the schema of its kind.
    pub(crate) fn reconcile(
        &mut self,
        api: &mut Api,
        name: &str,
    ) -> serde_json::Result<SetDecision> {
        let (observed, plan) = self.plan(api, name)?;
        let now = api.objects.now;
        let report = status(&observed, &plan, &[], now);
        for action in &plan.actions {
            if let Action::DryRunPod { source, .. } = action {
                self.dry_runs.insert(source.clone(), DryRunResult::Accepted);
            }
        }
        apply(api, &observed, &plan);
        if report.status != observed.status {
            api.send(OPERATOR, &render::status(&observed, &report.status));
        }
        Ok(SetDecision {
            events: plan.actions.iter().filter_map(event).collect(),
            status: report.status,
            requeue_after: earlier(plan.requeue_after, report.requeue_after),
        })
    }
}

/// Sends the writes of a plan. If records cannot be stored, the writes that depend on them are left
/// to the next reconcile.
fn apply(api: &mut Api, observed: &Observed, plan: &Plan) {
    let phases = render::render(observed, &plan.actions, api.objects.now);
    let records = phases.claim_deletions.iter().chain(&phases.bookkeeping);
    if !send_all(api, records) {
        return;
    }
    let changes = phases.departures.iter().chain(&phases.creates).chain(&phases.changes);
    let joins = phases.included_claims.iter().chain(&phases.joins);
    if send_all(api, changes.chain(joins)) {
        send_all(api, &phases.finalizer_removal);
    }
}

/// Returns whether all writes succeeded.
fn send_all<'a>(api: &mut Api, writes: impl IntoIterator<Item = &'a Write>) -> bool {
    let mut succeeded = true;
    for write in writes {
        succeeded &= api.send(OPERATOR, write);
    }
    succeeded
}

/// Returns the change to a Pod that an action begins; `None` if the action begins none.
fn event(action: &Action) -> Option<PodEvent> {
    if let Action::CreatePod { instance, reason: CreateReason::Initial, .. } = action {
        return Some(PodEvent { pod: format!("(instance {instance})"), method: Method::ScaleOut });
    }
    let Action::Pod { pod, change } = action else { return None };
    Some(PodEvent { pod: pod.to_string(), method: method(change)? })
}

fn method(change: &PodChange) -> Option<Method> {
    match change {
        PodChange::Begin { operation: OwnOperation::ScaleIn, .. }
        | PodChange::Delete { operation: OwnOperation::ScaleIn } => Some(Method::ScaleIn),
        // Also of operations that began before the simulation.
        PodChange::Begin { end: OperationEnd::PodKept, .. }
        | PodChange::Apply { mode: ApplyMode::UnderOperation, .. } => Some(Method::InPlace),
        PodChange::Begin { end: OperationEnd::PodDeleted, .. }
        | PodChange::Delete { operation: OwnOperation::Update } => Some(Method::Recreate),
        PodChange::Replace { update: Some(_), .. } => Some(Method::Replace),
        PodChange::Apply { mode: ApplyMode::InService, .. } => Some(Method::Metadata),
        PodChange::RequestDeletion => Some(Method::Delete),
        PodChange::Replace { update: None, .. }
        | PodChange::Release
        | PodChange::Exclude
        | PodChange::SetPair { .. }
        | PodChange::SetOrigin { .. }
        | PodChange::SetInstance { .. }
        | PodChange::RemovePair
        | PodChange::ReplaceUpdate { .. }
        | PodChange::CancelReplace
        | PodChange::Undo { .. }
        | PodChange::Resize { .. }
        | PodChange::FinishUpdate => None,
    }
}
