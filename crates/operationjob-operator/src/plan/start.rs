//! Starts the operation on a target: checks that it is possible, and records its Pod and method.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podops_api::{
    ids::{PodName, whole_second},
    image_reference::other_reference,
    operation_job::{self, Progress},
    well_known,
};

use super::{Method, Planner, containers_of, is_known, target::TargetState};
use crate::{
    facts,
    view::{ContainerView, Missing, PodView},
};

/// Reason for which an operation cannot start.
struct Refusal {
    reason: &'static str,
    message: String,
}

impl Planner<'_> {
    /// Starts the operation on a pending target, or records why it fails.
    pub(super) fn start_target(&mut self, state: &mut TargetState<'_>) {
        let Some(method) = self.method(state) else { return };
        match method {
            Err(Refusal { reason, message }) => state.fail(reason, message),
            Ok(method) => {
                let Some(pod) = state.pod else { return };
                record_pod(state, pod, method);
                if self.observed.spec.dry_run {
                    state.succeed();
                    return;
                }
                state.status.progress = Progress::Processing;
                state.status.start_time = Some(Time(whole_second(self.now)));
                self.plan.started += 1;
            }
        }
    }

    /// Returns how a target is operated on, or why it cannot be; `None` while its Pod is unknown.
    fn method(&mut self, state: &TargetState<'_>) -> Option<Result<Method, Refusal>> {
        let action = self.observed.spec.action.as_str();
        if !is_known(action) {
            let message = format!("action {action} is unknown; use Replace, Restart or Recreate");
            return Some(Err(Refusal { reason: "UnknownAction", message }));
        }
        let Some(pod) = state.pod else {
            let name = PodName::from(state.target.name.as_str());
            let Some(missing) = self.observed.missing.get(&name) else {
                self.plan.unknown.push(name);
                return None;
            };
            return Some(Err(refusal_of(*missing)));
        };
        Some(match action {
            operation_job::REPLACE => replace(pod),
            operation_job::RESTART => match containers(state, pod) {
                Ok(containers) if containers.iter().all(|c| is_reported(c)) => {
                    restart(pod, &containers)
                }
                Ok(_) => return self.wait_for_containers().map(Err),
                Err(refusal) => Err(refusal),
            },
            _ => recreate(pod),
        })
    }

    /// Returns why containers that do not run are not restarted; `None` while they may still start,
    /// or the cache may not contain yet that they have.
    fn wait_for_containers(&mut self) -> Option<Refusal> {
        let started = self.observed.status.start_time.as_ref().map_or(self.now, |time| time.0);
        self.is_over(started, START_SECONDS).then(|| Refusal {
            reason: "ContainerNotRunning",
            message: "a container does not run, so it cannot be restarted; use Recreate".to_owned(),
        })
    }
}

/// Records the Pod of a target, and how it is operated on.
pub(super) fn record_pod(state: &mut TargetState<'_>, pod: &PodView, method: Method) {
    state.set(facts::METHOD, method.as_str());
    state.set(facts::POD_UID, pod.uid.as_str());
    if let Some(owner) = &pod.owner {
        state.set(facts::OWNER, owner.uid.as_str());
    }
    if let Some(instance) = pod.labels.get(well_known::INSTANCE_ID) {
        state.set(facts::INSTANCE, instance.as_str());
    }
}

/// Seconds within which the containers of a target have to run.
const START_SECONDS: i64 = 30;

/// Returns whether the kubelet has reported a container.
fn is_reported(container: &ContainerView) -> bool {
    !container.container_id.is_empty() && !container.image_id.is_empty()
}

/// Returns the containers to restart.
fn containers<'a>(
    state: &TargetState<'_>,
    pod: &'a PodView,
) -> Result<Vec<&'a ContainerView>, Refusal> {
    let names = containers_of(state.target, pod);
    let find = |name: &&str| pod.containers.iter().find(|container| container.name == **name);
    if let Some(name) = names.iter().find(|name| find(name).is_none()) {
        let message = format!("the Pod has no container {name}");
        return Err(Refusal { reason: "ContainerNotFound", message });
    }
    Ok(names.iter().filter_map(find).collect())
}

fn refusal_of(missing: Missing) -> Refusal {
    match missing {
        Missing::NotFound => Refusal {
            reason: "PodNotFound",
            message: "failed to operate a non-exist pod".to_owned(),
        },
        Missing::NotControlled => Refusal {
            reason: "PodNotControlled",
            message: format!(
                "the Pod does not have the label {}, so it takes part in no operation; add it",
                well_known::CONTROLLED
            ),
        },
    }
}

fn replace(pod: &PodView) -> Result<Method, Refusal> {
    if pod.is_of_collaset() {
        return Ok(Method::Replace);
    }
    let kind = pod.owner.as_ref().map_or("no controller", |owner| owner.kind.as_str());
    let message =
        format!("the Pod belongs to {kind}, and only a CollaSet replaces Pods; use Recreate");
    Err(Refusal { reason: "ReplaceNotSupported", message })
}

fn recreate(pod: &PodView) -> Result<Method, Refusal> {
    if pod.owner.is_some() {
        return Ok(Method::Recreate);
    }
    let message = "the Pod has no controller that would create it again".to_owned();
    Err(Refusal { reason: "RecreateNotSupported", message })
}

/// Restarts in place if another reference to the image of each container is known; recreates the
/// Pod otherwise.
fn restart(pod: &PodView, containers: &[&ContainerView]) -> Result<Method, Refusal> {
    let in_place = containers.iter().all(|c| other_reference(&c.image, &c.image_id).is_some());
    if in_place { Ok(Method::RestartInPlace) } else { recreate(pod) }
}
