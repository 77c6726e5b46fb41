//! `podops-bench bench --comparison`: ten servers behind HAProxy are updated, scaled and deleted
//! under load, as Pods of Podops and of other workloads. Reports failed requests, durations and
//! writes as a Markdown page.

mod ingress;
mod others;
mod readiness;
mod workload;

use std::{
    cell::Cell,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use comfy_table::{ContentArrangement, Table, presets::ASCII_MARKDOWN};
use k8s_openapi::api::core::v1::Pod;
use kube::{ResourceExt as _, api::DeleteParams};
use serde_json::json;

use self::{
    ingress::Ingress,
    readiness::{are_in_service, is_in_service},
    workload::{Drain, PODS, Workload},
};
use podops_test_cluster::{
    audit::Request,
    balancers::Haproxy,
    cluster::{TestCluster, eventually},
    process::SupervisedProcess,
    server,
    traffic::Load,
};

use crate::page::conditions;

/// Number of servers for which HAProxy has room: those of two updates, so that none takes the place
/// of another at once.
const SLOTS: usize = 40;
/// Time limit of one change.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(180);
/// Time after a change in which requests that began before its end are answered or fail.
const SETTLE: Duration = Duration::from_secs(3);
/// Number of Pods that are deleted at once.
const DELETED: usize = 3;
/// Number of Pods while they are scaled in.
const FEW: usize = 5;

/// Notes of the page, below its table.
const NOTES: &str = "\
In each row, ten Pods run the same HTTP server, which ends at once when it receives SIGTERM, and 50 clients send about
2,000 requests a second through HAProxy, some of which take two seconds. HAProxy does not repeat requests. Every
workload may have three Pods unavailable during an update; Deployment and Rollout also have their default `maxSurge` of
25 %.

- *Nothing* and *sleep*: HAProxy's servers follow the Pods that are ready and not being deleted, as with an ingress
  controller that needs no time of its own; a real one needs more, and then more requests fail. With *sleep*, the
  container has a `preStop` hook that sleeps 5 s. The containers stop 0.1 s after a Pod is deleted, or after the hook.
- *Acknowledged*: consist-operator removes a Pod from HAProxy, and the Pod's operation continues when HAProxy reports
  that no request is in flight. The containers have no hook.
- *Failed*: requests without a successful response.
- *Fewest in service*: the lowest number of Pods that were ready and, of a CollaSet, in service, during the update,
  read about every 0.1 s. *Seconds* are until all ten are again, and no other Pod exists.
- *Writes per Pod*: of all controllers during the update, events included, without Leases and EndpointSlices.
- Argo Rollouts is a canary without steps, analysis or a traffic router, which is its counterpart of a rolling update.
- Pods of a CollaSet are deleted with the component `graceful-delete`, those of the others by the API server at once.

Argo Rollouts and OpenKruise are built from their Go modules, changed to listen on loopback addresses only, and run with
their own manifests and roles. Kuperator is not in this table, because its Go module could not be downloaded.";

/// Runs all workloads with the operators in `programs`; returns the page.
///
/// # Errors
///
/// If a program cannot be built, a cluster does not start, or a change does not complete in time.
pub async fn run(programs: &Path) -> anyhow::Result<String> {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header([
        "workload",
        "before a Pod stops",
        "updated: failed",
        "seconds",
        "fewest in service",
        "writes per Pod",
        "scaled to 5 and to 10: failed",
        "3 Pods deleted: failed",
    ]);
    for (workload, drain) in workload::ALL {
        let title = workload.title();
        let drained = drain.title();
        eprintln!("==> {title}: {drained}");
        let outcome = Box::pin(measure(programs, workload, drain)).await;
        let outcome = outcome.with_context(|| format!("{title}: {drained}"))?;
        eprintln!("    {outcome:?}");
        table.add_row([
            title,
            drained.to_owned(),
            outcome.updated.failed.to_string(),
            format!("{:.1}", outcome.updated.duration.as_secs_f64()),
            outcome.updated.fewest_in_service.to_string(),
            format!("{:.1}", outcome.updated.writes_per_pod()),
            (outcome.scaled_in.failed + outcome.scaled_out.failed).to_string(),
            outcome.deleted.failed.to_string(),
        ]);
    }
    let head = conditions("bench --comparison")?;
    Ok(format!("# Failed requests by workload\n\n{head}\n\n{table}\n\n{NOTES}\n"))
}

/// Results of the changes of a workload.
#[derive(Debug)]
struct Outcome {
    updated: Change,
    scaled_in: Change,
    scaled_out: Change,
    deleted: Change,
}

/// Result of a change.
#[derive(Debug)]
struct Change {
    /// Number of failed requests.
    failed: u64,
    /// Time until all Pods were in service and no other one existed.
    duration: Duration,
    /// Lowest number of Pods that were in service.
    fewest_in_service: usize,
    /// Number of writes by controllers.
    writes: usize,
}

impl Change {
    fn writes_per_pod(&self) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "counts are small")]
        let each = self.writes as f64 / PODS as f64;
        each
    }
}

/// Changes the Pods of a workload under load.
async fn measure(programs: &Path, workload: Workload, drain: Drain) -> anyhow::Result<Outcome> {
    let (cluster, _controller) = start(programs, workload).await?;
    let haproxy = Haproxy::with_slots(cluster.plane.dir.path(), SLOTS).await?;
    let _ingress = route(&cluster, &haproxy, drain).await?;
    let first = format!("{}:1", server::IMAGE);
    cluster.plane.create(&workload.manifest(drain, &first)).await?;
    let is_first = |pods: &[Pod]| are_in_service(pods, PODS, &first);
    eventually(CHANGE_TIMEOUT, async || Ok(is_first(&pods(&cluster).await?))).await?;
    tokio::time::sleep(SETTLE).await;
    let load = Load::start(haproxy.balancer.front);
    tokio::time::sleep(SETTLE).await;
    load.assert_no_failed_requests("before any change")?;

    let bench = Bench { cluster: &cluster, load: &load };
    let second = format!("{}:2", server::IMAGE);
    let is_updated = |pods: &[Pod]| are_in_service(pods, PODS, &second);
    let updated = bench.run(workload.set_image(&cluster, &second), is_updated).await?;
    let is_few = |pods: &[Pod]| are_in_service(pods, FEW, &second);
    let scaled_in = bench.run(workload.scale(&cluster, FEW), is_few).await?;
    let scaled_out = bench.run(workload.scale(&cluster, PODS), is_updated).await?;
    let doomed: Vec<Pod> = pods(&cluster).await?.into_iter().take(DELETED).collect();
    let is_replaced = |pods: &[Pod]| {
        is_updated(pods) && pods.iter().all(|pod| doomed.iter().all(|old| old.uid() != pod.uid()))
    };
    let deleted = bench.run(delete(&cluster, &doomed), is_replaced).await?;
    load.assert_minimum_rate()?;
    Ok(Outcome { updated, scaled_in, scaled_out, deleted })
}

/// Starts a cluster, and the controller of the workload.
async fn start(
    programs: &Path,
    workload: Workload,
) -> anyhow::Result<(TestCluster, Option<SupervisedProcess>)> {
    if workload == Workload::CollaSet {
        return Ok((TestCluster::start_with_graceful_deletion(programs).await?, None));
    }
    let cluster = TestCluster::start_empty(programs).await?;
    let controller = match workload {
        Workload::Rollout => Some(others::start_argo_rollouts(&cluster).await?),
        Workload::CloneSet => Some(others::start_open_kruise(&cluster).await?),
        Workload::Deployment | Workload::CollaSet => None,
    };
    Ok((cluster, controller))
}

/// Lets HAProxy send traffic to the Pods: by consist-operator, which controls a Service, or by the
/// returned ingress controller.
async fn route(
    cluster: &TestCluster,
    haproxy: &Haproxy,
    drain: Drain,
) -> anyhow::Result<Option<Ingress>> {
    if drain == Drain::Acknowledged {
        let annotations = Haproxy::annotations(&[haproxy.runtime]);
        cluster.create_managed_service("web", json!({ "app": "web" }), &annotations).await?;
        return Ok(None);
    }
    Ok(Some(Ingress::start(cluster, "web", haproxy.runtime, SLOTS)))
}

/// Requests the deletion of Pods, as `kubectl delete` does. With graceful deletion, the requests
/// are rejected, and continue later.
async fn delete(cluster: &TestCluster, doomed: &[Pod]) -> anyhow::Result<()> {
    for pod in doomed {
        match cluster.pods().delete(&pod.name_any(), &DeleteParams::default()).await {
            Err(kube::Error::Api(rejection)) if rejection.message.contains("PodOpsLifecycle") => {}
            deleted => drop(deleted?),
        }
    }
    Ok(())
}

async fn pods(cluster: &TestCluster) -> anyhow::Result<Vec<Pod>> {
    cluster.pods_of("web").await
}

/// Returns whether a controller has written, Leases and EndpointSlices not counted.
fn is_write_of_controller(request: &Request) -> bool {
    request.is_write()
        && request.user().starts_with("system:serviceaccount:")
        && !matches!(request.resource(), "leases" | "endpointslices" | "endpoints")
}

/// Changes Pods under load.
#[derive(Clone, Copy)]
struct Bench<'a> {
    cluster: &'a TestCluster,
    load: &'a Load,
}

impl Bench<'_> {
    /// Makes a change, and waits until it is done.
    async fn run(
        self,
        change: impl Future<Output = anyhow::Result<()>>,
        is_done: impl Fn(&[Pod]) -> bool,
    ) -> anyhow::Result<Change> {
        let before = self.load.stats().failed;
        let log = self.cluster.audit_log_end()?;
        let started = Instant::now();
        change.await?;
        let fewest_in_service = Cell::new(usize::MAX);
        let done = eventually(CHANGE_TIMEOUT, async || {
            let pods = pods(self.cluster).await?;
            let in_service = pods.iter().filter(|pod| is_in_service(pod)).count();
            fewest_in_service.set(fewest_in_service.get().min(in_service));
            Ok(is_done(&pods))
        });
        done.await?;
        let duration = started.elapsed();
        tokio::time::sleep(SETTLE).await;
        let (requests, _) = self.cluster.requests(log)?;
        Ok(Change {
            failed: self.load.stats().failed - before,
            duration,
            fewest_in_service: fewest_in_service.get(),
            writes: requests.iter().filter(|request| is_write_of_controller(request)).count(),
        })
    }
}
