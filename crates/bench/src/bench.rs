//! `podops-bench bench`: measures all performance targets in one run, and reports them as a
//! Markdown table.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use comfy_table::{ContentArrangement, Table, presets::ASCII_MARKDOWN};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Service};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use podops_api::well_known;

use podops_test_cluster::{
    availability::AvailabilityMonitor,
    balancers::Haproxy,
    cluster::{OPERATORS, TestCluster, eventually, memory_limit_mebibytes},
    measure::{Cost, Process},
    scenarios::Scenario,
    traffic::{Load, server_set, update_recreate_and_scale, update_without_consist},
};
use serde_json::{Value, json};

use crate::page::conditions;

mod comparisons;
mod package_rows;
mod packages;
mod rollouts;
mod rows;
mod sets;
mod terminal;

use rows::{
    BINARY_SIZE_LIMIT_MB, Row, Rows, at_most, count_at_most, print_step, without_target, zero,
};
use sets::{SMALL, WAIT_TIMEOUT, delete_all_sets, wait_until_rolled_out};

/// Title of the page.
const TITLE: &str = "Benchmarks";
/// Number of timed rollouts of the small CollaSet and of the Deployment.
const ROUNDS: usize = 9;
/// Number of Pods for memory and steady state, in CollaSets of [`SMALL`].
const MANY: usize = 1000;
/// Observation period of the steady state: longer than the interval at which controllers reconcile
/// objects that do not change.
const STEADY_PERIOD: Duration = Duration::from_secs(660);
/// Observation period of consist-operator's requests with stable Pods.
const STEADY_SERVICES_PERIOD: Duration = Duration::from_secs(60);
/// Number of Pods of the large CollaSet.
const BIG: usize = 5000;
/// Number of CollaSets that [`BIG`] Pods are spread over.
const SETS: usize = 100;
/// Number of rollouts of one CollaSet beside few and many others.
const ROLLOUTS: u32 = 20;
/// Number of Pods after the large CollaSet is scaled out.
const HUGE: usize = 10_000;
/// Images to which Pods are updated in turn while processor time is measured.
const UPDATES: [&str; 3] = ["nginx:1", "nginx:2", "nginx:3"];

/// Runs the benchmark with the operators in `programs`, only its short part if `quick`; returns a
/// Markdown page.
///
/// # Errors
///
/// If the cluster does not start, a request fails or a wait times out.
pub async fn run(programs: &Path, quick: bool) -> anyhow::Result<String> {
    let mut rows = Rows::default();
    sizes(programs, &mut rows)?;
    let cluster = TestCluster::start(programs).await?;
    print_step("100 Pods: create, update by every method, scale in");
    costs(&cluster, &mut rows).await?;
    print_step("100 Pods under a PodTransitionRule");
    with_rule(&cluster, &mut rows).await?;
    print_step("100 Pods updated in place, and a Deployment's rolling update");
    against_deployment(&cluster, &mut rows).await?;
    print_step("100 Pods of a Service");
    with_service(&cluster, &mut rows).await?;
    print_step("10 servers behind HAProxy under load");
    under_load(programs, &mut rows).await?;
    print_step("100 Pods updated to an image that cannot be pulled");
    rollouts::failing_rollout(programs, &mut rows).await?;
    if quick {
        forbidden(&cluster, &mut rows)?;
        return table(TITLE, "bench", &rows);
    }
    print_step("1,000 Pods: memory");
    memory(&cluster, &mut rows).await?;
    print_step("1,000 stable Pods for 11 min");
    steady_state(&cluster, &mut rows).await?;
    print_step("50 decorations of 1,000 Pods");
    rollouts::decorations_at_rest(&cluster, &mut rows).await?;
    print_step("1,000 Pods in 50 Services");
    in_services(&cluster, &mut rows).await?;
    print_step("1,000 Pods waiting for a PodTransitionRule");
    waiting(&cluster, &mut rows).await?;
    print_step("rollouts of one CollaSet among 10 and among 1,000");
    among_others(&cluster, &mut rows).await?;
    print_step("100 Pods with a sidecar of a decoration");
    rollouts::sidecar_update(&cluster, &mut rows).await?;
    print_step("100 Pods restarted and replaced by jobs");
    rollouts::jobs(&cluster, &mut rows).await?;
    print_step("kubectl podops get --watch while 1,000 Pods are updated");
    terminal::watched_rollout(&cluster, programs, &mut rows).await?;
    print_step("1,000 Pods with 3 containers, 20 environment variables each and 10 annotations");
    large_pods(&cluster, &mut rows).await?;
    print_step("5,000 Pods in 100 CollaSets");
    many_sets(&cluster, &mut rows).await?;
    print_step("5,000 Pods in one CollaSet: create, update in place, scale out to 10,000");
    big(&cluster, &mut rows).await.context("CollaSet of 5,000 Pods")?;
    forbidden(&cluster, &mut rows)?;
    table(TITLE, "bench", &rows)
}

/// Runs the benchmark of packages with the operators in `programs`; the community packages are in
/// `community`, if they are there, and the tests have recorded in `compared` how they differ from
/// KUDO. Returns a Markdown page.
///
/// # Errors
///
/// As [`run`].
pub async fn run_packages(
    programs: &Path,
    community: &Path,
    compared: &Path,
) -> anyhow::Result<String> {
    let rows = Box::pin(packages::run(programs, community, compared)).await?;
    table("Benchmarks of packages", "bench --packages", &rows)
}

/// Measures only the processor time of the operators in `programs` per Pod that is updated in
/// place, to compare builds; returns a Markdown page.
///
/// # Errors
///
/// As [`run`].
pub async fn run_processor(programs: &Path) -> anyhow::Result<String> {
    let mut rows = Rows::default();
    let cluster = TestCluster::start(programs).await?;
    print_step("1,000 Pods updated in place three times");
    processor(&cluster, &mut rows).await?;
    table("Processor time", "bench --processor", &rows)
}

fn table(title: &str, command: &str, rows: &Rows) -> anyhow::Result<String> {
    let head = format!(
        "# {title}\n\n{}\nRequests are counted in the API server's audit log.\n\n",
        conditions(command)?
    );
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(["metric", "target", "measured", "met"]);
    for row in &rows.0 {
        let met = row.met.map_or("–", |met| if met { "yes" } else { "**no**" });
        table.add_row([row.metric, &row.target, &row.measured, met]);
    }
    Ok(format!("{head}{table}\n"))
}

fn sizes(programs: &Path, rows: &mut Rows) -> anyhow::Result<()> {
    for (name, metric) in OPERATORS.into_iter().zip([
        "binary size, stripped release, collaset-operator",
        "binary size, stripped release, consist-operator",
        "binary size, stripped release, lifecycle-operator",
        "binary size, stripped release, operationjob-operator",
        "binary size, stripped release, transition-rule-operator",
    ]) {
        #[allow(clippy::cast_precision_loss, reason = "programs are small")]
        let megabytes = programs.join(name).metadata()?.len() as f64 / 1e6;
        rows.push(at_most(metric, megabytes, BINARY_SIZE_LIMIT_MB, " MB"));
    }
    Ok(())
}

async fn costs(cluster: &TestCluster, rows: &mut Rows) -> anyhow::Result<()> {
    let web = Scenario { cluster, set: "web", pods: SMALL };
    let created = web.create().await?;
    rows.push(at_most("API requests per Pod created", created.requests_per_pod(), 3.6, ""));
    let updated = web.update_in_place("nginx:1").await?;
    rows.extend([
        at_most("Pod writes per Pod updated in place", updated.pod_writes_per_pod(), 6.1, ""),
        zero("rejected writes during that, conflicts included (total)", updated.rejected().len()),
        zero("writes without effect during that (total)", updated.no_op_writes()),
        at_most("API requests per Pod updated in place", updated.requests_per_pod(), 6.2, ""),
        Row {
            metric: "CollaSet status writes in any second of that rollout",
            target: "≤ 1".to_owned(),
            measured: updated.max_status_writes_per_second("collasets").to_string(),
            met: Some(updated.max_status_writes_per_second("collasets") <= 1),
        },
    ]);
    for write in updated.suspicious_writes() {
        let pod = write.name();
        let part = write.subresource();
        eprintln!(
            "    {} {} {pod} {part} by {} {}",
            write.at,
            write.verb,
            write.user(),
            write.user_agent
        );
    }
    let (annotated, lost) = web.annotate("1").await?;
    let recreated = web.recreate("nginx:2").await?;
    let replaced = web.replace("nginx:3").await?;
    let idle = web.annotate_from_another_client().await?;
    let scaled_in = web.scale_in(SMALL / 5).await?;
    rows.extend([
        at_most(
            "API requests per Pod updated in metadata only",
            annotated.requests_per_pod(),
            1.2,
            "",
        ),
        zero("Pods that left service during that", lost),
        at_most("API requests per Pod recreated", recreated.requests_per_pod(), 8.5, ""),
        at_most(
            "API requests per Pod updated by replacement",
            replaced.requests_per_pod(),
            11.0,
            "",
        ),
        zero("writes by all operators when another client annotates 100 idle Pods", idle.writes()),
        at_most("API requests per Pod scaled in", scaled_in.requests_per_pod(), 5.0, ""),
    ]);
    cluster.patch("web", json!({ "replicas": SMALL })).await?;
    wait_until_rolled_out(cluster, "web", SMALL).await?;
    web.update_in_place("nginx:4").await.map(drop)
}

/// Cost of an update under a rule that permits operations on a tenth of the Pods at a time.
async fn with_rule(cluster: &TestCluster, rows: &mut Rows) -> anyhow::Result<()> {
    let tenth = json!([{ "name": "tenth", "availablePolicy": { "maxUnavailableValue": "10%" } }]);
    cluster.create_rule("web", json!({ "matchLabels": { "app": "web" } }), tenth).await?;
    let availability = AvailabilityMonitor::start(cluster).await?;
    let web = Scenario { cluster, set: "web", pods: SMALL };
    let updated = web.update_in_place("nginx:rule").await?;
    let unavailable = availability.max_unavailable("");
    let statuses = updated.max_status_writes_per_second("podtransitionrules");
    rows.extend([
        at_most("Pod writes per Pod updated under a rule", updated.pod_writes_per_pod(), 7.2, ""),
        zero("rejected writes during that, conflicts included (total)", updated.rejected().len()),
        at_most("API requests per Pod updated under a rule", updated.requests_per_pod(), 7.2, ""),
        count_at_most(
            "maximum of unavailable Pods, of 100 with maxUnavailable 10%",
            unavailable,
            SMALL / 10,
        ),
        count_at_most("PodTransitionRule status writes in any second of that rollout", statuses, 1),
        without_target(
            "duration of that rollout",
            format!("{:.1} s", updated.duration.as_secs_f64()),
        ),
    ]);
    cluster.rules().delete("web", &DeleteParams::default()).await?;
    let gates_removed = async || {
        let pods = cluster.pods_of("web").await?;
        Ok(pods.iter().all(|pod| !pod.labels().keys().any(|key| key.contains("-check-gate."))))
    };
    eventually(WAIT_TIMEOUT, gates_removed).await.context("waiting for the removal of gates")
}

/// Failed requests through HAProxy while its servers are updated, recreated and scaled.
async fn under_load(programs: &Path, rows: &mut Rows) -> anyhow::Result<()> {
    let cluster = TestCluster::start(programs).await?;
    let haproxy = Haproxy::start(cluster.plane.dir.path()).await?;
    let annotations = Haproxy::annotations(&[haproxy.runtime]);
    cluster.create_managed_service("web", json!({ "app": "web" }), &annotations).await?;
    cluster.create_and_wait("web", 10, &server_set("web", "InPlaceIfPossible", 3)).await?;
    let load = Load::start(haproxy.balancer.front);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let result = update_recreate_and_scale(&cluster, &load).await;
    let stats = load.stats();
    let rate = load.rate();
    if stats.failed == 0 {
        result?;
    }
    let failed_without_consist = update_without_consist(&cluster, &load).await?;
    let row = |metric, target: &str, measured: String, met| Row {
        metric,
        target: target.to_owned(),
        measured,
        met,
    };
    let failed = usize::try_from(stats.failed)?;
    rows.extend([
        row(
            "requests through HAProxy while 10 servers are updated in place, recreated, scaled to 5 and to 10",
            "–",
            stats.succeeded.to_string(),
            None,
        ),
        zero("failed requests during that", failed),
        row("requests per second", "≥ 2000", format!("{rate:.0}"), Some(rate >= 2000.0)),
        row(
            "failed requests during the same in-place update without consist-operator (control run)",
            "> 0",
            failed_without_consist.to_string(),
            Some(failed_without_consist > 0),
        ),
    ]);
    Ok(())
}

/// Steady state of consist-operator: five Services per CollaSet, each with a part of its Pods.
async fn in_services(cluster: &TestCluster, rows: &mut Rows) -> anyhow::Result<()> {
    /// Number of Services per CollaSet.
    const SERVICES_PER_SET: usize = 5;
    let operator = "consist-operator";
    let all = ListParams::default();
    let mut services = Vec::new();
    for set in cluster.sets().list(&all).await?.items {
        let name = set.name_any();
        for part in 0..SERVICES_PER_SET {
            let service = format!("{name}-{part}");
            let selector = json!({ "app": name, "part": part.to_string() });
            cluster.create_managed_service(&service, selector, &json!({})).await?;
            services.push(service);
        }
        for (index, pod) in cluster.pods_of(&name).await?.iter().enumerate() {
            let part = json!({ "labels": { "part": (index % SERVICES_PER_SET).to_string() } });
            cluster.patch_pod_metadata(&pod.name_any(), part).await?;
        }
    }
    let all_protected = async || {
        let pods = cluster.pods().list(&all).await?.items;
        let is_protection = |f: &String| f.starts_with(well_known::PROTECTION_FINALIZER);
        let protected = pods.iter().filter(|pod| pod.finalizers().iter().any(is_protection));
        Ok(protected.count() == MANY)
    };
    eventually(WAIT_TIMEOUT, all_protected).await.context("waiting for protection finalizers")?;
    tokio::time::sleep(STEADY_SERVICES_PERIOD / 4).await;
    let from = cluster.audit_log_end()?;
    tokio::time::sleep(STEADY_SERVICES_PERIOD).await;
    let (requests, _) = cluster.requests(from)?;
    let own = requests.iter().filter(|r| r.is_operator_request() && r.operator() == Some(operator));
    let writes = own.clone().filter(|r| r.is_write()).count();
    let calls = own.filter(|r| r.resource() == "endpointslices" && r.verb == "list").count();
    rows.extend([
        zero("writes by consist-operator in 60 s with 1,000 stable Pods in 50 Services", writes),
        count_at_most(
            "EndpointSlice lists by consist-operator in those 60 s",
            calls,
            services.len(),
        ),
        at_most(
            "resident memory with 1,000 Pods in 50 Services, consist-operator",
            Process::of(cluster, operator)?.memory.resident_mebibytes,
            30.0,
            " MiB",
        ),
    ]);
    for service in services {
        cluster.api::<Service>().delete(&service, &DeleteParams::default()).await?;
    }
    let all_released = async || {
        let pods = cluster.pods().list(&all).await?.items;
        Ok(pods.iter().all(|pod| pod.finalizers().is_empty()))
    };
    eventually(WAIT_TIMEOUT, all_released).await.context("waiting for the removal of finalizers")
}

/// Cost of repeated reconciles of a rule that many Pods wait for.
async fn waiting(cluster: &TestCluster, rows: &mut Rows) -> anyhow::Result<()> {
    /// Number of Pod changes, each of which triggers a reconcile, and the interval between them.
    const SAMPLES: u32 = 150;
    const INTERVAL: Duration = Duration::from_millis(200);
    let none = json!([{ "name": "none", "availablePolicy": { "maxUnavailableValue": 0 } }]);
    cluster.create_rule("all", json!({}), none).await?;
    for set in cluster.sets().list(&ListParams::default()).await?.items {
        cluster.set_image(&set.name_any(), "nginx:wait").await?;
    }
    let all = i32::try_from(MANY)?;
    let all_waiting = async || {
        let status = cluster.rules().get("all").await?.status.unwrap_or_default();
        Ok(status.pods.is_some_and(|pods| pods.waiting == all))
    };
    eventually(WAIT_TIMEOUT, all_waiting)
        .await
        .context("waiting until the rule blocks all Pods")?;
    let pod = cluster.pods().list(&ListParams::default().limit(1)).await?.items;
    let pod = pod.first().context("no Pods found")?.name_any();
    let operator = "transition-rule-operator";
    let before = Process::of(cluster, operator)?;
    let cost = Cost::of(cluster, MANY, async {
        for sample in 0..SAMPLES {
            let labels = json!({ "labels": { "example.com/sample": sample.to_string() } });
            cluster.patch_pod_metadata(&pod, labels).await?;
            tokio::time::sleep(INTERVAL).await;
        }
        Ok(())
    })
    .await?;
    let each = Process::of(cluster, operator)?.cpu_since(&before)?.as_secs_f64() * 1e3;
    let statuses = cost.max_status_writes_per_second("podtransitionrules");
    rows.extend([
        at_most(
            "CPU time per reconcile with 1,000 waiting Pods, transition-rule-operator",
            each / f64::from(SAMPLES),
            20.0,
            " ms",
        ),
        count_at_most("PodTransitionRule status writes in any second of that", statuses, 1),
        without_target("writes by all operators during that, in 30 s", cost.writes().to_string()),
        at_most(
            "resident memory with 1,000 waiting Pods, transition-rule-operator",
            Process::of(cluster, operator)?.memory.resident_mebibytes,
            30.0,
            " MiB",
        ),
    ]);
    cluster.rules().delete("all", &DeleteParams::default()).await?;
    for set in cluster.sets().list(&ListParams::default()).await?.items {
        wait_until_rolled_out(cluster, &set.name_any(), SMALL).await?;
    }
    Ok(())
}

/// Cost of an update whose Pods have to be released by a Service.
async fn with_service(cluster: &TestCluster, rows: &mut Rows) -> anyhow::Result<()> {
    cluster
        .create_managed_service("with-service", json!({ "app": "with-service" }), &json!({}))
        .await?;
    let set = Scenario { cluster, set: "with-service", pods: SMALL };
    set.create().await?;
    let cost = set.update_in_place("nginx:1").await?;
    let own = cost.operator_requests().filter(|r| r.operator() == Some("consist-operator"));
    let own = own.filter(|r| r.is_write() && r.resource() == "pods").count();
    #[allow(clippy::cast_precision_loss, reason = "not that many")]
    let each = own as f64 / SMALL as f64;
    rows.extend([
        at_most("Pod writes by consist-operator per Pod updated in place", each, 2.0, ""),
        at_most(
            "Pod writes by all operators per Pod updated in place, with one Service",
            cost.pod_writes_per_pod(),
            8.0,
            "",
        ),
        zero("rejected writes during that, conflicts included (total)", cost.rejected().len()),
    ]);
    cluster.sets().delete("with-service", &DeleteParams::default()).await?;
    let deleted = async || Ok(cluster.sets().get_opt("with-service").await?.is_none());
    eventually(WAIT_TIMEOUT, deleted).await?;
    cluster.api::<Service>().delete("with-service", &DeleteParams::default()).await?;
    Ok(())
}

/// Duration of an in-place update relative to a Deployment's rolling update, with the same
/// `maxUnavailable`; the Deployment also has its default `maxSurge` of 25 %.
async fn against_deployment(cluster: &TestCluster, rows: &mut Rows) -> anyhow::Result<()> {
    let limit = json!({ "maxUnavailable": "25%" });
    cluster.patch("web", json!({ "updateStrategy": { "rollingUpdate": limit } })).await?;
    let deployments: Api<Deployment> = Api::namespaced(cluster.plane.admin.clone(), "default");
    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": { "name": "native" },
        "spec": {
            "replicas": SMALL,
            "strategy": { "rollingUpdate": limit },
            "selector": { "matchLabels": { "app": "native" } },
            "template": {
                "metadata": { "labels": { "app": "native" } },
                "spec": { "terminationGracePeriodSeconds": 0, "containers": [{ "name": "web", "image": "nginx:0" }] },
            },
        },
    }))?;
    deployments.create(&PostParams::default(), &deployment).await?;
    wait_for_deployment(&deployments).await?;
    let mut collaset_times = Vec::new();
    let mut deployment_times = Vec::new();
    for round in 0..ROUNDS {
        let image = format!("nginx:round-{round}");
        let started = Instant::now();
        cluster.set_image("web", &image).await?;
        wait_until_rolled_out(cluster, "web", SMALL).await?;
        collaset_times.push(started.elapsed());
        let containers = json!([{ "name": "web", "image": image }]);
        let change: Value =
            json!({ "spec": { "template": { "spec": { "containers": containers } } } });
        let started = Instant::now();
        deployments.patch("native", &PatchParams::default(), &Patch::Strategic(change)).await?;
        wait_for_deployment(&deployments).await?;
        deployment_times.push(started.elapsed());
    }
    deployments.delete("native", &DeleteParams::background()).await?;
    let no_limit = json!({ "updateStrategy": { "rollingUpdate": { "maxUnavailable": null } } });
    cluster.patch("web", no_limit).await?;
    let collaset = median(collaset_times);
    let deployment = median(deployment_times);
    let ratio = collaset.as_secs_f64() / deployment.as_secs_f64();
    rows.push(at_most(
        "duration of an in-place update of 100 Pods, relative to a Deployment's rolling update",
        ratio,
        3.0,
        "",
    ));
    rows.push(without_target(
        "the two durations, CollaSet and Deployment, medians of 9",
        format!("{:.1} s, {:.1} s", collaset.as_secs_f64(), deployment.as_secs_f64()),
    ));
    Ok(())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

async fn wait_for_deployment(deployments: &Api<Deployment>) -> anyhow::Result<()> {
    eventually(WAIT_TIMEOUT, async || {
        let deployment = deployments.get("native").await?;
        let status = deployment.status.unwrap_or_default();
        let all = Some(i32::try_from(SMALL)?);
        Ok(status.observed_generation == deployment.metadata.generation
            && status.updated_replicas == all
            && status.replicas == all
            && status.available_replicas == all)
    })
    .await
    .context("waiting for the Deployment")
}

async fn memory(cluster: &TestCluster, rows: &mut Rows) -> anyhow::Result<()> {
    for set in 1..MANY / SMALL {
        cluster.create(&format!("web-{set}"), SMALL, "nginx:0").await?;
    }
    for set in 1..MANY / SMALL {
        wait_until_rolled_out(cluster, &format!("web-{set}"), SMALL).await?;
    }
    for set in 1..MANY / SMALL {
        cluster.set_image(&format!("web-{set}"), "nginx:1").await?;
    }
    for set in 1..MANY / SMALL {
        wait_until_rolled_out(cluster, &format!("web-{set}"), SMALL).await?;
    }
    for (name, after, peak) in [
        (
            "collaset-operator",
            "resident memory after a rollout of 1,000 Pods, collaset-operator",
            "peak memory after a restart with 1,000 Pods, collaset-operator",
        ),
        (
            "lifecycle-operator",
            "resident memory after a rollout of 1,000 Pods, lifecycle-operator",
            "peak memory after a restart with 1,000 Pods, lifecycle-operator",
        ),
    ] {
        let now = Process::of(cluster, name)?;
        rows.push(at_most(after, now.memory.resident_mebibytes, 30.0, " MiB"));
        cluster.kill_and_restart(name).await?;
        // The Lease of the killed leader has to expire first.
        tokio::time::sleep(Duration::from_secs(15)).await;
        rows.push(at_most(peak, Process::of(cluster, name)?.memory.peak_mebibytes, 30.0, " MiB"));
    }
    Ok(())
}

async fn steady_state(cluster: &TestCluster, rows: &mut Rows) -> anyhow::Result<()> {
    let from = cluster.audit_log_end()?;
    tokio::time::sleep(STEADY_PERIOD).await;
    let (requests, _) = cluster.requests(from)?;
    let writes = requests.iter().filter(|r| r.is_operator_request() && r.is_write()).count();
    rows.push(zero("writes by all operators in 11 min with 1,000 stable Pods", writes));
    Ok(())
}

/// Requests of operators that were forbidden since the cluster was started.
fn forbidden(cluster: &TestCluster, rows: &mut Rows) -> anyhow::Result<()> {
    let (all, _) = cluster.requests(0)?;
    let forbidden = all.iter().filter(|r| r.is_operator_request() && r.code() == 403).count();
    rows.push(zero("requests forbidden by the shipped roles", forbidden));
    Ok(())
}

/// Creates the CollaSets `<name>-0` to `<name>-<sets - 1>`, and waits until they are rolled out.
async fn create_sets(
    cluster: &TestCluster,
    name: &str,
    sets: usize,
    pods: usize,
) -> anyhow::Result<()> {
    for set in 0..sets {
        cluster.create(&format!("{name}-{set}"), pods, "nginx:0").await?;
    }
    for set in 0..sets {
        wait_until_rolled_out(cluster, &format!("{name}-{set}"), pods).await?;
    }
    Ok(())
}

async fn many_sets(cluster: &TestCluster, rows: &mut Rows) -> anyhow::Result<()> {
    delete_all_sets(cluster).await?;
    let pods = BIG / SETS;
    create_sets(cluster, "one", SETS, pods).await?;
    let before = Process::of(cluster, "collaset-operator")?;
    let cost = Cost::of(cluster, BIG, async {
        for set in 0..SETS {
            cluster.set_image(&format!("one-{set}"), "nginx:1").await?;
        }
        for set in 0..SETS {
            wait_until_rolled_out(cluster, &format!("one-{set}"), pods).await?;
        }
        Ok(())
    })
    .await?;
    let now = Process::of(cluster, "collaset-operator")?;
    let each = per_pod(now.cpu_since(&before)?, BIG);
    rows.extend([
        without_target("5,000 Pods in 100 CollaSets: updated in place", summary(&cost)),
        at_most("API requests per Pod for that", cost.requests_per_pod(), 7.0, ""),
        at_most(
            "resident memory after that, collaset-operator",
            now.memory.resident_mebibytes,
            80.0,
            " MiB",
        ),
        without_target("CPU time per Pod for that, collaset-operator", each),
    ]);
    Ok(())
}

/// Memory of all operators with Pods of a usual size.
async fn large_pods(cluster: &TestCluster, rows: &mut Rows) -> anyhow::Result<()> {
    delete_all_sets(cluster).await?;
    for operator in OPERATORS {
        cluster.kill_and_restart(operator).await?;
    }
    for set in 0..MANY / SMALL {
        let name = format!("large-{set}");
        let template = json!({ "template": large_template(&name, "nginx:0") });
        cluster.create_with(&name, SMALL, "nginx:0", &template).await?;
    }
    for set in 0..MANY / SMALL {
        wait_until_rolled_out(cluster, &format!("large-{set}"), SMALL).await?;
    }
    for set in 0..MANY / SMALL {
        let name = format!("large-{set}");
        cluster.patch(&name, json!({ "template": large_template(&name, "nginx:1") })).await?;
    }
    for set in 0..MANY / SMALL {
        wait_until_rolled_out(cluster, &format!("large-{set}"), SMALL).await?;
    }
    for (operator, metric) in [
        ("collaset-operator", "peak memory for 1,000 large Pods, collaset-operator"),
        ("consist-operator", "peak memory for 1,000 large Pods, consist-operator"),
        ("lifecycle-operator", "peak memory for 1,000 large Pods, lifecycle-operator"),
        ("operationjob-operator", "peak memory for 1,000 large Pods, operationjob-operator"),
        ("transition-rule-operator", "peak memory for 1,000 large Pods, transition-rule-operator"),
    ] {
        let peak = cluster.operator(operator)?.peak_mebibytes();
        let half = memory_limit_mebibytes(operator)? / 2.0;
        rows.push(at_most(metric, peak, half, " MiB"));
    }
    Ok(())
}

/// Pod template with 3 containers, 20 environment variables each and 10 annotations.
fn large_template(app: &str, image: &str) -> Value {
    let env: Vec<Value> = (0..20)
        .map(|n| json!({ "name": format!("VARIABLE_{n}"), "value": format!("value of variable {n}") }))
        .collect();
    let annotations: serde_json::Map<_, _> = (0..10)
        .map(|n| (format!("example.com/annotation-{n}"), json!("a value of a usual length")))
        .collect();
    let container = |name: &str, image: &str| json!({ "name": name, "image": image, "env": env });
    json!({
        "metadata": { "labels": { "app": app }, "annotations": annotations },
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [
                container("web", image),
                container("proxy", "envoy:1"),
                container("log-shipper", "vector:1"),
            ],
        },
    })
}

/// CPU time of collaset-operator for a rollout of one CollaSet, by the number of others.
async fn among_others(cluster: &TestCluster, rows: &mut Rows) -> anyhow::Result<()> {
    delete_all_sets(cluster).await?;
    cluster.create("changing", 20, "nginx:0").await?;
    wait_until_rolled_out(cluster, "changing", 20).await?;
    create_sets(cluster, "few", 10, 1).await?;
    let few = cpu_per_rollout(cluster, "few").await?;
    create_sets(cluster, "many", MANY - 10, 1).await?;
    let many = cpu_per_rollout(cluster, "many").await?;
    rows.push(at_most(
        "CPU time of collaset-operator per rollout of 20 Pods among 1,000 CollaSets, relative to among 10",
        many.as_secs_f64() / few.as_secs_f64(),
        1.5,
        "",
    ));
    rows.push(without_target(
        "the two CPU times, among 10 and among 1,000",
        format!("{few:.1?}, {many:.1?}"),
    ));
    Ok(())
}

async fn cpu_per_rollout(cluster: &TestCluster, round: &str) -> anyhow::Result<Duration> {
    let before = Process::of(cluster, "collaset-operator")?;
    for turn in 0..ROLLOUTS {
        cluster.set_image("changing", &format!("nginx:{round}-{turn}")).await?;
        wait_until_rolled_out(cluster, "changing", 20).await?;
    }
    Ok(Process::of(cluster, "collaset-operator")?.cpu_since(&before)? / ROLLOUTS)
}

/// Processor time of the operators for updates in place of one CollaSet.
async fn processor(cluster: &TestCluster, rows: &mut Rows) -> anyhow::Result<()> {
    let measured = [
        ("collaset-operator", "processor time per Pod updated in place, collaset-operator"),
        ("lifecycle-operator", "processor time per Pod updated in place, lifecycle-operator"),
    ];
    cluster.create("web", MANY, "nginx:0").await?;
    wait_until_rolled_out(cluster, "web", MANY).await?;
    let before = measured.map(|(name, _)| Process::of(cluster, name));
    for image in UPDATES {
        cluster.set_image("web", image).await?;
        wait_until_rolled_out(cluster, "web", MANY).await?;
    }
    for ((name, metric), before) in measured.into_iter().zip(before) {
        let cpu = Process::of(cluster, name)?.cpu_since(&before?)?;
        rows.push(without_target(metric, per_pod(cpu, MANY * UPDATES.len())));
    }
    Ok(())
}

/// Processor time per Pod, such as `1.25 ms`.
fn per_pod(time: Duration, pods: usize) -> String {
    #[allow(clippy::cast_precision_loss, reason = "counts are small")]
    let each = time.as_secs_f64() * 1000.0 / pods as f64;
    format!("{each:.2} ms")
}

async fn big(cluster: &TestCluster, rows: &mut Rows) -> anyhow::Result<()> {
    delete_all_sets(cluster).await?;
    let cost = Cost::of(cluster, BIG, async {
        cluster.create("big", BIG, "nginx:0").await?;
        wait_until_rolled_out(cluster, "big", BIG).await
    })
    .await?;
    rows.push(without_target("5,000 Pods in one CollaSet: created", summary(&cost)));
    let measured = [
        ("collaset-operator", "CPU time and peak memory for that, collaset-operator"),
        ("lifecycle-operator", "CPU time and peak memory for that, lifecycle-operator"),
    ];
    let before = measured.map(|(name, _)| Process::of(cluster, name));
    let cost = Cost::of(cluster, BIG, async {
        cluster.set_image("big", "nginx:1").await?;
        wait_until_rolled_out(cluster, "big", BIG).await
    })
    .await?;
    rows.push(without_target("5,000 Pods in one CollaSet: updated in place", summary(&cost)));
    for ((name, metric), before) in measured.into_iter().zip(before) {
        let now = Process::of(cluster, name)?;
        let cpu = now.cpu_since(&before?)?;
        let seconds = cpu.as_secs_f64();
        let each = per_pod(cpu, BIG);
        let peak = now.memory.peak_mebibytes;
        let measured = format!("{seconds:.1} CPU s ({each} per Pod), peak {peak:.0} MiB");
        rows.push(without_target(metric, measured));
    }
    let cost = Cost::of(cluster, HUGE - BIG, async {
        cluster.patch("big", json!({ "replicas": HUGE })).await?;
        wait_until_rolled_out(cluster, "big", HUGE).await
    })
    .await?;
    rows.push(without_target("10,000 Pods in one CollaSet: scaled out from 5,000", summary(&cost)));
    for (operator, metric) in [
        ("collaset-operator", "peak memory with 10,000 Pods, collaset-operator"),
        ("consist-operator", "peak memory with 10,000 Pods, consist-operator"),
        ("lifecycle-operator", "peak memory with 10,000 Pods, lifecycle-operator"),
        ("transition-rule-operator", "peak memory with 10,000 Pods, transition-rule-operator"),
    ] {
        let peak = cluster.operator(operator)?.peak_mebibytes();
        rows.push(at_most(metric, peak, memory_limit_mebibytes(operator)?, " MiB"));
    }
    Ok(())
}

fn summary(cost: &Cost) -> String {
    format!(
        "{:.0} s, {:.2} requests per Pod, {} rejected",
        cost.duration.as_secs_f64(),
        cost.requests_per_pod(),
        cost.rejected().len(),
    )
}
