//! The next step of an operation that has started.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podops_api::{image_reference::other_reference, lifecycle, well_known};

use super::{
    Method, Planner,
    action::{ContainerRestart, OperationEnd, PodChange},
    containers_of,
    start::record_pod,
    target::TargetState,
};
use crate::{
    facts,
    view::{Observed, PodView},
};

/// Wait of an operation while another operation on the Pod is in progress.
const ANOTHER_OPERATION: &str = "the end of another operation on the Pod";
/// Wait of an operation until lifecycle-operator permits it.
const PERMISSION: &str = "permission (PreCheck or Preparing)";
/// Wait of a target at the end of its operation.
const AVAILABLE: &str = "the Pod to be available";
/// Wait of a target while its Pod is being deleted.
const DELETED: &str = "the Pod to be deleted";
/// Wait of a target after its Pod was deleted.
const SUCCESSOR: &str = "the new Pod to be available";

impl<'a> Planner<'a> {
    /// Plans the next step of the operation on a target.
    pub(super) fn run(&mut self, state: &mut TargetState<'a>) {
        state.status.extra_info.remove(facts::WAITING);
        if let Some(pod) = state.pod
            && !state.has(facts::METHOD)
        {
            // A job of Kuperator's, which replaces Pods only. The Pod is recorded before its
            // finalizer is removed, because without it a Pod that is gone leads to no new one.
            record_pod(state, pod, Method::Replace);
            return;
        }
        if let Some(pod) = state.own_pod()
            && pod.finalizers.iter().any(|f| f == well_known::REPLACE_PROTECTED)
        {
            self.change(pod, PodChange::TakeOverRequest);
            return;
        }
        let method = state.get(facts::METHOD).and_then(Method::parse);
        match method {
            None | Some(Method::Replace) => self.run_replace(state),
            Some(Method::Recreate) => self.run_recreate(state),
            Some(Method::RestartInPlace) => self.run_restart(state),
        }
    }

    fn run_recreate(&mut self, state: &mut TargetState<'a>) {
        let Some(pod) = state.own_pod() else {
            match self.recreation_of(state) {
                Some(new) => {
                    self.take(state, new);
                    if new.is_available() {
                        state.succeed();
                    } else {
                        state.wait_for(SUCCESSOR);
                    }
                }
                None => state.wait_for("its workload to create a new Pod"),
            }
            return;
        };
        if pod.deleting {
            state.wait_for(DELETED);
        } else if self.is_permitted(state, pod, OperationEnd::PodDeleted) {
            self.change(pod, PodChange::Delete);
            state.wait_for(DELETED);
        }
    }

    fn run_restart(&mut self, state: &mut TargetState<'a>) {
        let Some(pod) = state.own_pod().filter(|pod| !pod.deleting) else {
            let message = "the Pod was deleted during its restart".to_owned();
            state.fail("PodNotFound", message);
            return;
        };
        let id = self.observed.operation_id();
        let Some(restarted) = restarted_containers(pod, self.observed) else {
            if self.is_permitted(state, pod, OperationEnd::PodKept) {
                self.restart(state, pod);
            }
            return;
        };
        if !has_restarted(pod, &restarted) {
            state.wait_for("the containers to restart");
        } else if pod.is_during(&id) {
            self.change(pod, PodChange::Finish);
            state.wait_for(AVAILABLE);
        } else if pod.has_labels_of(&id) || !pod.is_available() {
            state.wait_for(AVAILABLE);
        } else {
            state.succeed();
        }
    }

    /// Restarts the containers of a Pod that may be operated on.
    fn restart(&mut self, state: &mut TargetState<'a>, pod: &PodView) {
        if is_restarting(pod, self.now) {
            state.wait_for("the restart of containers by another job");
            return;
        }
        if pod.annotation(well_known::LAST_POD_STATUS).is_some() {
            // The digests that the kubelet reports may be those of the images before.
            state.wait_for("the update of the Pod by its CollaSet");
            return;
        }
        let names = containers_of(state.target, pod);
        let listed = pod.containers.iter().enumerate();
        let listed = listed.filter(|(_, container)| names.contains(&container.name.as_str()));
        let mut containers = BTreeMap::new();
        for (index, container) in listed {
            let Some(to) = other_reference(&container.image, &container.image_id) else {
                // The container has restarted, and its image is not reported yet.
                state.wait_for("the image of a container to be reported");
                return;
            };
            let restart = ContainerRestart {
                index,
                from: container.image.clone(),
                to,
                container_id: container.container_id.clone(),
            };
            containers.insert(container.name.clone(), restart);
        }
        self.change(pod, PodChange::Restart { containers });
        state.wait_for("the containers to restart");
    }

    /// Returns whether the Pod may be operated on; requests it if it is not requested yet.
    fn is_permitted(
        &mut self,
        state: &mut TargetState<'a>,
        pod: &PodView,
        end: OperationEnd,
    ) -> bool {
        let id = self.observed.operation_id();
        let operation_type = self.observed.spec.action.as_str();
        if !pod.is_during(&id) {
            if pod.is_operated_on() || pod.has_labels_of(&id) {
                state.wait_for(ANOTHER_OPERATION);
            } else {
                self.change(pod, PodChange::Begin { end });
                state.wait_for(PERMISSION);
            }
            return false;
        }
        let Some(since) = lifecycle::allowed_since(&pod.labels, &id, operation_type) else {
            state.wait_for(PERMISSION);
            return false;
        };
        let delay = self.observed.spec.operation_delay_seconds;
        if let Some(wait) = lifecycle::remaining_delay(since, delay, self.now) {
            self.requeue_after(wait);
            state.wait_for("spec.operationDelaySeconds");
            return false;
        }
        true
    }

    /// Records the Pod that takes over from a target.
    pub(super) fn take(&mut self, state: &mut TargetState<'a>, new: &PodView) {
        state.set(facts::NEW_POD, new.name.as_str());
        if let Some(instance) = new.labels.get(well_known::INSTANCE_ID) {
            state.set(facts::NEW_INSTANCE, instance.as_str());
        }
        self.taken.insert(new.name.to_string());
    }
}

/// IDs of the containers that this job has restarted, by name, from before the restart; `None` if
/// it has not restarted any.
fn restarted_containers(pod: &PodView, observed: &Observed) -> Option<BTreeMap<String, String>> {
    let restart = restarts(pod).into_iter().find(|restart| restart.job == *observed.uid);
    restart.map(|restart| restart.containers)
}

/// Returns whether containers other than these run.
fn has_restarted(pod: &PodView, before: &BTreeMap<String, String>) -> bool {
    let mut restarted = pod.containers.iter().filter_map(|c| Some((c, before.get(&c.name)?)));
    restarted.all(|(c, id)| c.ready && !c.container_id.is_empty() && c.container_id != *id)
}

/// Time within which a restart is expected to happen; one that takes longer, because its image cannot
/// be pulled, does not delay those of other jobs.
const RESTART: SignedDuration = SignedDuration::from_mins(5);

/// Returns whether another job has requested a restart that has not happened yet.
fn is_restarting(pod: &PodView, now: Timestamp) -> bool {
    let restarts = restarts(pod).into_iter();
    let mut recent = restarts
        .filter(|restart| restart.at.as_ref().is_some_and(|at| now.duration_since(at.0) < RESTART));
    recent.any(|restart| {
        pod.containers.iter().any(|c| restart.containers.get(&c.name) == Some(&c.container_id))
    })
}

/// One restart of containers by a job. The annotation [`well_known::RESTARTED`] is a list of them,
/// oldest first; earlier releases wrote a single one.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Restart {
    /// UID of the job.
    pub job: String,
    /// IDs of the containers before the restart, by name.
    pub containers: BTreeMap<String, String>,
    /// Time of the request; `None` if an earlier release made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
}

/// Maximum number of restarts that are recorded on a Pod; a job reads its own only until it ends.
const RESTARTS_MAX: usize = 8;

/// Returns the restarts recorded on a Pod; none if the annotation is not valid.
#[must_use]
pub fn restarts(pod: &PodView) -> Vec<Restart> {
    let text = pod.annotation(well_known::RESTARTED).unwrap_or_default();
    let single = || serde_json::from_str(text).map(|restart| vec![restart]);
    serde_json::from_str(text).or_else(|_| single()).unwrap_or_default()
}

/// Returns the recorded restarts of a Pod together with a new one, without the oldest ones above
/// [`RESTARTS_MAX`].
#[must_use]
pub fn with_restart(pod: &PodView, new: Restart) -> Vec<Restart> {
    let mut all = restarts(pod);
    all.push(new);
    all.split_off(all.len().saturating_sub(RESTARTS_MAX))
}
