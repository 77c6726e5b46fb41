//! Kills instance-operator at random points of the runs of several Instances, and checks from what watches
//! saw that each run ends, that no Secret of a Pipe task is made twice, and that no complete step is
//! entered again.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    future::ready,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::{
    Api, Resource, ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
    runtime::{WatchStreamExt as _, watcher},
};
use parking_lot::Mutex;
use podops_api::kudo::{ExecutionStatus, Instance, OperatorVersion};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{
    cluster::{INSTANCE_OPERATOR, TestCluster, eventually},
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

/// What became of the runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Killed {
    /// Number of runs that ended.
    pub runs: usize,
    /// Number of Secrets of Pipe tasks, each of one run.
    pub secrets: usize,
    /// Number of Secrets and Pods of Pipe tasks that were made again in the same run.
    pub made_again: usize,
    /// Number of steps that were entered again, or that wrote objects, after their status was COMPLETE.
    pub entered_again: usize,
}

/// Object of a step, as a watch saw it.
#[derive(Clone, Debug)]
struct Seen {
    kind: String,
    name: String,
    uid: String,
    version: u64,
    step: StepRun,
    content: String,
}

/// What the watches saw.
#[derive(Default)]
struct History {
    instances: Vec<Instance>,
    objects: Vec<Seen>,
}

/// Kills the operator this number of times, each time while all Instances run a plan; in the second half,
/// another instance of the operator stands by. The cluster has instance-operator and nothing else.
///
/// # Errors
///
/// If a request fails, or a run does not end.
pub async fn run(cluster: &mut TestCluster, kills: usize) -> anyhow::Result<Killed> {
    let resources = "configmaps,secrets,pods,pods/exec,jobs.batch";
    cluster.create_writer(WRITER, resources).await?;
    let history = Arc::new(Mutex::new(History::default()));
    let mut watches = JoinSet::new();
    let record_instance =
        |history: &mut History, instance: &Instance| history.instances.push(instance.clone());
    follow::<Instance>(cluster.api(), history.clone(), record_instance, &mut watches);
    follow::<ConfigMap>(cluster.api(), history.clone(), record_object, &mut watches);
    follow::<Secret>(cluster.api(), history.clone(), record_object, &mut watches);
    follow::<Pod>(cluster.api(), history.clone(), record_object, &mut watches);
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
    watches.abort_all();
    let killed = history.lock().judge();
    anyhow::ensure!(killed.secrets >= killed.runs, "the watches missed Secrets: {killed:?}");
    Ok(killed)
}

/// Records each state of the objects of a kind.
fn follow<K>(
    api: Api<K>,
    history: Arc<Mutex<History>>,
    record: fn(&mut History, &K),
    watches: &mut JoinSet<()>,
) where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    watches.spawn(async move {
        let events = watcher(api, watcher::Config::default()).default_backoff();
        let states = events.applied_objects().filter_map(|object| ready(object.ok()));
        states
            .for_each(|object| {
                record(&mut history.lock(), &object);
                ready(())
            })
            .await;
    });
}

fn record_object<K: Resource<DynamicType = ()> + Serialize>(history: &mut History, object: &K) {
    history.objects.extend(Seen::of(object));
}

impl Seen {
    /// `None` if the object does not belong to a step.
    fn of<K: Resource<DynamicType = ()> + Serialize>(object: &K) -> Option<Self> {
        let annotation = |key: &str| object.annotations().get(key).cloned();
        let value = serde_json::to_value(object).ok()?;
        Some(Self {
            kind: K::kind(&()).into_owned(),
            name: object.name_any(),
            uid: object.uid()?,
            version: version(object.resource_version().as_deref()),
            step: StepRun {
                instance: object.labels().get("kudo.dev/instance")?.clone(),
                run: annotation("kudo.dev/last-plan-execution-uid")?,
                step: annotation("kudo.dev/step")?,
            },
            content: value["data"].to_string(),
        })
    }

    /// Pods change with their status; ConfigMaps and Secrets only by writes of the operator.
    fn is_written(&self) -> bool {
        self.kind != "Pod"
    }
}

/// resourceVersion as a number; versions of all kinds come from the same sequence.
fn version(version: Option<&str>) -> u64 {
    version.and_then(|version| version.parse().ok()).unwrap_or_default()
}

/// Step of a run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct StepRun {
    instance: String,
    run: String,
    step: String,
}

/// Object of a Pipe task in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OfRun<'a> {
    kind: &'a str,
    name: &'a str,
    run: &'a str,
}

impl History {
    fn judge(&self) -> Killed {
        let mut complete: BTreeMap<StepRun, u64> = BTreeMap::new();
        let mut runs = BTreeSet::new();
        let mut entered_again = BTreeSet::new();
        for instance in &self.instances {
            let Some(deploy) = instance.status.as_ref().and_then(|s| s.plan_status.get("deploy"))
            else {
                continue;
            };
            if deploy.status == ExecutionStatus::Complete {
                runs.insert(deploy.uid.clone());
            }
            for step in deploy.phases.iter().flat_map(|phase| &phase.steps) {
                let step_run = StepRun {
                    instance: instance.name_any(),
                    run: deploy.uid.clone(),
                    step: step.name.clone(),
                };
                if step.status == ExecutionStatus::Complete {
                    let at = version(instance.resource_version().as_deref());
                    complete.entry(step_run).or_insert(at);
                } else if complete.contains_key(&step_run) {
                    entered_again.insert(step_run);
                }
            }
        }
        for object in self.objects.iter().filter(|object| object.is_written()) {
            if complete.get(&object.step).is_some_and(|at| object.version > *at) {
                entered_again.insert(object.step.clone());
            }
        }
        let mut made: BTreeMap<OfRun<'_>, BTreeSet<(&str, &str)>> = BTreeMap::new();
        for object in self.objects.iter().filter(|object| object.kind != "ConfigMap") {
            let key = OfRun { kind: &object.kind, name: &object.name, run: &object.step.run };
            made.entry(key).or_default().insert((&object.uid, &object.content));
        }
        Killed {
            runs: runs.len(),
            secrets: made.keys().filter(|made| made.kind == "Secret").count(),
            made_again: made.values().filter(|made| made.len() > 1).count(),
            entered_again: entered_again.len(),
        }
    }
}

/// A plan of five steps in order: a ConfigMap, a Pipe task, a Job, two ConfigMaps at once, and one that reads
/// the name of the Pipe task's Secret.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(version: &str, first: &str) -> Instance {
        let steps = [json!({ "name": "first", "status": first })];
        let phases = json!([{ "name": "main", "status": "IN_PROGRESS", "steps": steps }]);
        let deploy =
            json!({ "name": "deploy", "status": "COMPLETE", "uid": "run", "phases": phases });
        serde_json::from_value(json!({
            "metadata": { "name": "a", "resourceVersion": version }, "spec": {},
            "status": { "planStatus": { "deploy": deploy } },
        }))
        .unwrap()
    }

    fn seen(kind: &str, version: u64, content: &str) -> Seen {
        Seen {
            kind: kind.to_owned(),
            name: "a".to_owned(),
            uid: "uid".to_owned(),
            version,
            step: StepRun {
                instance: "a".to_owned(),
                run: "run".to_owned(),
                step: "first".to_owned(),
            },
            content: content.to_owned(),
        }
    }

    #[test]
    fn complete_steps_are_not_entered_again() {
        let once = [instance("5", "IN_PROGRESS"), instance("7", "COMPLETE")];
        let history = |instances: &[Instance], objects: &[Seen]| {
            History { instances: instances.to_vec(), objects: objects.to_vec() }.judge()
        };
        let expected = Killed { runs: 1, ..Killed::default() };
        assert_eq!(history(&once, &[seen("ConfigMap", 6, "")]), expected);
        let again = Killed { entered_again: 1, ..expected };
        assert_eq!(history(&once, &[seen("ConfigMap", 8, "")]), again, "it wrote an object");
        let twice = [&once[..], &[instance("9", "IN_PROGRESS")]].concat();
        assert_eq!(history(&twice, &[]), again, "its status went back");
    }

    #[test]
    fn secrets_made_again_in_a_run_are_counted() {
        let judge =
            |objects: &[Seen]| History { instances: Vec::new(), objects: objects.to_vec() }.judge();
        let expected = Killed { secrets: 1, ..Killed::default() };
        assert_eq!(judge(&[seen("Secret", 1, "x"), seen("Secret", 2, "x")]), expected);
        let again = Killed { made_again: 1, ..expected };
        assert_eq!(judge(&[seen("Secret", 1, "x"), seen("Secret", 2, "y")]), again);
    }
}
