//! Commands that change Pods.

use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use kubectl_podops::pod_change;
use podops_api::deletion_policy::DeletionPolicy;
use podops_terminal::clock;
use serde_json::Value;

use super::MANAGER;
use crate::{output::print_line, session::Session};

/// Number of times that a change is computed again after a conflict.
const RETRIES: usize = 5;
/// Status of a write of an object that has changed since it was read.
const CONFLICT: u16 = 409;

/// Change of a Pod that a command requests.
#[derive(Clone, Debug)]
pub(crate) enum PodCommand {
    /// Replacement.
    Replace,
    /// End of its replacement.
    CancelReplacement,
    /// Graceful deletion, by this policy if the Pod has none.
    Delete(DeletionPolicy),
    /// End of its graceful deletion.
    CancelDeletion,
    /// Out of service.
    Offline,
    /// Back to service.
    Online,
    /// End of the operation of this ID.
    Undo(String),
}

impl PodCommand {
    fn patch(&self, pod: &Pod) -> Result<Value, pod_change::Error> {
        match self {
            Self::Replace => pod_change::replace(pod),
            Self::CancelReplacement => pod_change::cancel_replacement(pod),
            Self::Delete(policy) => pod_change::delete(pod, *policy),
            Self::CancelDeletion => pod_change::cancel_deletion(pod),
            Self::Offline => pod_change::offline(pod, clock::now()),
            Self::Online => pod_change::online(pod),
            Self::Undo(id) => pod_change::undo(pod, id),
        }
    }

    fn done(&self) -> String {
        match self {
            Self::Replace => "replacement requested".to_owned(),
            Self::CancelReplacement => "replacement cancelled".to_owned(),
            Self::Delete(_) => "graceful deletion requested".to_owned(),
            Self::CancelDeletion => "graceful deletion cancelled".to_owned(),
            Self::Offline => "leaves service".to_owned(),
            Self::Online => "returns to service".to_owned(),
            Self::Undo(id) => format!("operation {id} cancelled"),
        }
    }
}

/// Changes Pods one after another; stops at the first that cannot be changed.
pub(crate) async fn change(
    session: &Session,
    pods: &[String],
    command: PodCommand,
) -> anyhow::Result<ExitCode> {
    let api: Api<Pod> = Api::namespaced(session.client.clone(), &session.namespace);
    for pod in pods {
        change_one(&api, pod, &command).await?;
        let done = command.done();
        print_line(&format!("pod/{pod} {done}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Changes a Pod; computes the change again if the Pod has changed meanwhile.
pub(super) async fn change_one(
    api: &Api<Pod>,
    name: &str,
    command: &PodCommand,
) -> anyhow::Result<()> {
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    for _ in 0..RETRIES {
        let pod = api.get_opt(name).await.context("cannot read the Pod")?;
        let namespace = api.namespace().unwrap_or_default();
        let pod =
            pod.ok_or_else(|| anyhow!("pod/{name} does not exist in namespace {namespace}"))?;
        match api.patch(name, &params, &Patch::Merge(command.patch(&pod)?)).await {
            Err(kube::Error::Api(status)) if status.code == CONFLICT => {}
            result => {
                result.with_context(|| format!("cannot change pod/{name}"))?;
                return Ok(());
            }
        }
    }
    Err(anyhow!("pod/{name} changed {RETRIES} times while it was changed; repeat the command"))
}
