//! Changes Pods in place of an operator that is not running, with the rights of the user.

use std::process::ExitCode;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use kubectl_podops::{
    cli::{Emergency, EmergencyArgs},
    emergency::{open_gate, release},
};
use podops_terminal::{clock, errors::report};
use serde_json::{Value, json};

use super::MANAGER;
use crate::{output::print_line, session::Session};

/// Shows the Pods that would be changed, or changes them if the user has confirmed it.
pub(crate) async fn emergency(session: &Session, command: Emergency) -> anyhow::Result<ExitCode> {
    let (Emergency::OpenGates(args) | Emergency::Release(args)) = command;
    let EmergencyArgs { all_namespaces, yes: is_confirmed } = args;
    let client = &session.client;
    let pods: Api<Pod> = session.api(all_namespaces);
    let pods = pods.list(&ListParams::default()).await.context("cannot list Pods")?;
    let mut changed = 0_usize;
    let mut failed = 0_usize;
    for pod in &pods {
        let patch = match command {
            Emergency::OpenGates(_) => open_gate(pod, clock::now()),
            Emergency::Release(_) => release(pod),
        };
        let Some(patch) = patch else { continue };
        let namespace = pod.namespace().unwrap_or_default();
        let done = format!("pod/{} of namespace {namespace}: {}", pod.name_any(), done(command));
        if is_confirmed {
            match change(client, pod, &patch, command).await {
                Ok(()) => {
                    changed += 1;
                    print_line(&done)?;
                }
                Err(error) => {
                    failed += 1;
                    report(&error);
                }
            }
        } else {
            changed += 1;
            print_line(&format!("would change {done}"))?;
        }
    }
    let summary = match (changed, is_confirmed) {
        (0, _) if failed == 0 => unneeded(command).to_owned(),
        (_, true) => format!("Pods changed: {changed}; restore the operator as soon as possible"),
        (_, false) => format!("Pods to change: {changed}; add --yes to change them"),
    };
    print_line(&summary)?;
    anyhow::ensure!(failed == 0, "Pods not changed: {failed}; repeat the command");
    Ok(ExitCode::SUCCESS)
}

const fn unneeded(command: Emergency) -> &'static str {
    match command {
        Emergency::OpenGates(_) => "no Pod waits only for lifecycle-operator to be Ready",
        Emergency::Release(_) => "no deleted Pod has a protection finalizer",
    }
}

const fn done(command: Emergency) -> &'static str {
    match command {
        Emergency::OpenGates(_) => "its readiness gate is opened, without lifecycle-operator",
        Emergency::Release(_) => "its finalizers are removed, whether or not traffic has ended",
    }
}

/// Changes a Pod, and reports it by an event of the Pod.
async fn change(
    client: &Client,
    pod: &Pod,
    patch: &Value,
    command: Emergency,
) -> anyhow::Result<()> {
    let namespace = pod.namespace().unwrap_or_default();
    let name = pod.name_any();
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let written = match command {
        Emergency::OpenGates(_) => {
            pods.patch_status(&name, &params, &Patch::Strategic(patch)).await
        }
        Emergency::Release(_) => pods.patch(&name, &params, &Patch::Merge(patch)).await,
    };
    written.with_context(|| format!("cannot change pod/{name} of namespace {namespace}"))?;
    let events: Api<Event> = Api::namespaced(client.clone(), &namespace);
    let event = event_of(pod, command);
    let event = serde_json::from_value(event).context("cannot build the event")?;
    // The Pod is changed, whether or not the user may create events.
    if let Err(error) = events.create(&PostParams::default(), &event).await {
        eprintln!("Warning: no event is recorded for pod/{name}: {error}");
    }
    Ok(())
}

fn event_of(pod: &Pod, command: Emergency) -> Value {
    let now = clock::now().to_string();
    let namespace = pod.namespace();
    json!({
        "metadata": { "generateName": "podops-emergency-", "namespace": namespace },
        "involvedObject": {
            "apiVersion": "v1", "kind": "Pod", "namespace": namespace,
            "name": pod.name_any(), "uid": pod.uid(),
        },
        "type": "Warning", "reason": "Emergency", "message": done(command),
        "firstTimestamp": now, "lastTimestamp": now, "count": 1,
        "source": { "component": MANAGER },
    })
}
