//! Watches plans while instance-operator is killed: finds runs that wrote an object of a complete
//! step, or made an object of a Pipe task twice.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    future::ready,
    sync::Arc,
};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    runtime::{WatchStreamExt as _, watcher},
};
use parking_lot::Mutex;
use podops_api::kudo::{ExecutionStatus, Instance, PhaseStatus, PlanStatus, StepStatus};
use serde::{Serialize, de::DeserializeOwned};
use tokio::task::JoinSet;

/// Results of the runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Killed {
    /// Number of runs that ended.
    pub runs: usize,
    /// Number of Secrets of Pipe tasks, each of one run.
    pub secrets: usize,
    /// Number of Secrets and Pods of Pipe tasks that were made again in the same run.
    pub made_again: usize,
    /// Number of steps that were entered again, or that wrote objects, after their status was
    /// COMPLETE.
    pub entered_again: usize,
}

/// Object of a step, as a watch saw it.
#[derive(Clone, Debug)]
struct Seen {
    kind: String,
    namespace: String,
    name: String,
    uid: String,
    version: u64,
    step: StepRun,
    content: String,
}

/// Follows all Instances, and the objects of their steps, until it is dropped.
pub struct PackageHistory {
    seen: Arc<Mutex<History>>,
    _watches: JoinSet<()>,
}

impl PackageHistory {
    /// Begins to watch.
    #[must_use]
    pub fn start(client: &Client) -> Self {
        let seen = Arc::new(Mutex::new(History::default()));
        let mut watches = JoinSet::new();
        let record_instance =
            |history: &mut History, instance: &Instance| history.instances.push(instance.clone());
        follow::<Instance>(client, &seen, record_instance, &mut watches);
        follow::<ConfigMap>(client, &seen, record_object, &mut watches);
        follow::<Secret>(client, &seen, record_object, &mut watches);
        follow::<Pod>(client, &seen, record_object, &mut watches);
        Self { seen, _watches: watches }
    }

    /// Results of the runs so far.
    #[must_use]
    pub fn judge(&self) -> Killed {
        self.seen.lock().judge()
    }
}

/// States that the watches received.
#[derive(Default)]
struct History {
    instances: Vec<Instance>,
    objects: Vec<Seen>,
}

/// Records each state of the objects of a kind.
fn follow<K>(
    client: &Client,
    history: &Arc<Mutex<History>>,
    record: fn(&mut History, &K),
    watches: &mut JoinSet<()>,
) where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let (api, history) = (Api::<K>::all(client.clone()), history.clone());
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
    /// `None` if the object does not belong to a step: a Pod only if it is of a Pipe task.
    fn of<K: Resource<DynamicType = ()> + Serialize>(object: &K) -> Option<Self> {
        let annotation = |key: &str| object.annotations().get(key).cloned();
        let value = serde_json::to_value(object).ok()?;
        let kind = K::kind(&()).into_owned();
        let mut owners = object.owner_references().iter();
        if kind == "Pod" && !owners.any(|owner| owner.kind == "Instance") {
            return None;
        }
        Some(Self {
            kind,
            namespace: object.namespace()?,
            name: object.name_any(),
            uid: object.uid()?,
            version: version(object.resource_version().as_deref()),
            step: StepRun {
                run: annotation("kudo.dev/last-plan-execution-uid")?,
                phase: annotation("kudo.dev/phase")?,
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

/// Step of a run, which has an identity of its own in the cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct StepRun {
    run: String,
    phase: String,
    step: String,
}

/// Object of a Pipe task in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OfRun<'a> {
    kind: &'a str,
    namespace: &'a str,
    name: &'a str,
    run: &'a str,
}

fn steps(plan: &PlanStatus) -> impl Iterator<Item = (StepRun, ExecutionStatus)> {
    let of_phase = |phase: &PhaseStatus| {
        let of_step = |step: &StepStatus| {
            let run = plan.uid.clone();
            let phase = phase.name.clone();
            (StepRun { run, phase, step: step.name.clone() }, step.status)
        };
        phase.steps.iter().map(of_step).collect::<Vec<_>>()
    };
    plan.phases.iter().flat_map(of_phase)
}

impl History {
    fn judge(&self) -> Killed {
        let mut complete: BTreeMap<StepRun, u64> = BTreeMap::new();
        let mut runs = BTreeSet::new();
        let mut entered_again = BTreeSet::new();
        for instance in &self.instances {
            let at = version(instance.resource_version().as_deref());
            let plans = instance.status.iter().flat_map(|status| status.plan_status.values());
            for plan in plans {
                if plan.status == ExecutionStatus::Complete {
                    runs.insert(plan.uid.clone());
                }
                for (step_run, status) in steps(plan) {
                    if status == ExecutionStatus::Complete {
                        complete.entry(step_run).or_insert(at);
                    } else if complete.contains_key(&step_run) {
                        entered_again.insert(step_run);
                    }
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
            let Seen { kind, namespace, name, step, .. } = object;
            let key = OfRun { kind, namespace, name, run: &step.run };
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

#[cfg(test)]
mod tests {
    use serde_json::json;

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
            namespace: "default".to_owned(),
            name: "a".to_owned(),
            uid: "uid".to_owned(),
            version,
            step: StepRun {
                run: "run".to_owned(),
                phase: "main".to_owned(),
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
