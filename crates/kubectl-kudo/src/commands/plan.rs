//! `plan`.

use instance_operator::run::running;
use kube::ResourceExt as _;
use kubectl_kudo::{
    cli::{InstanceName, Wait, WaitFor},
    failure::Failure,
    plans::{self, Baseline},
    text::{Format, object},
};
use podops_api::kudo::{Instance, OperatorVersionSpec};
use serde_json::json;
use uuid::Uuid;

use super::wait::{self as waiting, Until};
use crate::{
    cluster::{Cluster, instance_name},
    output::{print, print_line},
};

/// Returns a title with the names of the Instance and namespace.
fn title(cluster: &Cluster, instance: &Instance, what: &str) -> String {
    format!("{what} {:?} in namespace {:?}:\n", instance.name_any(), cluster.namespace)
}

fn status_text(cluster: &Cluster, instance: &Instance, version: &OperatorVersionSpec) -> String {
    let Some(tree) = plans::status(instance, version) else {
        let name = instance.name_any();
        return format!("No plan ever run for instance - nothing to show for instance {name}\n");
    };
    format!("{}{tree}\n", title(cluster, instance, "Plan(s) for"))
}

/// Prints the status of the plans of an Instance.
///
/// # Errors
///
/// If the Instance or its OperatorVersion does not exist, or a plan fails during the wait.
pub(crate) async fn status(
    cluster: &Cluster,
    instance: &InstanceName,
    wait: bool,
    output: Option<&str>,
) -> anyhow::Result<()> {
    let format = Format::parse(output)?;
    let instance = cluster.instance(instance).await?;
    if format != Format::Text {
        return print(&object(&instance.status.unwrap_or_default(), format)?);
    }
    let version = cluster.version_of(&instance).await?;
    if !wait {
        return print(&status_text(cluster, &instance, &version.spec));
    }
    let baseline = Baseline::before_last_run(&instance);
    let mut shown = String::new();
    let name = instance.name_any();
    let until = Until::Complete(&baseline);
    waiting::wait(cluster, &name, until, 0, |instance| {
        let text = status_text(cluster, instance, &version.spec);
        if text == shown {
            return Ok(());
        }
        shown = text;
        print(&shown)
    })
    .await
}

/// Prints the runs of an Instance's plans.
///
/// # Errors
///
/// If the Instance or its OperatorVersion does not exist.
pub(crate) async fn history(cluster: &Cluster, instance: &InstanceName) -> anyhow::Result<()> {
    let instance = cluster.instance(instance).await?;
    let version = cluster.version_of(&instance).await?;
    let history = plans::history(&instance, &version.spec);
    let title = title(cluster, &instance, "History of plan-executions for instance");
    print(&format!("{title}{history}\n"))
}

/// Runs a plan.
///
/// # Errors
///
/// If the plan does not exist, or fails during the wait.
pub(crate) async fn trigger(
    cluster: &Cluster,
    instance: &InstanceName,
    plan: Option<String>,
    wait: Wait,
) -> anyhow::Result<()> {
    instance.required("please choose the instance with '--instance=<instanceName>'")?;
    let missing = "please choose the plan name with '--name=<planName>'";
    let plan = plan.filter(|plan| !plan.is_empty());
    let plan = plan.ok_or_else(|| Failure::Usage(missing.to_owned()))?;
    let mut found = cluster.instance(instance).await?;
    let version = cluster.version_of(&found).await?;
    let before = Baseline::of(&found);
    found.spec.plan_execution.plan_name.clone_from(&plan);
    found.spec.plan_execution.uid = Uuid::new_v4().to_string();
    cluster.check(&found, &version).await?;
    let request = json!({ "planName": plan, "uid": found.spec.plan_execution.uid });
    let name = found.name_any();
    let updated = cluster.patch(&name, json!({ "planExecution": request })).await?;
    print_line(&format!("Triggered {plan} plan for {}/{name} instance", cluster.namespace))?;
    if wait.wait {
        let baseline = before.for_change(&updated);
        let until = Until::Complete(&baseline);
        waiting::wait(cluster, &name, until, wait.seconds(), |_| Ok(())).await?;
    }
    Ok(())
}

/// Waits until an Instance has the requested state.
///
/// # Errors
///
/// If a plan fails, or the timeout expires.
pub(crate) async fn wait(
    cluster: &Cluster,
    instance: &InstanceName,
    wait_for: WaitFor,
    seconds: u64,
) -> anyhow::Result<()> {
    let name = instance_name(instance)?;
    if wait_for == WaitFor::Deleted {
        return waiting::wait(cluster, name, Until::Deleted, seconds, |_| Ok(())).await;
    }
    let found = cluster.instance(instance).await?;
    let baseline = Baseline::before_last_run(&found);
    let until = match wait_for {
        WaitFor::Ready => Until::Ready(&baseline),
        WaitFor::Complete | WaitFor::Deleted => Until::Complete(&baseline),
    };
    waiting::wait(cluster, name, until, seconds, |_| Ok(())).await
}

/// Pauses or resumes an Instance.
///
/// # Errors
///
/// If the Instance does not exist, or the API server rejects the change.
pub(crate) async fn pause(
    cluster: &Cluster,
    instance: &InstanceName,
    paused: bool,
) -> anyhow::Result<()> {
    let name = cluster.instance(instance).await?.name_any();
    cluster.patch(&name, json!({ "paused": paused })).await?;
    let done = if paused { "paused" } else { "resumed" };
    print_line(&format!("instance {}/{name} {done}", cluster.namespace))
}

/// Cancels the running plan.
///
/// # Errors
///
/// If no plan is running, or the API server rejects the change.
pub(crate) async fn cancel(cluster: &Cluster, instance: &InstanceName) -> anyhow::Result<()> {
    let instance = cluster.instance(instance).await?;
    let namespace = &cluster.namespace;
    let name = instance.name_any();
    let status = instance.status.unwrap_or_default();
    let run = running(&status)
        .ok_or_else(|| anyhow::anyhow!("no plan runs for instance {namespace}/{name}"))?;
    cluster.patch(&name, json!({ "planExecution": { "cancel": run.uid } })).await?;
    print_line(&format!("plan {} of instance {namespace}/{name} is cancelled", run.name))
}
