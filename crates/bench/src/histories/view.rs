//! A workload as its user sees it.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{ResourceExt as _, api::DynamicObject};

use super::{
    observer::{Observed, has_ended, is_available},
    user::Native,
    workload::{Kind, Workload, claim_of},
};

/// Image, label, annotation, variable and restart of a Pod: the fields of the template that a user
/// changes.
type Version = [String; 5];

/// State of a workload that has to be the same for a native workload and a CollaSet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct View {
    /// Number of Pods that the user wants.
    wanted: usize,
    /// Number of Pods and of available ones, by version.
    versions: BTreeMap<Version, (usize, usize)>,
    /// True if the progress deadline is reported as exceeded; `None` while paused: a Deployment
    /// reports it on.
    is_overdue: Option<bool>,
    /// True if the rollout is reported as complete; `None` where no native status reports it.
    is_complete: Option<bool>,
    /// Number of claims that are not being deleted.
    claims: usize,
    /// Number of claims that the last settled view had, and that are lost.
    lost_claims: usize,
    /// Number of Pods whose claim does not exist.
    without_claim: usize,
    /// Pods that the disruption budget expects, and disruptions that it permits.
    budget: Option<[Option<i32>; 2]>,
}

impl View {
    /// The present view; `None` while the controller has not seen the latest spec, or while Pods or
    /// claims are being deleted.
    pub(super) fn of(workload: &Workload, observed: &Observed) -> Option<Self> {
        let object = observed.workloads.get(&(workload.kind, workload.name.clone()))?;
        let status = &object.data["status"];
        if object.metadata.generation < Some(workload.generation)
            || status["observedGeneration"].as_i64() != object.metadata.generation
        {
            return None;
        }
        let pods: Vec<&Pod> =
            observed.pods_of(&workload.name).filter(|pod| !has_ended(pod)).collect();
        let claims = claims(&workload.name, observed);
        if pods.iter().any(|pod| pod.metadata.deletion_timestamp.is_some()) {
            return None;
        }
        let mut versions = BTreeMap::<Version, (usize, usize)>::new();
        for pod in &pods {
            let (all, available) = versions.entry(version(pod)).or_default();
            *all += 1;
            *available += usize::from(is_available(pod));
        }
        let live = uids(&claims);
        let mounted = pods.iter().filter_map(|pod| claim_of(pod));
        let missing = mounted.filter(|name| !claims.iter().any(|c| c.name_any() == **name));
        let wanted = object.data["spec"]["replicas"].as_u64().unwrap_or_default();
        Some(Self {
            wanted: usize::try_from(wanted).unwrap_or(usize::MAX),
            versions,
            is_overdue: is_overdue(workload.kind, object),
            is_complete: is_complete(workload.kind, object, &pods),
            claims: live.len(),
            lost_claims: workload.claims.difference(&live).count(),
            without_claim: missing.count(),
            budget: budget(&workload.name, observed),
        })
    }

    /// Returns whether a user finds this view as good as that of a native workload: equal, or
    /// unless `is_exact`, as many Pods, and no fewer available ones. Surge Pods may be missing: a
    /// CollaSet deletes those of an abandoned rollout while it is paused, and an available one
    /// replaces a Pod that is lost.
    pub(super) fn is_as_good_as(&self, native: &Self, is_exact: bool) -> bool {
        if is_exact {
            return self == native;
        }
        // A Deployment does not report that a rollout to a ReplicaSet that existed is overdue.
        let is_overdue = self.is_overdue == native.is_overdue || self.is_overdue == Some(true);
        let comparable = Self {
            versions: native.versions.clone(),
            is_overdue: native.is_overdue,
            budget: native.budget,
            ..self.clone()
        };
        let has_surge = native.pods() > native.wanted;
        let is_without_surge = has_surge && (self.wanted..native.pods()).contains(&self.pods());
        (self.pods() == native.pods() || is_without_surge)
            && self.available() >= native.available().min(self.wanted)
            && is_overdue
            && comparable == *native
    }

    fn pods(&self) -> usize {
        self.versions.values().map(|(pods, _)| pods).sum()
    }

    fn available(&self) -> usize {
        self.versions.values().map(|(_, available)| available).sum()
    }
}

/// Claims of a workload that are not being deleted.
fn claims<'a>(app: &str, observed: &'a Observed) -> Vec<&'a PersistentVolumeClaim> {
    let of = |claim: &&PersistentVolumeClaim| claim.labels().get("app").is_some_and(|of| of == app);
    let live = |claim: &&PersistentVolumeClaim| claim.metadata.deletion_timestamp.is_none();
    observed.claims.values().filter(of).filter(live).collect()
}

fn budget(app: &str, observed: &Observed) -> Option<[Option<i32>; 2]> {
    let status = observed.budgets.get(app)?.status.as_ref()?;
    Some([status.expected_pods, status.disruptions_allowed])
}

/// UIDs of the claims of a workload that are not being deleted.
pub(super) fn claim_uids(app: &str, observed: &Observed) -> BTreeSet<String> {
    uids(&claims(app, observed))
}

fn uids(claims: &[&PersistentVolumeClaim]) -> BTreeSet<String> {
    claims.iter().filter_map(|claim| claim.uid()).collect()
}

/// Sorts the Pods of a workload in an order that is the same for two workloads with equal views.
pub(super) fn sorted_pods(app: &str, observed: &Observed) -> Vec<Pod> {
    let pods = observed.pods_of(app).filter(|pod| !has_ended(pod));
    let mut pods: Vec<Pod> =
        pods.filter(|pod| pod.metadata.deletion_timestamp.is_none()).cloned().collect();
    pods.sort_by_cached_key(|pod| (version(pod), is_available(pod), pod.name_any()));
    pods
}

fn version(pod: &Pod) -> Version {
    let container = pod.spec.iter().flat_map(|spec| &spec.containers).next();
    let image = container.and_then(|container| container.image.as_deref()).unwrap_or_default();
    let variable = container.and_then(|container| container.env.as_ref()?.first()?.value.clone());
    let label = pod.labels().get("version").cloned();
    let annotation = |key: &str| pod.annotations().get(key).cloned().unwrap_or_default();
    // A restart in place changes the form of the reference, so running images are compared by ID.
    let running = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let running = running.map(|container| container.image_id.as_str()).next();
    let image = running.filter(|_| is_available(pod)).unwrap_or(image);
    [
        image.to_owned(),
        label.unwrap_or_default(),
        annotation("note"),
        variable.unwrap_or_default(),
        annotation("kubectl.kubernetes.io/restartedAt"),
    ]
}

fn condition<'a>(object: &'a DynamicObject, type_: &str) -> Option<&'a serde_json::Value> {
    let conditions = object.data["status"]["conditions"].as_array()?;
    conditions.iter().find(|condition| condition["type"] == type_)
}

fn is_overdue(kind: Kind, object: &DynamicObject) -> Option<bool> {
    let is_paused = object.data["spec"]["paused"] == true;
    let is_overdue = match kind {
        Kind::Native(Native::Deployment) => condition(object, "Progressing")
            .is_some_and(|condition| condition["reason"] == "ProgressDeadlineExceeded"),
        Kind::Native(Native::StatefulSet) => false,
        Kind::CollaSet => {
            condition(object, "Stalled").is_some_and(|condition| condition["status"] == "True")
        }
    };
    (!is_paused).then_some(is_overdue)
}

/// Returns whether the rollout is complete, as `kubectl rollout status` decides for a Deployment;
/// `None` for StatefulSets and their CollaSets, and while paused.
fn is_complete(kind: Kind, object: &DynamicObject, pods: &[&Pod]) -> Option<bool> {
    let (spec, status) = (&object.data["spec"], &object.data["status"]);
    if spec["paused"] == true || pods.iter().any(|pod| claim_of(pod).is_some()) {
        return None;
    }
    match kind {
        Kind::Native(Native::Deployment) => {
            let count = |field: &str| status[field].as_u64().unwrap_or_default();
            let replicas = spec["replicas"].as_u64().unwrap_or_default();
            let fields = ["replicas", "updatedReplicas", "availableReplicas"];
            Some(fields.iter().all(|field| count(field) == replicas))
        }
        Kind::CollaSet if spec["volumeClaimTemplates"].is_null() => {
            Some(condition(object, "Ready").is_some_and(|ready| ready["status"] == "True"))
        }
        Kind::Native(Native::StatefulSet) | Kind::CollaSet => None,
    }
}
