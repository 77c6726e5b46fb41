//! Who is out of service because of an operation: seen from the watch stream alone, with nothing of
//! the operators' own code.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, WatchEvent, WatchParams},
};
use tokio::task::JoinSet;

use crate::cluster::TestCluster;

const AVAILABLE: &str = "podopslifecycle.kusionstack.io/service-available";
const INSTANCE: &str = "collaset.kusionstack.io/instance-id";

/// A set's name and an instance's ID in it: a Pod, and what takes its place when it is recreated.
type Instance = (String, String);

/// The label whose value says which budget a Pod is under.
pub const TEAM: &str = "team";

#[derive(Default)]
struct State {
    /// Whether each instance served when it was last seen.
    serves: BTreeMap<Instance, bool>,
    /// Instances that an operation took out, and the team that each is of.
    out: BTreeMap<Instance, String>,
    /// The most of each team that were out at a time.
    worst: BTreeMap<String, usize>,
    /// The Pods that serve, by name, and the team that each is of.
    serving: BTreeMap<String, String>,
    /// The fewest of each team that served at a time.
    fewest: BTreeMap<String, usize>,
}

/// Follows a namespace's Pods while it is there.
pub struct AvailabilityMonitor {
    state: Arc<Mutex<State>>,
    task: Mutex<JoinSet<anyhow::Result<()>>>,
}

impl AvailabilityMonitor {
    /// Follows the Pods of the lab's namespace from now on.
    ///
    /// # Errors
    ///
    /// If they cannot be listed.
    pub async fn start(cluster: &TestCluster) -> anyhow::Result<Self> {
        let pods: Api<Pod> = cluster.pods();
        let list = pods.list(&ListParams::default()).await?;
        let state = Arc::<Mutex<State>>::default();
        for pod in &list.items {
            state.lock().unwrap_or_else(PoisonError::into_inner).take(pod, false);
        }
        // While the first ones were taken in, fewer seemed to serve than did.
        state.lock().unwrap_or_else(PoisonError::into_inner).forget();
        let mut version = list.metadata.resource_version.unwrap_or_default();
        let (shared, mut task) = (state.clone(), JoinSet::new());
        task.spawn(async move {
            loop {
                let params = WatchParams::default().timeout(290);
                let mut events = pods.watch(&params, &version).await?.boxed();
                while let Some(event) = events.next().await {
                    let (pod, gone) = match event? {
                        WatchEvent::Added(pod) | WatchEvent::Modified(pod) => (pod, false),
                        WatchEvent::Deleted(pod) => (pod, true),
                        WatchEvent::Bookmark(_) => continue,
                        WatchEvent::Error(status) => anyhow::bail!("{status:?}"),
                    };
                    version = pod.resource_version().unwrap_or_default();
                    shared.lock().unwrap_or_else(PoisonError::into_inner).take(&pod, gone);
                }
            }
        });
        Ok(Self { state, task: Mutex::new(task) })
    }

    /// The most instances of a team that operations had out at a time.
    ///
    /// # Panics
    ///
    /// If the watch has ended, as do all that look: what is counted would be of an earlier time.
    #[must_use]
    pub fn max_unavailable(&self, team: &str) -> usize {
        self.look(|state| state.worst.get(team).copied().unwrap_or_default())
    }

    /// The fewest Pods of a team that served at a time, whoever took them out.
    #[must_use]
    pub fn min_available(&self, team: &str) -> usize {
        self.look(|state| state.fewest.get(team).copied().unwrap_or_default())
    }

    /// Forgets the worst and the fewest, but not who is out.
    pub fn forget(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).forget();
    }

    fn look<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        let ended = self.task.lock().unwrap_or_else(PoisonError::into_inner).try_join_next();
        assert!(ended.is_none(), "the watch ended: {ended:?}");
        look(&self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl State {
    fn forget(&mut self) {
        self.worst.clear();
        self.fewest.clear();
        let teams: Vec<String> = self.serving.values().cloned().collect();
        for team in &teams {
            self.count(team);
        }
    }

    fn count(&mut self, team: &str) {
        let now = self.serving.values().filter(|of| *of == team).count();
        let fewest = self.fewest.entry(team.to_owned()).or_insert(now);
        *fewest = now.min(*fewest);
    }

    fn take(&mut self, pod: &Pod, gone: bool) {
        let labels = pod.labels();
        let set = labels.get("app").cloned().unwrap_or_default();
        let id = labels.get(INSTANCE).cloned().unwrap_or_else(|| pod.name_any());
        let team = labels.get(TEAM).cloned().unwrap_or_default();
        let instance = (set, id);
        let serves =
            labels.contains_key(AVAILABLE) && !gone && pod.metadata.deletion_timestamp.is_none();
        let is = |words: [&str; 2]| {
            labels.keys().any(|key| {
                words.iter().any(|word| key.starts_with(&format!("{word}.podopslifecycle.")))
            })
        };
        let leaves = labels.iter().any(|(key, value)| {
            key.starts_with("operation-type.podopslifecycle.") && value == "scale-in"
        });
        if serves {
            self.serving.insert(pod.name_any(), team.clone());
        } else {
            self.serving.remove(&pod.name_any());
        }
        self.count(&team);
        let before = self.serves.insert(instance.clone(), serves).unwrap_or_default();
        if before && !serves && is(["preparing", "operate"]) {
            self.out.insert(instance.clone(), team.clone());
        }
        if serves || gone && leaves {
            // Another Pod of the same ID may serve while its predecessor is on its way out.
            self.out.remove(&instance);
        }
        let out = self.out.values().filter(|of| **of == team).count();
        let worst = self.worst.entry(team).or_default();
        *worst = (*worst).max(out);
    }
}
