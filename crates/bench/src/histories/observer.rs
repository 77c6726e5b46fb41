//! Watches the Pods, claims and workloads of all histories, and checks each state of the Pods.

use std::{collections::BTreeMap, fmt::Debug, pin::pin, sync::Arc};

use futures::StreamExt as _;
use k8s_openapi::api::{
    core::v1::{PersistentVolumeClaim, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, Resource, ResourceExt as _,
    api::DynamicObject,
    runtime::{WatchStreamExt as _, watcher},
};
use parking_lot::{Mutex, MutexGuard};
use podops_client::pod_condition::is_terminal;
use podops_test_cluster::cluster::{TestCluster, is_true};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use super::{
    user::Native,
    workload::{Kind, claim_of},
};

/// Objects as last observed.
#[derive(Default)]
pub(super) struct Observed {
    /// Pods by name.
    pub(super) pods: BTreeMap<String, Pod>,
    /// Claims by name.
    pub(super) claims: BTreeMap<String, PersistentVolumeClaim>,
    /// PodDisruptionBudgets by name.
    pub(super) budgets: BTreeMap<String, PodDisruptionBudget>,
    /// Workloads by kind and name.
    pub(super) workloads: BTreeMap<(Kind, String), DynamicObject>,
    /// Number of Pods created so far, by the label `app`.
    pub(super) created: BTreeMap<String, usize>,
    /// Fewest available Pods since the last reset, by the label `app`.
    fewest_available: BTreeMap<String, usize>,
    /// Claims that two Pods which had not ended mounted at a time.
    pub(super) shared_claims: Vec<String>,
}

/// Watches until it is dropped.
pub(super) struct Observer {
    observed: Arc<Mutex<Observed>>,
    _tasks: JoinSet<()>,
}

impl Observer {
    pub(super) fn start(cluster: &TestCluster) -> Self {
        let observed = Arc::<Mutex<Observed>>::default();
        let mut tasks = JoinSet::new();
        let pods: Api<Pod> = cluster.api();
        tasks.spawn(follow(pods, observed.clone(), |all, name, pod| all.observe_pod(&name, pod)));
        let claims: Api<PersistentVolumeClaim> = cluster.api();
        tasks.spawn(follow(claims, observed.clone(), |all, name, claim| {
            set(&mut all.claims, name, claim);
        }));
        let budgets: Api<PodDisruptionBudget> = cluster.api();
        tasks.spawn(follow(budgets, observed.clone(), |all, name, budget| {
            set(&mut all.budgets, name, budget);
        }));
        let native = [Native::Deployment, Native::StatefulSet].map(Kind::Native);
        for kind in native.into_iter().chain([Kind::CollaSet]) {
            let client = cluster.plane.admin.clone();
            let resource = kind.resource();
            let api: Api<DynamicObject> =
                Api::namespaced_with(client, &cluster.namespace, &resource);
            tasks.spawn(follow(api, observed.clone(), move |all, name, object| {
                set(&mut all.workloads, (kind, name), object);
            }));
        }
        Self { observed, _tasks: tasks }
    }

    pub(super) fn read(&self) -> MutexGuard<'_, Observed> {
        self.observed.lock()
    }
}

fn set<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => drop(map.insert(key, value)),
        None => drop(map.remove(&key)),
    }
}

/// Records each object of a kind, and `None` once it no longer exists.
async fn follow<K>(
    api: Api<K>,
    observed: Arc<Mutex<Observed>>,
    record: impl Fn(&mut Observed, String, Option<K>),
) where
    K: Resource + Clone + Debug + Send + DeserializeOwned + 'static,
{
    let mut events = pin!(watcher(api, watcher::Config::default()).default_backoff());
    while let Some(event) = events.next().await {
        let (object, exists) = match event {
            Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => (object, true),
            Ok(watcher::Event::Delete(object)) => (object, false),
            _ => continue,
        };
        record(&mut observed.lock(), object.name_any(), exists.then_some(object));
    }
}

impl Observed {
    fn observe_pod(&mut self, name: &str, pod: Option<Pod>) {
        let Some(pod) = pod else {
            if let Some(app) = self.pods.remove(name).as_ref().map(app_of) {
                self.count_available(&app);
            }
            return;
        };
        let app = app_of(&pod);
        let known = self.pods.get(name);
        if known.is_none_or(|known| known.uid() != pod.uid()) {
            *self.created.entry(app.clone()).or_default() += 1;
        }
        self.pods.insert(name.to_owned(), pod);
        self.count_available(&app);
        self.check_claim(name);
    }

    fn count_available(&mut self, app: &str) {
        let available = self.available(app);
        let fewest = self.fewest_available.entry(app.to_owned()).or_insert(available);
        *fewest = available.min(*fewest);
    }

    fn check_claim(&mut self, name: &str) {
        let Some(claim) = self.pods.get(name).and_then(claim_of) else { return };
        let users =
            self.pods.values().filter(|pod| claim_of(pod) == Some(claim) && !has_ended(pod));
        if users.count() > 1 {
            self.shared_claims.push(claim.to_owned());
        }
    }

    /// Pods of a workload, by the label `app`.
    pub(super) fn pods_of(&self, app: &str) -> impl Iterator<Item = &Pod> {
        self.pods.values().filter(move |pod| pod.labels().get("app").is_some_and(|of| of == app))
    }

    /// Number of Pods of a workload that are Ready and not being deleted.
    pub(super) fn available(&self, app: &str) -> usize {
        self.pods_of(app).filter(|pod| is_available(pod)).count()
    }

    /// Number of Pods that a disruption budget expects; `None` while that is not known.
    pub(super) fn expected_pods(&self, budget: &str) -> Option<i32> {
        self.budgets.get(budget)?.status.as_ref()?.expected_pods
    }

    /// Forgets the fewest available Pods so far.
    pub(super) fn reset(&mut self, app: &str) {
        self.fewest_available.remove(app);
        self.count_available(app);
    }

    /// Fewest available Pods of a workload since [`Self::reset`].
    pub(super) fn fewest_available(&self, app: &str) -> usize {
        self.fewest_available.get(app).copied().unwrap_or_default()
    }
}

fn app_of(pod: &Pod) -> String {
    pod.labels().get("app").cloned().unwrap_or_default()
}

/// Returns whether a Pod is Ready and not being deleted.
pub(super) fn is_available(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none() && is_true(pod, "Ready")
}

/// Returns whether the containers of a Pod have ended for good.
pub(super) fn has_ended(pod: &Pod) -> bool {
    is_terminal(pod.status.as_ref().and_then(|status| status.phase.as_deref()))
}
