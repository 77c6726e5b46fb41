//! Decorations, jobs, restarts and failing rollouts.

use std::time::{Duration, Instant};

use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use podops_api::{
    collaset::CollaSetStatus, condition, operation_job::OperationJob, operation_job::Progress,
    pod_decoration::PodDecoration, well_known,
};
use serde_json::{Value, json};

use super::{
    rows::{Row, Rows, at_most, count_at_most, zero},
    sets::{SMALL, WAIT_TIMEOUT, delete_all_sets, wait_until_rolled_out},
};
use podops_test_cluster::{
    availability::AvailabilityMonitor,
    cluster::{TestCluster, eventually, image},
    measure::{Cost, Process},
};

/// Number of decorations at rest.
const DECORATIONS: usize = 50;
/// Observation period of decorations at rest.
const STEADY_PERIOD: Duration = Duration::from_secs(60);

/// Creates a decoration of the Pods with this label `app`.
async fn decorate(
    cluster: &TestCluster,
    name: &str,
    app: &str,
    template: Value,
) -> anyhow::Result<()> {
    let decoration = json!({ "metadata": { "name": name }, "spec": {
        "selector": { "matchLabels": { "app": app } }, "template": template } });
    let api: Api<PodDecoration> = cluster.api();
    api.create(&PostParams::default(), &serde_json::from_value(decoration)?).await?;
    Ok(())
}

/// Waits until these numbers of Pods are selected and updated.
async fn wait_for_decorated(
    cluster: &TestCluster,
    name: &str,
    matched: usize,
    updated: usize,
) -> anyhow::Result<()> {
    let api: Api<PodDecoration> = cluster.api();
    let wanted = [matched, updated, updated].map(i32::try_from);
    let [matched, updated, available] = wanted;
    let wanted = [matched?, updated?, available?];
    eventually(WAIT_TIMEOUT, async || {
        let decoration = api.get(name).await?;
        let generation = decoration.metadata.generation;
        let status = decoration.status.unwrap_or_default();
        let pods = [status.matched_pods, status.updated_pods, status.updated_available_pods];
        Ok(Some(status.observed_generation) == generation && pods == wanted)
    })
    .await
}

fn sidecar(image: &str) -> Value {
    json!({ "containers": [
        { "name": "log", "image": image, "injectPolicy": "AfterPrimaryContainer" }] })
}

/// Update of a sidecar of Pods of three CollaSets, under a partition of the decoration.
pub(super) async fn sidecar_update(cluster: &TestCluster, rows: &mut Rows) -> anyhow::Result<()> {
    /// Pods that keep the old sidecar.
    const PARTITION: usize = 5;
    delete_all_sets(cluster).await?;
    decorate(cluster, "fleet", "fleet", sidecar("log:1")).await?;
    let template = json!({
        "metadata": { "labels": { "app": "fleet" } },
        "spec": { "terminationGracePeriodSeconds": 0, "containers": [{ "name": "web", "image": "nginx:1" }] },
    });
    let overrides =
        json!({ "selector": { "matchLabels": { "app": "fleet" } }, "template": template });
    for (set, replicas) in [("fleet-a", 40), ("fleet-b", 40), ("fleet-c", 20 + PARTITION)] {
        cluster.create_with(set, replicas, "nginx:1", &overrides).await?;
    }
    let all = SMALL + PARTITION;
    wait_for_decorated(cluster, "fleet", all, all).await?;
    let api: Api<PodDecoration> = cluster.api();
    let updated = Cost::of(cluster, SMALL, async {
        let strategy = json!({ "rollingUpdate": { "partition": PARTITION } });
        let spec = json!({ "template": sidecar("log:2"), "updateStrategy": strategy });
        let patch = Patch::Merge(json!({ "spec": spec }));
        api.patch("fleet", &PatchParams::default(), &patch).await?;
        wait_for_decorated(cluster, "fleet", all, SMALL).await
    });
    let updated = updated.await?;
    rows.extend([
        at_most(
            "API requests per Pod whose sidecar is updated, of 3 CollaSets under a decoration's partition",
            updated.requests_per_pod(),
            7.0,
            "",
        ),
        zero("rejected writes during that, conflicts included (total)", updated.rejected().len()),
    ]);
    api.delete("fleet", &DeleteParams::default()).await?;
    delete_all_sets(cluster).await
}

/// Restart and replacement of 100 Pods by jobs, and restart by annotation.
pub(super) async fn jobs(cluster: &TestCluster, rows: &mut Rows) -> anyhow::Result<()> {
    cluster.create("fleet", SMALL, "nginx:1").await?;
    wait_until_rolled_out(cluster, "fleet", SMALL).await?;
    let restarted = run_job(cluster, "Restart", json!({})).await?;
    let replaced = run_job(cluster, "Replace", json!({ "parallelism": 10 })).await?;
    let annotated = Cost::of(cluster, SMALL, async {
        let annotations = json!({ (well_known::RESTARTED_AT): "1" });
        let metadata = json!({ "annotations": annotations });
        cluster.patch("fleet", json!({ "template": { "metadata": metadata } })).await?;
        wait_until_rolled_out(cluster, "fleet", SMALL).await
    });
    let annotated = annotated.await?;
    rows.extend([
        at_most(
            "API requests per Pod restarted in place by an OperationJob",
            restarted.requests_per_pod(),
            7.0,
            "",
        ),
        at_most(
            "API requests per Pod replaced by an OperationJob",
            replaced.requests_per_pod(),
            10.0,
            "",
        ),
        at_most(
            "API requests per Pod restarted in place by annotation of the template",
            annotated.requests_per_pod(),
            7.0,
            "",
        ),
    ]);
    delete_all_sets(cluster).await
}

/// Runs a job on all Pods of the CollaSet `fleet`.
async fn run_job(cluster: &TestCluster, action: &str, spec: Value) -> anyhow::Result<Cost> {
    let pods = cluster.pods_of("fleet").await?;
    let live = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
    let targets: Vec<Value> = live.map(|pod| json!({ "name": pod.name_any() })).collect();
    let name = action.to_lowercase();
    let mut job =
        json!({ "metadata": { "name": name }, "spec": { "action": action, "targets": targets } });
    for (field, value) in spec.as_object().into_iter().flatten() {
        job["spec"][field] = value.clone();
    }
    let job = serde_json::from_value(job)?;
    let api: Api<OperationJob> = cluster.api();
    let cost = Cost::of(cluster, SMALL, async {
        api.create(&PostParams::default(), &job).await?;
        eventually(WAIT_TIMEOUT, async || {
            let status = api.get(&name).await?.status.unwrap_or_default();
            Ok(status.progress == Some(Progress::Succeeded))
        })
        .await
    });
    let cost = cost.await?;
    wait_until_rolled_out(cluster, "fleet", SMALL).await?;
    api.delete(&name, &DeleteParams::default()).await?;
    Ok(cost)
}

/// An image that cannot be pulled, with the limit of unavailable Pods that
/// the shipped manifests set, and a failure policy.
pub(super) async fn failing_rollout(
    programs: &std::path::Path,
    rows: &mut Rows,
) -> anyhow::Result<()> {
    let cluster = TestCluster::start(programs).await?;
    let policy = json!({ "failureThreshold": "5%", "action": "Halt" });
    let rolling = json!({ "maxUnavailable": "25%", "failurePolicy": policy });
    let strategy =
        json!({ "progressDeadlineSeconds": 60, "updateStrategy": { "rollingUpdate": rolling } });
    cluster.create_with("bad", SMALL, "nginx:1", &strategy).await?;
    wait_until_rolled_out(&cluster, "bad", SMALL).await?;
    let availability = AvailabilityMonitor::start(&cluster).await?;
    cluster.set_image("bad", "nginx:non-exist").await?;
    let failing = async || {
        let pods = cluster.pods_of("bad").await?;
        Ok(pods.iter().filter(|pod| image(pod) == "nginx:non-exist").count() >= SMALL / 20)
    };
    eventually(WAIT_TIMEOUT, failing).await?;
    let failed = Instant::now();
    cluster.wait_for_status("bad", WAIT_TIMEOUT, |s| has_reason(s, "RolloutHalted")).await?;
    let halted = failed.elapsed();
    let rolling = json!({ "failurePolicy": { "action": "Rollback" } });
    let started = Instant::now();
    cluster.patch("bad", json!({ "updateStrategy": { "rollingUpdate": rolling } })).await?;
    let all = i32::try_from(SMALL)?;
    let is_back = |status: &CollaSetStatus| {
        has_reason(status, "RolledBack") && status.available_replicas == all
    };
    cluster.wait_for_status("bad", WAIT_TIMEOUT, is_back).await?;
    let rolled_back = started.elapsed();
    let unavailable = SMALL - availability.min_available("");
    let seconds = |metric, measured: Duration, limit: f64| -> Row {
        at_most(metric, measured.as_secs_f64(), limit, " s")
    };
    rows.extend([
        count_at_most(
            "maximum of unavailable Pods, of 100 updated to an image that cannot be pulled",
            unavailable,
            SMALL / 4,
        ),
        seconds("time from the fifth failed Pod until the rollout is halted", halted, 5.0),
        seconds("time until all 100 Pods are available after Rollback", rolled_back, 30.0),
    ]);
    Ok(())
}

fn has_reason(status: &CollaSetStatus, reason: &str) -> bool {
    let progressing = condition::find(&status.conditions, "Progressing");
    progressing.is_some_and(|condition| condition.reason.as_deref() == Some(reason))
}

/// 50 decorations of 1,000 Pods at rest.
pub(super) async fn decorations_at_rest(
    cluster: &TestCluster,
    rows: &mut Rows,
) -> anyhow::Result<()> {
    let sets = cluster.sets().list(&kube::api::ListParams::default()).await?.items;
    for index in 0..DECORATIONS {
        let app = sets[index % sets.len()].name_any();
        let key = format!("example.com/note-{index}");
        let template = json!({ "metadata": [{ "annotations": { key: "a note" } }] });
        decorate(cluster, &format!("note-{index}"), &app, template).await?;
    }
    for index in 0..DECORATIONS {
        wait_for_decorated(cluster, &format!("note-{index}"), SMALL, SMALL).await?;
    }
    tokio::time::sleep(STEADY_PERIOD / 4).await;
    let rest = async {
        tokio::time::sleep(STEADY_PERIOD).await;
        Ok(())
    };
    let rest = Cost::of(cluster, 1, rest).await?;
    let memory = Process::of(cluster, "collaset-operator")?.memory;
    rows.extend([
        zero("writes by all operators in 60 s with 50 decorations of 1,000 Pods", rest.writes()),
        at_most(
            "resident memory with 50 decorations of 1,000 Pods, collaset-operator",
            memory.resident_mebibytes,
            30.0,
            " MiB",
        ),
    ]);
    let api: Api<PodDecoration> = cluster.api();
    for index in 0..DECORATIONS {
        api.delete(&format!("note-{index}"), &DeleteParams::default()).await?;
    }
    let none = async || Ok(api.list(&kube::api::ListParams::default()).await?.items.is_empty());
    eventually(WAIT_TIMEOUT, none).await
}
