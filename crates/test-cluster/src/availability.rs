//! Measures availability from the Pod watch stream alone, independently of the operators' code: the
//! most instances that operations made unavailable at a time, and the fewest available Pods.

use std::{collections::BTreeMap, sync::Arc};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, WatchEvent, WatchParams},
};
use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::cluster::TestCluster;

const AVAILABLE: &str = "podopslifecycle.kusionstack.io/service-available";
const INSTANCE: &str = "collaset.kusionstack.io/instance-id";

/// Name of a CollaSet and an instance ID in it: identifies a Pod and its recreated successors.
type Instance = (String, String);

/// Label whose value names the budget that a Pod belongs to.
pub const TEAM: &str = "team";

#[derive(Default)]
struct State {
    /// Last observed availability of each instance.
    was_available: BTreeMap<Instance, bool>,
    /// Team of each instance that an operation made unavailable.
    unavailable: BTreeMap<Instance, String>,
    /// Maximum number of unavailable instances at a time, by team.
    max_unavailable: BTreeMap<String, usize>,
    /// Team of each available Pod, by Pod name.
    available: BTreeMap<String, String>,
    /// Minimum number of available Pods at a time, by team.
    min_available: BTreeMap<String, usize>,
}

/// Watches the Pods of a namespace until it is dropped.
pub struct AvailabilityMonitor {
    state: Arc<Mutex<State>>,
    task: Mutex<JoinSet<anyhow::Result<()>>>,
}

impl AvailabilityMonitor {
    /// Starts watching the Pods of the test namespace.
    ///
    /// # Errors
    ///
    /// If they cannot be listed.
    pub async fn start(cluster: &TestCluster) -> anyhow::Result<Self> {
        let pods: Api<Pod> = cluster.pods();
        let list = pods.list(&ListParams::default()).await?;
        let state = Arc::<Mutex<State>>::default();
        for pod in &list.items {
            state.lock().observe(pod, false);
        }
        // The minimum counted while the list was read is too low.
        state.lock().reset();
        let mut version = list.metadata.resource_version.unwrap_or_default();
        let shared = state.clone();
        let mut task = JoinSet::new();
        task.spawn(async move {
            loop {
                let params = WatchParams::default().timeout(290);
                let mut events = pods.watch(&params, &version).await?.boxed();
                while let Some(event) = events.next().await {
                    let (pod, deleted) = match event? {
                        WatchEvent::Added(pod) | WatchEvent::Modified(pod) => (pod, false),
                        WatchEvent::Deleted(pod) => (pod, true),
                        WatchEvent::Bookmark(_) => continue,
                        WatchEvent::Error(status) => anyhow::bail!("{status:?}"),
                    };
                    version = pod.resource_version().unwrap_or_default();
                    shared.lock().observe(&pod, deleted);
                }
            }
        });
        Ok(Self { state, task: Mutex::new(task) })
    }

    /// Maximum number of a team's instances that operations made unavailable at a time.
    ///
    /// # Panics
    ///
    /// If the watch has ended, because the count would be outdated.
    #[must_use]
    pub fn max_unavailable(&self, team: &str) -> usize {
        self.read(|state| state.max_unavailable.get(team).copied().unwrap_or_default())
    }

    /// Minimum number of a team's Pods available at a time, whatever made the others unavailable.
    ///
    /// # Panics
    ///
    /// If the watch has ended, because the count would be outdated.
    #[must_use]
    pub fn min_available(&self, team: &str) -> usize {
        self.read(|state| state.min_available.get(team).copied().unwrap_or_default())
    }

    /// Resets the maximum and minimum; the current state of the instances is kept.
    pub fn reset(&self) {
        self.state.lock().reset();
    }

    fn read<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        let ended = self.task.lock().try_join_next();
        assert!(ended.is_none(), "the watch ended: {ended:?}");
        read(&self.state.lock())
    }
}

impl State {
    fn reset(&mut self) {
        self.max_unavailable.clear();
        self.min_available.clear();
        let teams: Vec<String> = self.available.values().cloned().collect();
        for team in &teams {
            self.count_available(team);
        }
    }

    fn count_available(&mut self, team: &str) {
        let now = self.available.values().filter(|of| *of == team).count();
        let min = self.min_available.entry(team.to_owned()).or_insert(now);
        *min = now.min(*min);
    }

    fn observe(&mut self, pod: &Pod, deleted: bool) {
        let labels = pod.labels();
        let set = labels.get("app").cloned().unwrap_or_default();
        let id = labels.get(INSTANCE).cloned().unwrap_or_else(|| pod.name_any());
        let team = labels.get(TEAM).cloned().unwrap_or_default();
        let instance = (set, id);
        let available =
            labels.contains_key(AVAILABLE) && !deleted && pod.metadata.deletion_timestamp.is_none();
        let is_in = |phases: [&str; 2]| {
            labels.keys().any(|key| {
                phases.iter().any(|phase| key.starts_with(&format!("{phase}.podopslifecycle.")))
            })
        };
        let scaled_in = labels.iter().any(|(key, value)| {
            key.starts_with("operation-type.podopslifecycle.") && value == "scale-in"
        });
        if available {
            self.available.insert(pod.name_any(), team.clone());
        } else {
            self.available.remove(&pod.name_any());
        }
        self.count_available(&team);
        let before = self.was_available.insert(instance.clone(), available).unwrap_or_default();
        if before && !available && is_in(["preparing", "operate"]) {
            self.unavailable.insert(instance.clone(), team.clone());
        }
        if available || deleted && scaled_in {
            // A Pod of the same ID may be available while its predecessor terminates.
            self.unavailable.remove(&instance);
        }
        let unavailable = self.unavailable.values().filter(|of| **of == team).count();
        let max = self.max_unavailable.entry(team).or_default();
        *max = (*max).max(unavailable);
    }
}
