//! Kills instance-operator at random points of the runs of several Instances, and checks from
//! watches that each run ends, that no Secret of a Pipe task is made twice, and that no complete
//! step is entered again.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use podops_api::kudo::{ExecutionStatus, Instance, OperatorVersion};
use serde_json::{Value, json};

use crate::{
    cluster::{INSTANCE_OPERATOR, TestCluster, eventually},
    package_history::{Killed, PackageHistory},
    process::Signal,
};

/// Number of Instances whose runs each kill interrupts.
const INSTANCES: usize = 4;
/// Seed of the points in time.
const SEED: u64 = 17;
/// Time limit of a run. The Lease of a killed leader has to expire first.
const TIMEOUT: Duration = Duration::from_secs(120);
/// ServiceAccount that writes the objects.
const WRITER: &str = "killed";

/// Kills the operator this number of times, each time while all Instances run a plan; in the second
/// half, another instance of the operator stands by. The cluster has instance-operator and nothing
/// else.
///
/// # Errors
///
/// If a request fails, or a run does not end.
pub async fn run(cluster: &mut TestCluster, kills: usize) -> anyhow::Result<Killed> {
    let resources = "configmaps,secrets,pods,pods/exec,jobs.batch";
    cluster.create_writer(WRITER, resources).await?;
    let history = PackageHistory::start(&cluster.plane.admin);
    create(cluster).await?;
    let started = Instant::now();
    wait_until_complete(cluster, "0").await?;
    let span = u64::try_from(started.elapsed().as_millis())?;
    let mut random = fastrand::Rng::with_seed(SEED);
    for kill in 1..=kills {
        if kill == kills / 2 + 1 {
            cluster.start_standby(INSTANCE_OPERATOR).await?;
        }
        let value = kill.to_string();
        set_parameter(cluster, &value).await?;
        tokio::time::sleep(Duration::from_millis(random.u64(..span))).await;
        let leader = cluster.leading_instance(INSTANCE_OPERATOR).await?;
        leader.restart_with(Signal::KILL).await?;
        wait_until_complete(cluster, &value).await.with_context(|| format!("kill {kill}"))?;
    }
    let killed = history.judge();
    anyhow::ensure!(killed.secrets >= killed.runs, "the watches missed Secrets: {killed:?}");
    Ok(killed)
}

/// A plan of five steps in order: a ConfigMap, a Pipe task, a Job, two ConfigMaps at once, and one
/// that reads the name of the Pipe task's Secret.
fn package() -> Value {
    let config = |name: &str, value: &str| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name },
            "data": { "p": value },
        })
        .to_string()
    };
    let container = json!({ "name": "a", "image": "a" });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "maker" },
        "spec": {
            "volumes": [{ "name": "data", "emptyDir": {} }],
            "initContainers": [{
                "name": "make", "image": "make",
                "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
            }],
        },
    });
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": { "name": "{{ .Name }}-{{ .Params.P }}" },
        "spec": { "template": { "spec": { "restartPolicy": "Never", "containers": [container] } } },
    });
    let pipe = json!([{ "file": "/data/key", "kind": "Secret", "key": "KEY" }]);
    let apply = |name: &str, templates: &[&str]| {
        let spec = json!({ "resources": templates });
        json!({ "name": name, "kind": "Apply", "spec": spec })
    };
    let step = |name: &str| json!({ "name": name, "tasks": [name] });
    let steps = ["first", "pipe", "job", "both", "last"].map(step);
    let phase = json!({ "name": "main", "strategy": "serial", "steps": steps });
    json!({
        "operator": { "name": "killed" }, "version": "0.1.0",
        "parameters": [{ "name": "P", "default": "0" }],
        "templates": {
            "first": config("{{ .Name }}-first", "{{ .Params.P }}"), "pod": pod.to_string(),
            "job": job.to_string(), "a": config("{{ .Name }}-a", "{{ .Params.P }}"),
            "b": config("{{ .Name }}-b", "{{ .Params.P }}"),
            "last": config("{{ .Name }}-last", "{{ .Params.P }}-{{ .Pipes.KEY }}"),
        },
        "tasks": [
            apply("first", &["first"]),
            { "name": "pipe", "kind": "Pipe", "spec": { "pod": "pod", "pipe": pipe } },
            apply("job", &["job"]), apply("both", &["a", "b"]), apply("last", &["last"]),
        ],
        "plans": { "deploy": { "strategy": "serial", "phases": [phase] } },
    })
}

fn names() -> impl Iterator<Item = String> {
    (0..INSTANCES).map(|n| format!("killed-{n}"))
}

async fn create(cluster: &TestCluster) -> anyhow::Result<()> {
    let version = json!({ "metadata": { "name": "killed" }, "spec": package() });
    let versions: Api<OperatorVersion> = cluster.api();
    versions.create(&PostParams::default(), &serde_json::from_value(version)?).await?;
    let instances: Api<Instance> = cluster.api();
    for name in names() {
        let spec = json!({ "operatorVersion": { "name": "killed" }, "serviceAccountName": WRITER });
        let instance = json!({ "metadata": { "name": name }, "spec": spec });
        instances.create(&PostParams::default(), &serde_json::from_value(instance)?).await?;
    }
    Ok(())
}

async fn set_parameter(cluster: &TestCluster, value: &str) -> anyhow::Result<()> {
    let instances: Api<Instance> = cluster.api();
    let patch = Patch::Merge(json!({ "spec": { "parameters": { "P": value } } }));
    for name in names() {
        instances.patch(&name, &PatchParams::default(), &patch).await?;
    }
    Ok(())
}

/// Waits until a run with this value is complete in every Instance.
async fn wait_until_complete(cluster: &TestCluster, value: &str) -> anyhow::Result<()> {
    let instances: Api<Instance> = cluster.api();
    let config_maps: Api<ConfigMap> = cluster.api();
    for name in names() {
        let expected = format!("{value}-");
        let is_complete = async || {
            let status = instances.get(&name).await?.status.unwrap_or_default();
            let deploy = status.plan_status.get("deploy");
            let last = config_maps.get_opt(&format!("{name}-last")).await?;
            let applied = last.and_then(|last| last.data).unwrap_or_default();
            Ok(deploy.is_some_and(|deploy| deploy.status == ExecutionStatus::Complete)
                && applied.get("p").is_some_and(|applied| applied.starts_with(&expected)))
        };
        if let Err(error) = eventually(TIMEOUT, is_complete).await {
            let status = serde_json::to_string(&instances.get(&name).await?.status)?;
            return Err(error.context(format!("Instance {name}, P={value}: {status}")));
        }
    }
    Ok(())
}
