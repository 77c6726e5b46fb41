//! `podops-bench bench --packages`: the targets of instance-operator and `kubectl kudo`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use go_template::{Data, Environment, Limits, Template};
use instance_operator::{values::template_values, view::Version};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use podops_api::kudo::{ExecutionStatus, Instance, InstanceStatus, OperatorVersion};
use podops_packages::{
    convert,
    package::{Files, Package},
};
use serde_json::{Value, json};

use super::{
    comparisons, package_rows,
    rows::{
        BINARY_SIZE_LIMIT_MB, Row, Rows, at_most, count_at_most, print_step, without_target, zero,
    },
};
use podops_test_cluster::{
    audit::Request,
    cluster::{INSTANCE_OPERATOR, TIMEOUT, TestCluster, eventually},
    measure::Process,
    package_kills, permissions,
    process::cpu_time,
};

use crate::packages::folder_of;

/// Number of Instances at rest, and of objects of each.
const INSTANCES: usize = 500;
const OBJECTS: usize = 10;
/// Number of times that the operator is killed.
const KILLS: usize = 200;
/// Number of rounds, of which the median is reported.
const ROUNDS: usize = 20;
/// Number of Jobs of the step whose message changes most.
const JOBS: usize = 40;
/// Number of reconciles of a waiting run that are measured.
const RECONCILES: u32 = 200;
/// Number of times that the largest package is rendered.
const RENDERS: u32 = 20;
/// Time limit of the creation of all Instances.
const MANY_TIMEOUT: Duration = Duration::from_secs(600);
/// Period of observation.
const PERIOD: Duration = Duration::from_secs(60);

/// The cluster, and its Instances.
struct Lab {
    cluster: TestCluster,
    instances: Api<Instance>,
    versions: Api<OperatorVersion>,
}

/// Measures the targets with the programs of a directory. Cassandra's package is rendered if it is
/// in `community`. The tests have recorded in `compared` how they differ from KUDO.
///
/// # Errors
///
/// If the cluster does not start, a request fails or a wait times out.
pub(super) async fn run(
    programs: &Path,
    community: &Path,
    compared: &Path,
) -> anyhow::Result<Rows> {
    let mut rows = Rows::default();
    sizes(programs, &mut rows)?;
    comparisons::add(compared, &mut rows)?;
    print_step("Cassandra: rendering");
    render(community, &mut rows)?;
    let cluster = TestCluster::start_with_packages(programs).await?;
    let resources = "configmaps,secrets,jobs.batch";
    cluster.create_writer("writer", resources).await?;
    let instances = cluster.api();
    let versions = cluster.api();
    let lab = Lab { cluster, instances, versions };
    print_step("one ConfigMap, and 20");
    lab.small_plans(&mut rows).await?;
    print_step("a step that waits");
    lab.waiting(&mut rows).await?;
    lab.rare_requests().await?;
    print_step("500 Instances with 5,000 ConfigMaps");
    lab.many(&mut rows).await?;
    let (mut requests, _) = lab.cluster.requests(0)?;
    print_step("a CollaSet behind HAProxy, updated by a plan");
    requests.extend(package_rows::rollout(programs, &mut rows).await?);
    print_step("200 kills, half of them with two operators");
    requests.extend(kills(programs, &mut rows).await?);
    let forbidden = requests.iter().filter(|r| r.is_operator_request() && r.is_unauthorized());
    rows.push(zero("requests that were forbidden", forbidden.count()));
    let unused = permissions::unused(&lab.cluster, INSTANCE_OPERATOR, &requests).await?;
    eprintln!("    never used: {unused:?}");
    rows.push(zero("verbs granted and never used", unused.len()));
    Ok(rows)
}

/// Kills the operator at random points of runs, in a cluster of its own. Returns the requests.
async fn kills(programs: &Path, rows: &mut Rows) -> anyhow::Result<Vec<Request>> {
    let mut cluster = TestCluster::start_with_packages_for_standby(programs).await?;
    let started = Instant::now();
    let killed = package_kills::run(&mut cluster, KILLS).await?;
    eprintln!("    {KILLS} kills in {:.0?}: {killed:?}", started.elapsed());
    rows.push(without_target(
        "`kill -9` at random points, half of them with two operators",
        format!("{KILLS} in {} runs, all COMPLETE", killed.runs),
    ));
    let metric = "after these: Secrets and Pods of Pipe tasks made again in a run";
    rows.push(zero(metric, killed.made_again));
    rows.push(zero("after these: complete steps entered again", killed.entered_again));
    Ok(cluster.requests(0)?.0)
}

fn sizes(programs: &Path, rows: &mut Rows) -> anyhow::Result<()> {
    let programs = [
        ("stripped release, instance-operator", programs.join(INSTANCE_OPERATOR)),
        ("stripped release, kubectl-kudo", programs.join("kubectl-kudo")),
    ];
    for (metric, path) in programs {
        let size = path.metadata().with_context(|| path.display().to_string())?.len();
        #[allow(clippy::cast_precision_loss, reason = "programs are small")]
        rows.push(at_most(metric, size as f64 / 1e6, BINARY_SIZE_LIMIT_MB, " MB"));
    }
    Ok(())
}

/// Renders all templates of Cassandra's plan `deploy` with its defaults.
fn render(community: &Path, rows: &mut Rows) -> anyhow::Result<()> {
    let Some(folder) = folder_of("cassandra", community)? else {
        eprintln!("there is no package of Cassandra in {}", community.display());
        return Ok(());
    };
    let package = Package::read(&files(&folder)?)?;
    let spec = convert::operator_version(&package)?.spec;
    let steps = spec.plans["deploy"].phases.iter().flat_map(|phase| &phase.steps);
    let tasks: BTreeSet<&String> = steps.flat_map(|step| &step.tasks).collect();
    let of_deploy = spec.tasks.iter().filter(|task| tasks.contains(&task.name));
    let templates: Vec<&String> = of_deploy.flat_map(|task| &task.spec.resources).collect();
    let version = Version { spec: spec.clone(), ..Version::default() };
    let names = ["Name", "Namespace", "OperatorName", "PlanName", "PhaseName", "StepName"];
    let data = Data {
        names: names.map(|name| (name.to_owned(), "cassandra".to_owned())).into(),
        parameters: template_values(&version, &BTreeMap::new()),
        pipes: None,
    };
    let environment =
        Environment { now: Timestamp::UNIX_EPOCH, seed: Vec::new(), limits: Limits::default() };
    let own = std::process::id();
    let before = cpu_time(own)?;
    let mut length = 0;
    for _ in 0..RENDERS {
        for name in &templates {
            let template = Template::parse(name, &spec.templates[*name])?;
            length += template.render(&data, &environment)?.len();
        }
    }
    let each = cpu_time(own)?.saturating_sub(before) / RENDERS;
    eprintln!("    {} templates, {length} bytes in {RENDERS} rounds", templates.len());
    rows.push(at_most(
        "processor time to render Cassandra's deploy",
        each.as_secs_f64() * 1e3,
        20.0,
        " ms",
    ));
    Ok(())
}

/// Template of ConfigMaps with names that begin with that of the Instance.
fn config_maps(count: usize) -> String {
    let map = |n| {
        let name = format!("{{{{ .Name }}}}-{n}");
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name },
            "data": { "p": "{{ .Params.P }}" },
        })
        .to_string()
    };
    (0..count).map(map).collect::<Vec<_>>().join("\n---\n")
}

/// Content of an OperatorVersion with one plan, whose steps have a task for the template of their
/// name.
fn package(steps: &[&str], templates: &Value) -> Value {
    let tasks: Vec<Value> = steps
        .iter()
        .map(|name| json!({ "name": name, "kind": "Apply", "spec": { "resources": [name] } }))
        .collect();
    let steps: Vec<Value> =
        steps.iter().map(|name| json!({ "name": name, "tasks": [name] })).collect();
    let phase = json!({ "name": "main", "strategy": "serial", "steps": steps });
    json!({
        "operator": { "name": "toy" }, "version": "0.1.0",
        "parameters": [{ "name": "P", "default": "before" }],
        "templates": templates, "tasks": tasks,
        "plans": { "deploy": { "strategy": "serial", "phases": [phase] } },
    })
}

fn is_deployed(instance: &Instance) -> bool {
    let deploy = instance.status.as_ref().and_then(|status| status.plan_status.get("deploy"));
    deploy.is_some_and(|plan| plan.status == ExecutionStatus::Complete)
}

impl Lab {
    async fn version(&self, name: &str, spec: Value) -> anyhow::Result<()> {
        let version = json!({ "metadata": { "name": name }, "spec": spec });
        let version = serde_json::from_value(version)?;
        self.versions.create(&PostParams::default(), &version).await?;
        Ok(())
    }

    async fn create(&self, name: &str, version: &str) -> anyhow::Result<()> {
        let spec =
            json!({ "operatorVersion": { "name": version }, "serviceAccountName": "writer" });
        let instance =
            serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec }))?;
        self.instances.create(&PostParams::default(), &instance).await?;
        Ok(())
    }

    /// Waits until `deploy` of an Instance is complete.
    async fn wait_until_deployed(&self, name: &str) -> anyhow::Result<()> {
        let deployed = async || Ok(is_deployed(&self.instances.get(name).await?));
        eventually(TIMEOUT, deployed).await.with_context(|| format!("deploy of {name}"))
    }

    /// Requests of the operator since an offset of the audit log, once there are no more for some
    /// time.
    async fn requests(&self, since: u64) -> anyhow::Result<Vec<Request>> {
        let of_operator = |request: &Request| {
            request.operator() == Some(INSTANCE_OPERATOR)
                && request.is_operator_request()
                && request.verb != "watch"
        };
        let mut count = usize::MAX;
        loop {
            let (mut requests, _) = self.cluster.requests(since)?;
            requests.retain(of_operator);
            if requests.len() == count {
                return Ok(requests);
            }
            count = requests.len();
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
    }

    async fn small_plans(&self, rows: &mut Rows) -> anyhow::Result<()> {
        self.version("one", package(&["a"], &json!({ "a": config_maps(1) }))).await?;
        self.version("twenty", package(&["a"], &json!({ "a": config_maps(20) }))).await?;
        self.requests(0).await?;
        let since = self.cluster.audit_log_end()?;
        self.create("one", "one").await?;
        self.wait_until_deployed("one").await?;
        let writes = self.requests(since).await?.iter().filter(|r| r.is_write()).count();
        rows.push(count_at_most("writes for the smallest deploy, events included", writes, 4));

        let since = self.cluster.audit_log_end()?;
        self.create("twenty", "twenty").await?;
        self.wait_until_deployed("twenty").await?;
        let requests = self.requests(since).await?;
        let is_status = |request: &Request| request.subresource() == "status";
        let last = requests.iter().position(is_status).context("no status was written")?;
        let metric = "requests for a step that applies 20 new objects, until COMPLETE";
        rows.push(count_at_most(metric, last + 1, 23));

        let before = self.config_map_versions().await?;
        let request = json!({ "planName": "deploy", "uid": "again" });
        let patch = json!({ "spec": { "planExecution": request } });
        let merge = Patch::Merge(patch);
        self.instances.patch("twenty", &PatchParams::default(), &merge).await?;
        self.wait_for("twenty", |status| status.history.iter().any(|run| run.uid == "again"))
            .await?;
        let after = self.config_map_versions().await?;
        let moved = after.iter().filter(|(name, version)| before.get(*name) != Some(*version));
        let metric = "the same plan again: objects whose resourceVersion moves";
        rows.push(zero(metric, moved.count()));
        Ok(())
    }

    /// Requests that most plans do not need: the OperatorVersion that an Instance names does not
    /// exist, the events of two plans alternate, and a cleanup fails.
    async fn rare_requests(&self) -> anyhow::Result<()> {
        let mut two = package(&["a"], &json!({ "a": config_maps(1) }));
        two["plans"]["other"] = two["plans"]["deploy"].clone();
        two["plans"]["cleanup"] = package(&["missing"], &json!({}))["plans"]["deploy"].clone();
        self.create("two", "two").await?;
        self.wait_for("two", |status| !status.conditions.is_empty()).await?;
        self.version("two", two).await?;
        self.wait_until_deployed("two").await?;
        for (plan, uid) in [("other", "first"), ("deploy", "second"), ("other", "third")] {
            let request = json!({ "planName": plan, "uid": uid });
            let patch = Patch::Merge(json!({ "spec": { "planExecution": request } }));
            self.instances.patch("two", &PatchParams::default(), &patch).await?;
            self.wait_for("two", |status| status.history.iter().any(|run| run.uid == uid)).await?;
        }
        let since = self.cluster.audit_log_end()?;
        self.instances.delete("two", &DeleteParams::default()).await?;
        let is_read = async || {
            let (requests, _) = self.cluster.requests(since)?;
            Ok(requests.iter().any(|request| request.resource() == "namespaces"))
        };
        eventually(TIMEOUT, is_read).await.context("the namespace of a failed cleanup")?;
        let finalizers = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        self.instances.patch("two", &PatchParams::default(), &finalizers).await?;
        Ok(())
    }

    /// Waits until the status of an Instance is as expected.
    async fn wait_for(
        &self,
        name: &str,
        is_expected: impl Fn(&InstanceStatus) -> bool,
    ) -> anyhow::Result<()> {
        let reached = async || {
            let status = self.instances.get(name).await?.status.unwrap_or_default();
            Ok(is_expected(&status))
        };
        eventually(TIMEOUT, reached).await.with_context(|| name.to_owned())
    }

    /// resourceVersions of ConfigMaps by name.
    async fn config_map_versions(&self) -> anyhow::Result<BTreeMap<String, String>> {
        let maps: Api<ConfigMap> = self.cluster.api();
        let list = maps.list_metadata(&ListParams::default()).await?;
        let versions = list.items.into_iter().map(|map| {
            let metadata = map.metadata;
            (metadata.name.unwrap_or_default(), metadata.resource_version.unwrap_or_default())
        });
        Ok(versions.collect())
    }

    async fn waiting(&self, rows: &mut Rows) -> anyhow::Result<()> {
        let templates = json!({ "job": job("{{ .Name }}"), "after": config_maps(1) });
        self.version("waits", package(&["job", "after"], &templates)).await?;
        self.create("waits", "waits").await?;
        self.wait_for_job("waits").await?;
        self.requests(0).await?;
        let since = self.cluster.audit_log_end()?;
        tokio::time::sleep(PERIOD).await;
        let requests = self.requests(since).await?.len();
        rows.push(zero("requests in 60 s for a step that waits", requests));

        let before = Process::of(&self.cluster, INSTANCE_OPERATOR)?;
        for n in 0..RECONCILES {
            let annotations = json!({ "bench": n.to_string() });
            let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
            self.instances.patch("waits", &PatchParams::default(), &patch).await?;
            // Longer than the minimum interval between reconciles of an object.
            tokio::time::sleep(Duration::from_millis(120)).await;
        }
        let cpu = Process::of(&self.cluster, INSTANCE_OPERATOR)?.cpu_since(&before)?;
        let each = cpu.as_secs_f64() * 1e3 / f64::from(RECONCILES);
        rows.push(at_most("processor time of a reconcile of a waiting run", each, 2.0, " ms"));
        self.complete_job("waits").await?;
        self.wait_until_deployed("waits").await?;

        self.many_changes(rows).await?;
        let mut delays = Vec::new();
        for n in 0..ROUNDS {
            let name = format!("waits-{n}");
            self.create(&name, "waits").await?;
            self.wait_for_job(&name).await?;
            let since = self.cluster.audit_log_end()?;
            self.complete_job(&name).await?;
            self.wait_until_deployed(&name).await?;
            self.requests(since).await?;
            delays.push(self.delay(since)?);
        }
        delays.sort_by(f64::total_cmp);
        let metric = "from the last object's health to the next step's first write, median of 20";
        rows.push(at_most(metric, delays[ROUNDS / 2], 200.0, " ms"));
        Ok(())
    }

    /// Lets the Jobs of one step end one after another, each of which changes the message of the
    /// step.
    async fn many_changes(&self, rows: &mut Rows) -> anyhow::Result<()> {
        let jobs: Vec<String> = (0..JOBS).map(|n| job(&format!("job-{n}"))).collect();
        let templates = json!({ "jobs": jobs.join("\n---\n") });
        self.version("changes", package(&["jobs"], &templates)).await?;
        self.create("changes", "changes").await?;
        self.wait_for_job("changes").await?;
        self.requests(0).await?;
        let since = self.cluster.audit_log_end()?;
        for n in 0..JOBS {
            self.complete_job(&format!("job-{n}")).await?;
        }
        self.wait_until_deployed("changes").await?;
        let requests = self.requests(since).await?;
        let of_run: Vec<&Request> =
            requests.iter().filter(|request| request.subresource() == "status").collect();
        let before_end = of_run.split_last().map(|(_, rest)| rest).unwrap_or_default();
        let metric = "status writes of an Instance in any second, while 40 Jobs of its step end";
        rows.push(max_status_writes(metric, before_end));
        Ok(())
    }

    /// Milliseconds between the report of a Job and the ConfigMap that follows it.
    fn delay(&self, since: u64) -> anyhow::Result<f64> {
        let (requests, _) = self.cluster.requests(since)?;
        let at = |resource: &str| {
            let mut found =
                requests.iter().filter(|r| r.verb == "patch" && r.resource() == resource);
            found.next().map(|request| request.at)
        };
        let (job, next) = at("jobs").zip(at("configmaps")).context("a request is missing")?;
        Ok(next.duration_since(job).as_secs_f64() * 1e3)
    }

    async fn wait_for_job(&self, name: &str) -> anyhow::Result<()> {
        let waits = async || {
            let status = self.instances.get(name).await?.status.unwrap_or_default();
            let steps = status.plan_status.values().flat_map(|p| &p.phases).flat_map(|p| &p.steps);
            Ok(steps.into_iter().any(|step| step.message.contains("Job default/")))
        };
        eventually(TIMEOUT, waits).await.with_context(|| format!("the Job of {name}"))
    }

    async fn complete_job(&self, name: &str) -> anyhow::Result<()> {
        let status = json!({ "status": { "succeeded": 1 } }).to_string();
        let patch = ["patch", "job", name, "--subresource=status", "--type=merge", "-p", &status];
        self.cluster.plane.kubectl(&patch).await.map(drop)
    }

    async fn many(&self, rows: &mut Rows) -> anyhow::Result<()> {
        let maps = package(&["a"], &json!({ "a": config_maps(OBJECTS) }));
        self.version("many", maps).await?;
        let since = self.cluster.audit_log_end()?;
        let started = Instant::now();
        for n in 0..INSTANCES {
            self.create(&format!("many-{n}"), "many").await?;
        }
        let all = async || {
            let list = self.instances.list(&ListParams::default()).await?;
            Ok(list.items.iter().filter(|instance| is_deployed(instance)).count() >= INSTANCES)
        };
        eventually(MANY_TIMEOUT, all).await.context("500 Instances")?;
        eprintln!("    created and deployed in {:.0?}", started.elapsed());
        let requests = self.requests(since).await?;
        let metric = "status writes of an Instance in any second, while 500 are deployed";
        rows.push(max_status_writes(metric, &requests.iter().collect::<Vec<_>>()));
        let before = self.cluster.audit_log_end()?;
        tokio::time::sleep(PERIOD).await;
        let writes = self.requests(before).await?.iter().filter(|r| r.is_write()).count();
        rows.push(zero("writes in 60 s, 500 settled Instances with 5,000 objects", writes));
        let now = Process::of(&self.cluster, INSTANCE_OPERATOR)?;
        rows.push(at_most(
            "resident memory with these",
            now.memory.resident_mebibytes,
            40.0,
            " MiB",
        ));
        self.cluster.kill_and_restart(INSTANCE_OPERATOR).await?;
        // The Lease of the killed leader has to expire first.
        tokio::time::sleep(Duration::from_secs(30)).await;
        let again = Process::of(&self.cluster, INSTANCE_OPERATOR)?;
        let metric = "peak memory after a restart with these";
        rows.push(at_most(metric, again.memory.peak_mebibytes, 40.0, " MiB"));
        Ok(())
    }
}

/// A Job that does not end by itself.
fn job(name: &str) -> String {
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": name },
        "spec": { "suspend": true, "template": { "spec": {
            "restartPolicy": "Never", "containers": [{ "name": "a", "image": "busybox" }],
        } } },
    });
    job.to_string()
}

/// The most status writes of an Instance in a second.
fn max_status_writes(metric: &'static str, requests: &[&Request]) -> Row {
    let mut seconds: BTreeMap<(String, i64), usize> = BTreeMap::new();
    for request in requests.iter().filter(|request| request.subresource() == "status") {
        let second = request.at.as_second();
        *seconds.entry((request.name().to_owned(), second)).or_default() += 1;
    }
    let most = seconds.values().max().copied().unwrap_or_default();
    count_at_most(metric, most, 1)
}

/// Reads the files of a package, by their paths in its folder.
fn files(folder: &Path) -> anyhow::Result<Files> {
    let mut files = Files::new();
    let mut open = vec![folder.to_owned()];
    while let Some(current) = open.pop() {
        for entry in fs::read_dir(current)? {
            let path = entry?.path();
            if path.is_dir() {
                open.push(path);
                continue;
            }
            let name = path.strip_prefix(folder)?.to_str().context("a name is not UTF-8")?;
            files.insert(name.to_owned(), fs::read(&path)?);
        }
    }
    Ok(files)
}
