//! `podops-cluster bench`: the figures that Podops promises, measured side by side in one run.

use std::{path::Path, time::Duration};

use anyhow::Context as _;
use comfy_table::{ContentArrangement, Table, presets::ASCII_MARKDOWN};
use indicatif::{ProgressBar, ProgressStyle};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Service};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use podops_api::well_known;
use procfs::Current as _;
use serde_json::{Value, json};

use crate::{
    availability::AvailabilityMonitor,
    balancers::Haproxy,
    cluster::{OPERATORS, TestCluster, eventually, is_rolled_out},
    measure::{Cost, Process},
    scenarios::Scenario,
    traffic::{Load, update_recreate_and_scale, update_without_consist, server_set},
};

/// The small set, of which each Pod's cost is counted.
const SMALL: usize = 100;
/// How often the small set and the Deployment are timed.
const ROUNDS: usize = 5;
/// The Pods with which memory and rest are measured, in sets of [`SMALL`].
const MANY: usize = 1000;
/// How long the settled sets are watched.
const REST: Duration = Duration::from_secs(60);
/// The set that is rolled out as one.
const BIG: usize = 5000;
/// The sets that as many Pods are spread over.
const SETS: usize = 100;
/// How often one set is rolled out among few and many others.
const ROLLOUTS: u32 = 20;
/// What the simulated nodes are to carry.
const HUGE: usize = 10_000;
/// How long anything may take before it counts as stuck.
const STUCK: Duration = Duration::from_secs(900);

/// One promise, and what was measured.
struct Row {
    figure: &'static str,
    limit: String,
    measured: String,
    /// Whether it was kept; nothing was promised where there is none.
    kept: Option<bool>,
}

/// Measures everything, or only what is quick, with the operators in `programs`; tells it as a table
/// in Markdown.
///
/// # Errors
///
/// If something gets stuck.
pub async fn run(programs: &Path, quick: bool) -> anyhow::Result<String> {
    let mut rows = Vec::new();
    sizes(programs, &mut rows)?;
    let cluster = TestCluster::start_with_default_lease(programs).await?;
    say("100 Pods: created, updated in every way, and scaled in");
    costs(&cluster, &mut rows).await?;
    say("100 Pods under a rule");
    under_a_rule(&cluster, &mut rows).await?;
    say("100 Pods in place, and in turn a Deployment's");
    against_deployment(&cluster, &mut rows).await?;
    say("100 Pods of a Service");
    with_an_employer(&cluster, &mut rows).await?;
    say("10 servers behind HAProxy under load");
    under_load(programs, &mut rows).await?;
    if quick {
        return table(&rows);
    }
    say("1,000 Pods: memory");
    memory(&cluster, &mut rows).await?;
    say("1,000 Pods at rest for a minute");
    rest(&cluster, &mut rows).await?;
    say("1,000 Pods in 50 Services");
    in_services(&cluster, &mut rows).await?;
    say("1,000 Pods that wait for a rule");
    waiting(&cluster, &mut rows).await?;
    say("one set that changes among 10 and among 1,000");
    among_others(&cluster, &mut rows).await?;
    say("5,000 Pods in 100 sets");
    many_sets(&cluster, &mut rows).await?;
    say("5,000 Pods as one set: created, updated in place, and scaled out to 10,000");
    big(&cluster, &mut rows).await.context("the set of 5,000 Pods")?;
    table(&rows)
}

fn say(what: &str) {
    eprintln!("==> {what}");
}

/// Waits until a set is settled, and shows how far it is.
async fn settle(cluster: &TestCluster, name: &str, replicas: usize) -> anyhow::Result<()> {
    let bar = ProgressBar::new(replicas as u64);
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} Pods {elapsed}")?);
    let all = i32::try_from(replicas)?;
    cluster
        .wait_for_status(name, STUCK, |status| {
            bar.set_position(u64::try_from(status.updated_available_replicas).unwrap_or_default());
            is_rolled_out(status, all)
        })
        .await?;
    bar.finish_and_clear();
    Ok(())
}

fn table(rows: &[Row]) -> anyhow::Result<String> {
    #[allow(clippy::disallowed_methods, reason = "a record of when it was measured")]
    let date = jiff::Timestamp::now().strftime("%Y-%m-%d");
    let memory = procfs::Meminfo::current()?.mem_total >> 30;
    let cores = std::thread::available_parallelism()?;
    let head = format!(
        "# Benchmarks\n\n\
         Written by `cargo xtask bench` on {date}, on a machine of {cores} cores and {memory} GiB: a real etcd and kube-apiserver v1.36 with simulated nodes and release builds of the operators share it.\n\
         Requests are counted in the API server's audit log.\n\n"
    );
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(["figure", "must reach", "measured", "kept"]);
    for row in rows {
        let kept = row.kept.map_or("–", |kept| if kept { "yes" } else { "**no**" });
        table.add_row([row.figure, &row.limit, &row.measured, kept]);
    }
    Ok(format!("{head}{table}\n"))
}

fn most(figure: &'static str, measured: f64, limit: f64, unit: &str) -> Row {
    Row {
        figure,
        limit: format!("≤ {limit}{unit}"),
        measured: format!("{measured:.2}{unit}"),
        kept: Some(measured <= limit),
    }
}

fn none(figure: &'static str, measured: usize) -> Row {
    Row { figure, limit: "0".into(), measured: measured.to_string(), kept: Some(measured == 0) }
}

fn counted(figure: &'static str, measured: usize, limit: usize) -> Row {
    let kept = Some(measured <= limit);
    Row { figure, limit: format!("≤ {limit}"), measured: measured.to_string(), kept }
}

fn told(figure: &'static str, measured: String) -> Row {
    Row { figure, limit: "–".into(), measured, kept: None }
}

fn sizes(programs: &Path, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    for (name, figure) in OPERATORS.into_iter().zip([
        "stripped release binary, collaset-operator",
        "stripped release binary, consist-operator",
        "stripped release binary, lifecycle-operator",
        "stripped release binary, transition-rule-operator",
    ]) {
        #[allow(clippy::cast_precision_loss, reason = "programs are small")]
        let megabytes = programs.join(name).metadata()?.len() as f64 / 1e6;
        rows.push(most(figure, megabytes, 12.0, " MB"));
    }
    Ok(())
}

async fn costs(cluster: &TestCluster, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let web = Scenario { cluster, set: "web", pods: SMALL };
    let created = web.create().await?;
    rows.push(most("requests per Pod to create", created.requests_per_pod(), 3.6, ""));
    let updated = web.update_in_place("nginx:1").await?;
    rows.extend([
        most("Pod writes per Pod updated in place", updated.pod_writes_per_pod(), 6.1, ""),
        none("of these refused, in all", updated.rejected().len()),
        none("of these without effect, in all", updated.no_op_writes()),
        most("requests per Pod updated in place", updated.requests_per_pod(), 7.0, ""),
        Row {
            figure: "CollaSet status writes in any second of that rollout",
            limit: "≤ 1".to_owned(),
            measured: updated.max_status_writes_per_second("collasets").to_string(),
            kept: Some(updated.max_status_writes_per_second("collasets") <= 1),
        },
    ]);
    let (annotated, lost) = web.annotate("1").await?;
    let recreated = web.recreate("nginx:2").await?;
    let replaced = web.replace("nginx:3").await?;
    let alone = web.annotate_from_another_client().await?;
    let went = web.scale_in(SMALL / 5).await?;
    rows.extend([
        most(
            "requests per Pod of which only metadata change",
            annotated.requests_per_pod(),
            1.2,
            "",
        ),
        none("of these Pods, out of traffic meanwhile", lost),
        most("requests per Pod recreated", recreated.requests_per_pod(), 8.5, ""),
        most("requests per Pod updated by replacement", replaced.requests_per_pod(), 11.0, ""),
        none("writes when somebody else writes to 100 idle Pods", alone.writes()),
        most("requests per Pod scaled in", went.requests_per_pod(), 5.0, ""),
    ]);
    cluster.patch("web", json!({ "replicas": SMALL })).await?;
    settle(cluster, "web", SMALL).await?;
    web.update_in_place("nginx:4").await.map(drop)
}

/// What a rule costs that lets a tenth of the Pods go at a time.
async fn under_a_rule(cluster: &TestCluster, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let tenth = json!([{ "name": "tenth", "availablePolicy": { "maxUnavailableValue": "10%" } }]);
    cluster.create_rule("web", json!({ "matchLabels": { "app": "web" } }), tenth).await?;
    let availability = AvailabilityMonitor::start(cluster).await?;
    let web = Scenario { cluster, set: "web", pods: SMALL };
    let updated = web.update_in_place("nginx:rule").await?;
    let worst = availability.max_unavailable("");
    let statuses = updated.max_status_writes_per_second("podtransitionrules");
    rows.extend([
        most("Pod writes per Pod updated under a rule", updated.pod_writes_per_pod(), 7.2, ""),
        none("of these refused, in all", updated.rejected().len()),
        most("requests per Pod updated under a rule", updated.requests_per_pod(), 8.5, ""),
        counted("Pods out at a time, of 100 under a budget of 10 %", worst, SMALL / 10),
        counted("status writes of the rule in any second of that", statuses, 1),
        told("the time that took", format!("{:.1} s", updated.took.as_secs_f64())),
    ]);
    cluster.rules().delete("web", &DeleteParams::default()).await?;
    let gone = async || {
        let pods = cluster.pods_of("web").await?;
        Ok(pods.iter().all(|pod| !pod.labels().keys().any(|key| key.contains("-check-gate."))))
    };
    eventually(STUCK, gone).await.context("waiting for gates to go")
}

/// Real servers behind a real HAProxy, with requests that are counted while everything is done to them.
async fn under_load(programs: &Path, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let cluster = TestCluster::start(programs).await?;
    let haproxy = Haproxy::start(cluster.plane.dir.path()).await?;
    let annotations = Haproxy::annotations(&[haproxy.runtime]);
    cluster.create_managed_service("web", json!({ "app": "web" }), &annotations).await?;
    cluster.create_and_wait("web", 10, &server_set("web", "InPlaceIfPossible", 3)).await?;
    let load = Load::start(haproxy.balancer.front);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let done = update_recreate_and_scale(&cluster, &load).await;
    let (tally, rate) = (load.tally(), load.rate());
    if tally.failed == 0 {
        done?;
    }
    let careless = update_without_consist(&cluster, &load).await?;
    let row = |figure, limit: &str, measured: String, kept| Row {
        figure,
        limit: limit.to_owned(),
        measured,
        kept,
    };
    let failed = usize::try_from(tally.failed)?;
    rows.extend([
        row(
            "requests through HAProxy while 10 servers are updated in place and anew, scaled to 5 and to 10",
            "–",
            tally.answered.to_string(),
            None,
        ),
        none("of these failed", failed),
        row("requests a second", "≥ 2000", format!("{rate:.0}"), Some(rate >= 2000.0)),
        row(
            "failed of an update in place that nobody looks at the traffic of",
            "> 0",
            careless.to_string(),
            Some(careless > 0),
        ),
    ]);
    Ok(())
}

/// The settled sets get Services that hold their Pods: five a set, and each of a part of it.
async fn in_services(cluster: &TestCluster, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    /// How many Services each set's Pods are spread over.
    const EACH: usize = 5;
    let operator = "consist-operator";
    let all = ListParams::default();
    let mut employers = Vec::new();
    for set in cluster.sets().list(&all).await?.items {
        let name = set.name_any();
        for part in 0..EACH {
            let service = format!("{name}-{part}");
            let selector = json!({ "app": name, "part": part.to_string() });
            cluster.create_managed_service(&service, selector, &json!({})).await?;
            employers.push(service);
        }
        for (at, pod) in cluster.pods_of(&name).await?.iter().enumerate() {
            let part = json!({ "labels": { "part": (at % EACH).to_string() } });
            cluster.patch_pod_metadata(&pod.name_any(), part).await?;
        }
    }
    let held = async || {
        let pods = cluster.pods().list(&all).await?.items;
        let has_protection_finalizer = |f: &String| f.starts_with(well_known::PROTECTION_FINALIZER);
        let held = pods.iter().filter(|pod| pod.finalizers().iter().any(has_protection_finalizer));
        Ok(held.count() == MANY)
    };
    eventually(STUCK, held).await.context("waiting for all to be held")?;
    tokio::time::sleep(REST / 4).await;
    let from = cluster.audit_log_end()?;
    tokio::time::sleep(REST).await;
    let (requests, _) = cluster.requests(from)?;
    let own = requests.iter().filter(|r| r.is_work() && r.operator() == Some(operator));
    let writes = own.clone().filter(|r| r.is_write()).count();
    let calls = own.filter(|r| r.resource() == "endpointslices" && r.verb == "list").count();
    rows.extend([
        none("writes by consist-operator in 60 s with 1,000 Pods held by 50 Services", writes),
        counted("calls of its backend in that minute", calls, employers.len()),
        most(
            "resident memory with them, consist-operator",
            Process::of(cluster, operator)?.resident_mebibytes,
            30.0,
            " MiB",
        ),
    ]);
    for service in employers {
        cluster.api::<Service>().delete(&service, &DeleteParams::default()).await?;
    }
    let free = async || {
        let pods = cluster.pods().list(&all).await?.items;
        Ok(pods.iter().all(|pod| pod.finalizers().is_empty()))
    };
    eventually(STUCK, free).await.context("waiting for all to be let go")
}

/// What it costs to look at many Pods that wait, again and again.
async fn waiting(cluster: &TestCluster, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    /// How often, and how fast, somebody gives reason to look.
    const SAMPLES: u32 = 150;
    const PACE: Duration = Duration::from_millis(200);
    let nobody = json!([{ "name": "nobody", "availablePolicy": { "maxUnavailableValue": 0 } }]);
    cluster.create_rule("all", json!({}), nobody).await?;
    for set in cluster.sets().list(&ListParams::default()).await?.items {
        cluster.set_image(&set.name_any(), "nginx:wait").await?;
    }
    let all = i32::try_from(MANY)?;
    let waiting = async || {
        let status = cluster.rules().get("all").await?.status.unwrap_or_default();
        Ok(status.pods.is_some_and(|pods| pods.waiting == all))
    };
    eventually(STUCK, waiting).await.context("waiting for all to wait")?;
    let pod = cluster.pods().list(&ListParams::default().limit(1)).await?.items;
    let pod = pod.first().context("there are no Pods")?.name_any();
    let operator = "transition-rule-operator";
    let before = Process::of(cluster, operator)?;
    let cost = Cost::of(cluster, MANY, async {
        for sample in 0..SAMPLES {
            let labels = json!({ "labels": { "example.com/sample": sample.to_string() } });
            cluster.patch_pod_metadata(&pod, labels).await?;
            tokio::time::sleep(PACE).await;
        }
        Ok(())
    })
    .await?;
    let each = Process::of(cluster, operator)?.cpu_since(&before)?.as_secs_f64() * 1e3;
    let statuses = cost.max_status_writes_per_second("podtransitionrules");
    rows.extend([
        most(
            "processor time of a look at 1,000 waiting Pods",
            each / f64::from(SAMPLES),
            20.0,
            " ms",
        ),
        counted("status writes of the rule in any second of that", statuses, 1),
        told("writes in all, in 30 s", cost.writes().to_string()),
        most(
            "resident memory with them, transition-rule-operator",
            Process::of(cluster, operator)?.resident_mebibytes,
            30.0,
            " MiB",
        ),
    ]);
    cluster.rules().delete("all", &DeleteParams::default()).await?;
    for set in cluster.sets().list(&ListParams::default()).await?.items {
        settle(cluster, &set.name_any(), SMALL).await?;
    }
    Ok(())
}

/// What an update costs where a Service has to let go of each Pod.
async fn with_an_employer(cluster: &TestCluster, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    cluster.create_managed_service("employed", json!({ "app": "employed" }), &json!({})).await?;
    let set = Scenario { cluster, set: "employed", pods: SMALL };
    set.create().await?;
    let cost = set.update_in_place("nginx:1").await?;
    let own = cost.operator_requests().filter(|r| r.operator() == Some("consist-operator"));
    let own = own.filter(|r| r.is_write() && r.resource() == "pods").count();
    #[allow(clippy::cast_precision_loss, reason = "not that many")]
    let each = own as f64 / SMALL as f64;
    rows.extend([
        most("Pod writes by consist-operator per Pod updated in place", each, 2.0, ""),
        most("Pod writes by all for that, with one employer", cost.pod_writes_per_pod(), 8.0, ""),
        none("of these refused, in all", cost.rejected().len()),
    ]);
    cluster.sets().delete("employed", &DeleteParams::default()).await?;
    let gone = async || Ok(cluster.sets().get_opt("employed").await?.is_none());
    eventually(STUCK, gone).await?;
    cluster.api::<Service>().delete("employed", &DeleteParams::default()).await?;
    Ok(())
}

async fn against_deployment(cluster: &TestCluster, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(cluster.plane.admin.clone(), "default");
    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": { "name": "native" },
        "spec": {
            "replicas": SMALL,
            "selector": { "matchLabels": { "app": "native" } },
            "template": {
                "metadata": { "labels": { "app": "native" } },
                "spec": { "terminationGracePeriodSeconds": 0, "containers": [{ "name": "web", "image": "nginx:0" }] },
            },
        },
    }))?;
    deployments.create(&PostParams::default(), &deployment).await?;
    rolled_out(&deployments).await?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let image = format!("nginx:round-{round}");
        let cost = Cost::of(cluster, SMALL, async {
            cluster.set_image("web", &image).await?;
            settle(cluster, "web", SMALL).await
        });
        ours.push(cost.await?.took);
        let containers = json!([{ "name": "web", "image": image }]);
        let change: Value =
            json!({ "spec": { "template": { "spec": { "containers": containers } } } });
        let cost = Cost::of(cluster, SMALL, async {
            deployments.patch("native", &PatchParams::default(), &Patch::Strategic(change)).await?;
            rolled_out(&deployments).await
        });
        theirs.push(cost.await?.took);
    }
    deployments.delete("native", &DeleteParams::background()).await?;
    let (ours, theirs) = (median(ours), median(theirs));
    let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
    rows.push(most(
        "wall time, 100 Pods in place, as a multiple of a Deployment's rolling update",
        ratio,
        3.0,
        "",
    ));
    rows.push(told(
        "the two times, medians of 5",
        format!("{:.1} s, {:.1} s", ours.as_secs_f64(), theirs.as_secs_f64()),
    ));
    Ok(())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

async fn rolled_out(deployments: &Api<Deployment>) -> anyhow::Result<()> {
    eventually(STUCK, async || {
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

async fn memory(cluster: &TestCluster, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    for set in 1..MANY / SMALL {
        cluster.create(&format!("web-{set}"), SMALL, "nginx:0").await?;
    }
    for set in 1..MANY / SMALL {
        settle(cluster, &format!("web-{set}"), SMALL).await?;
    }
    for set in 1..MANY / SMALL {
        cluster.set_image(&format!("web-{set}"), "nginx:1").await?;
    }
    for set in 1..MANY / SMALL {
        settle(cluster, &format!("web-{set}"), SMALL).await?;
    }
    for (name, after, peak) in [
        (
            "collaset-operator",
            "resident memory with 1,000 Pods, after a rollout of all, collaset-operator",
            "peak after a restart with 1,000 Pods, collaset-operator",
        ),
        (
            "lifecycle-operator",
            "resident memory with 1,000 Pods, after a rollout of all, lifecycle-operator",
            "peak after a restart with 1,000 Pods, lifecycle-operator",
        ),
    ] {
        let now = Process::of(cluster, name)?;
        rows.push(most(after, now.resident_mebibytes, 30.0, " MiB"));
        cluster.kill_and_restart(name).await?;
        // The Lease of the one that was killed has to expire first.
        tokio::time::sleep(Duration::from_secs(15)).await;
        rows.push(most(peak, Process::of(cluster, name)?.peak_mebibytes, 30.0, " MiB"));
    }
    Ok(())
}

async fn rest(cluster: &TestCluster, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let settled = cluster.audit_log_end()?;
    tokio::time::sleep(REST).await;
    let (requests, _) = cluster.requests(settled)?;
    let writes = requests.iter().filter(|r| r.is_work() && r.is_write()).count();
    rows.push(none("writes by all operators in 60 s with 1,000 settled Pods", writes));
    let (all, _) = cluster.requests(0)?;
    let forbidden = all.iter().filter(|r| r.is_work() && r.code() == 403).count();
    rows.push(none("requests that the shipped roles forbid", forbidden));
    Ok(())
}

/// Deletes every set, and waits until they are gone.
async fn clear(cluster: &TestCluster) -> anyhow::Result<()> {
    let all = ListParams::default();
    for set in cluster.sets().list(&all).await?.items {
        cluster.sets().delete(&set.name_any(), &DeleteParams::default()).await?;
    }
    eventually(STUCK, async || Ok(cluster.sets().list(&all).await?.items.is_empty())).await
}

/// Makes sets of this name and a number, and waits until they are settled.
async fn fill(cluster: &TestCluster, name: &str, sets: usize, pods: usize) -> anyhow::Result<()> {
    for set in 0..sets {
        cluster.create(&format!("{name}-{set}"), pods, "nginx:0").await?;
    }
    for set in 0..sets {
        settle(cluster, &format!("{name}-{set}"), pods).await?;
    }
    Ok(())
}

async fn many_sets(cluster: &TestCluster, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    clear(cluster).await?;
    let pods = BIG / SETS;
    fill(cluster, "one", SETS, pods).await?;
    let before = Process::of(cluster, "collaset-operator")?;
    let cost = Cost::of(cluster, BIG, async {
        for set in 0..SETS {
            cluster.set_image(&format!("one-{set}"), "nginx:1").await?;
        }
        for set in 0..SETS {
            settle(cluster, &format!("one-{set}"), pods).await?;
        }
        Ok(())
    })
    .await?;
    let now = Process::of(cluster, "collaset-operator")?;
    #[allow(clippy::cast_precision_loss, reason = "counts are small")]
    let each = now.cpu_since(&before)?.as_secs_f64() * 1000.0 / BIG as f64;
    rows.extend([
        told("5,000 Pods in 100 sets: all updated in place", summary(&cost)),
        most("requests per Pod for that", cost.requests_per_pod(), 7.0, ""),
        most("resident memory after that, collaset-operator", now.resident_mebibytes, 80.0, " MiB"),
        told("processor time per Pod for that, collaset-operator", format!("{each:.2} ms")),
    ]);
    Ok(())
}

/// What a rollout of one set costs the operator, by how many others there are.
async fn among_others(cluster: &TestCluster, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    clear(cluster).await?;
    cluster.create("changing", 20, "nginx:0").await?;
    settle(cluster, "changing", 20).await?;
    fill(cluster, "few", 10, 1).await?;
    let few = rollouts(cluster, "few").await?;
    fill(cluster, "many", MANY - 10, 1).await?;
    let many = rollouts(cluster, "many").await?;
    rows.push(most(
        "processor time of collaset-operator for a rollout of 20 Pods among 1,000 sets, as a multiple of that among 10",
        many.as_secs_f64() / few.as_secs_f64(),
        1.5,
        "",
    ));
    rows.push(told("the two times", format!("{few:.1?}, {many:.1?}")));
    Ok(())
}

async fn rollouts(cluster: &TestCluster, round: &str) -> anyhow::Result<Duration> {
    let before = Process::of(cluster, "collaset-operator")?;
    for turn in 0..ROLLOUTS {
        cluster.set_image("changing", &format!("nginx:{round}-{turn}")).await?;
        settle(cluster, "changing", 20).await?;
    }
    Ok(Process::of(cluster, "collaset-operator")?.cpu_since(&before)? / ROLLOUTS)
}

async fn big(cluster: &TestCluster, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    clear(cluster).await?;
    let cost = Cost::of(cluster, BIG, async {
        cluster.create("big", BIG, "nginx:0").await?;
        settle(cluster, "big", BIG).await
    })
    .await?;
    rows.push(told("5,000 Pods as one set: created", summary(&cost)));
    let before = OPERATORS.map(|name| Process::of(cluster, name));
    let cost = Cost::of(cluster, BIG, async {
        cluster.set_image("big", "nginx:1").await?;
        settle(cluster, "big", BIG).await
    })
    .await?;
    rows.push(told("5,000 Pods as one set: updated in place", summary(&cost)));
    for ((name, figure), before) in OPERATORS
        .into_iter()
        .zip(["for that, collaset-operator", "for that, lifecycle-operator"])
        .zip(before)
    {
        let now = Process::of(cluster, name)?;
        let cpu = now.cpu_since(&before?)?.as_secs_f64();
        #[allow(clippy::cast_precision_loss, reason = "counts are small")]
        let each = cpu * 1000.0 / BIG as f64;
        rows.push(told(
            figure,
            format!("{cpu:.1} CPU s ({each:.2} ms per Pod), peak {:.0} MiB", now.peak_mebibytes),
        ));
    }
    let cost = Cost::of(cluster, HUGE - BIG, async {
        cluster.patch("big", json!({ "replicas": HUGE })).await?;
        settle(cluster, "big", HUGE).await
    })
    .await?;
    rows.push(told("10,000 Pods as one set: scaled out from 5,000", summary(&cost)));
    Ok(())
}

fn summary(cost: &Cost) -> String {
    format!(
        "{:.0} s, {:.2} requests per Pod, {} refused",
        cost.took.as_secs_f64(),
        cost.requests_per_pod(),
        cost.rejected().len(),
    )
}
