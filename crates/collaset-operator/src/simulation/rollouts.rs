//! Property test: random interleavings of user edits, kubelet and lifecycle steps, stale plans and
//! operator crashes. The safety properties of `operator.rs` hold throughout, and the CollaSet
//! converges to its spec.

use jiff::Timestamp;
use podops_api::{
    image_reference::other_reference,
    lifecycle::{COLLASET, LabelKind},
    well_known,
};
use proptest::{prelude::*, test_runner::RngSeed};
use serde_json::{Value, json};

use super::{
    Pod, World,
    actors::image_id,
    decorations::{DecorationEvent, decoration_events},
    template,
};

/// One event of a run. Pods and claims are named by their index; an index without an object is a
/// no-op.
#[derive(Clone, Debug)]
enum Event {
    Plan,
    Apply,
    /// The operator crashes after this many writes.
    Crash(usize),
    Kubelet(usize),
    Lifecycle(usize),
    Tick,
    /// More time passes than the progress deadline.
    Later,
    /// Everything goes on for some rounds, so that rollouts end.
    Rounds,
    /// The container of a Pod crashes, until the next step of its kubelet.
    Break(usize),
    Scale(i32),
    /// Index into [`TEMPLATES`].
    Template(usize),
    Partition(usize),
    /// Index into [`POLICIES`].
    Policy(usize),
    Label(usize, &'static str),
    EndPod(usize, &'static str),
    DeletePod(usize),
    DeleteClaim(usize),
    /// Storage request of the claim template, see [`storage`].
    Storage(usize),
    Exclude(usize),
    /// Lists a Pod without controller in `podToInclude`.
    Include(usize),
    /// Lists a Pod in `podToDelete`.
    ListToDelete(usize),
    /// Removes the label that requests the Pod's replacement.
    CancelReplacement(usize),
    /// Updates labelled Pods only, or by partition.
    ByLabel(bool),
    Pause(bool),
    /// Sets or removes the control label of a Pod.
    Control(usize, bool),
    /// Index into [`TEMPLATES`] of the Pods that the API server rejects, if any.
    Reject(Option<usize>),
    /// Approves this step of the rollout, and the steps before it.
    Approve(usize),
    /// Resumes a rollout that the failure policy has stopped.
    Resume,
    /// Index into [`ACTIONS`] of the failure policy.
    FailureAction(usize),
    Decoration(DecorationEvent),
    /// An OperationJob restarts the container of a Pod that is not operated on.
    RestartByJob(usize),
}

/// The image of the last one never starts.
const TEMPLATES: [&str; 12] = [
    "v1",
    "v2",
    "v3",
    "v2+other",
    "v2#note",
    "v3@2",
    "v2!restarted",
    // Tags of one repository, so that a digest of one could be taken for that of another.
    "app:1",
    "app:2",
    "app:2!restarted",
    "app:2!again",
    "bad",
];
const POLICIES: [&str; 3] = ["Recreate", "InPlaceIfPossible", "Replace"];
const ACTIONS: [&str; 3] = ["Halt", "Rollback", "Continue"];
/// `progressDeadlineSeconds`.
const DEADLINE: i64 = 60;
/// Rounds in which a rollout of few Pods usually ends.
const ROUNDS: usize = 12;

fn events() -> impl Strategy<Value = Vec<Event>> {
    let labels = prop::sample::select(vec![
        well_known::TO_DELETE,
        well_known::TO_REPLACE,
        well_known::UPDATE_INCLUDED,
    ]);
    let event = prop_oneof![
        12 => Just(Event::Plan),
        12 => Just(Event::Apply),
        1 => (0..5_usize).prop_map(Event::Crash),
        14 => (0..8_usize).prop_map(Event::Kubelet),
        14 => (0..8_usize).prop_map(Event::Lifecycle),
        4 => Just(Event::Tick),
        1 => Just(Event::Later),
        2 => Just(Event::Rounds),
        3 => (0..8_usize).prop_map(Event::Break),
        2 => (0..6_i32).prop_map(Event::Scale),
        2 => (0..TEMPLATES.len()).prop_map(Event::Template),
        2 => (0..6_usize).prop_map(Event::Partition),
        1 => (0..POLICIES.len()).prop_map(Event::Policy),
        2 => (0..8_usize, labels).prop_map(|(pod, label)| Event::Label(pod, label)),
        1 => (0..8_usize, prop_oneof![Just("Failed"), Just("Succeeded")])
            .prop_map(|(pod, phase)| Event::EndPod(pod, phase)),
        1 => (0..8_usize).prop_map(Event::DeletePod),
        1 => (0..8_usize).prop_map(Event::DeleteClaim),
        1 => (0..2_usize).prop_map(Event::Storage),
        1 => (0..8_usize).prop_map(Event::Exclude),
        1 => (0..8_usize).prop_map(Event::Include),
        1 => (0..8_usize).prop_map(Event::ListToDelete),
        1 => (0..8_usize).prop_map(Event::CancelReplacement),
        1 => any::<bool>().prop_map(Event::ByLabel),
        1 => any::<bool>().prop_map(Event::Pause),
        1 => (0..8_usize, any::<bool>()).prop_map(|(pod, is_set)| Event::Control(pod, is_set)),
        1 => prop::option::of(0..TEMPLATES.len()).prop_map(Event::Reject),
        1 => (0..4_usize).prop_map(Event::Approve),
        1 => Just(Event::Resume),
        1 => (0..ACTIONS.len()).prop_map(Event::FailureAction),
        6 => decoration_events().prop_map(Event::Decoration),
        1 => (0..8_usize).prop_map(Event::RestartByJob),
    ];
    prop::collection::vec(event, 0..150)
}

/// Initial spec of the CollaSet of one run.
#[derive(Clone, Debug)]
struct Setting {
    replicas: i32,
    policy: usize,
    max_unavailable: Option<&'static str>,
    max_surge: Option<i32>,
    min_ready: i32,
    has_claims: bool,
    retains_claims: bool,
    has_persistent_names: bool,
    rollout: RolloutSetting,
}

/// Optional parts of `rollingUpdate`.
#[derive(Clone, Debug)]
struct RolloutSetting {
    has_steps: bool,
    has_failure_policy: bool,
}

fn settings() -> impl Strategy<Value = Setting> {
    let max_unavailable = prop::option::of(prop::sample::select(vec!["1%", "50%"]));
    let limits = (max_unavailable, prop::option::of(1..3_i32), 0..3_i32);
    let claims = (any::<bool>(), any::<bool>());
    let rollout = (any::<bool>(), any::<bool>());
    (0..6_i32, 0..POLICIES.len(), limits, claims, prop::bool::weighted(0.2), rollout).prop_map(
        |(replicas, policy, limits, claims, has_persistent_names, rollout)| {
            let (max_unavailable, max_surge, min_ready) = limits;
            let (has_claims, retains_claims) = claims;
            let (has_steps, has_failure_policy) = rollout;
            Setting {
                replicas,
                policy,
                max_unavailable,
                max_surge,
                min_ready,
                has_claims,
                retains_claims,
                has_persistent_names,
                rollout: RolloutSetting { has_steps, has_failure_policy },
            }
        },
    )
}

/// A claim template `data` that requests `size + 1` GiB.
fn storage(size: usize) -> Value {
    json!([{ "metadata": { "name": "data" },
        "spec": { "resources": { "requests": { "storage": format!("{}Gi", size + 1) } } } }])
}

/// Parameters of a rolling update by partition.
fn rolling_update(setting: &Setting) -> Value {
    let mut rolling = json!({ "byPartition": {} });
    if let Some(max_unavailable) = setting.max_unavailable {
        rolling["maxUnavailable"] = json!(max_unavailable);
    }
    if let Some(max_surge) = setting.max_surge {
        rolling["maxSurge"] = json!(max_surge);
    }
    if setting.rollout.has_steps {
        rolling["steps"] = json!([
            { "partition": "80%", "pause": {} },
            { "partition": "50%" },
            { "partition": 1, "pause": { "seconds": 3 } },
        ]);
    }
    if setting.rollout.has_failure_policy {
        rolling["failurePolicy"] = json!({ "failureThreshold": 1 });
    }
    rolling
}

fn world(setting: &Setting) -> World {
    let rolling = rolling_update(setting);
    let retain = if setting.retains_claims { "Retain" } else { "Delete" };
    let mut spec = json!({
        "replicas": setting.replicas,
        "minReadySeconds": setting.min_ready,
        "progressDeadlineSeconds": DEADLINE,
        "updateStrategy": {
            "podUpgradePolicy": POLICIES[setting.policy], "rollingUpdate": rolling,
        },
        "scaleStrategy": { "persistentVolumeClaimRetentionPolicy": { "whenScaled": retain } },
    });
    if setting.has_claims {
        spec["volumeClaimTemplates"] = storage(0);
    }
    if setting.has_persistent_names {
        spec["namingStrategy"] = json!({ "podNamingSuffixPolicy": "PersistentSequence" });
    }
    World::with(spec)
}

impl World {
    fn apply_event(&mut self, setting: &Setting, event: &Event) {
        match event {
            Event::Plan => self.observe_and_plan(),
            Event::Apply => self.apply_plan(usize::MAX),
            Event::Crash(after) => self.apply_plan(*after),
            Event::Tick => self.now += 1,
            Event::Later => self.now += DEADLINE + 1,
            Event::Rounds => self.run_rounds(ROUNDS),
            Event::Break(n) => self.break_container(*n),
            Event::Kubelet(n) | Event::Lifecycle(n) | Event::RestartByJob(n) => {
                if let Some(pod) = self.pod_at(*n) {
                    self.operate_on(event, &pod);
                }
            }
            Event::Label(n, _) | Event::EndPod(n, _) | Event::DeletePod(n) => {
                if let Some(pod) = self.pod_at(*n).filter(Pod::is_live) {
                    self.change_pod(&pod, event);
                }
            }
            Event::DeleteClaim(n) => self.delete_claim(*n),
            Event::Scale(replicas) => self.edit(json!({ "replicas": replicas })),
            Event::Template(n) => self.edit(json!({ "template": template(TEMPLATES[*n]) })),
            Event::Partition(partition) => {
                let by_partition = json!({ "partition": partition });
                let rolling = json!({ "byPartition": by_partition, "byLabel": null });
                self.edit(json!({ "updateStrategy": { "rollingUpdate": rolling } }));
            }
            Event::Policy(n) => {
                self.edit(json!({ "updateStrategy": { "podUpgradePolicy": POLICIES[*n] } }));
            }
            Event::Storage(size) if setting.has_claims => {
                self.edit(json!({ "volumeClaimTemplates": storage(*size) }));
            }
            Event::Storage(_) => {}
            Event::Exclude(n)
            | Event::Include(n)
            | Event::ListToDelete(n)
            | Event::CancelReplacement(n)
            | Event::Control(n, _) => {
                if let Some(pod) = self.pod_at(*n).filter(|pod| !pod.is_deleting()) {
                    self.change_membership(event, &pod);
                }
            }
            Event::ByLabel(is_by_label) => self.set_by_label(setting, *is_by_label),
            Event::Pause(is_paused) => self.edit(json!({ "paused": is_paused })),
            Event::Reject(rejected) => {
                let image = rejected.map(|n| template(TEMPLATES[n]));
                let image =
                    image.map(|t| t["spec"]["containers"][0]["image"].as_str().unwrap().to_owned());
                self.cluster.rejected_image = image.map(|image| (image, "rejected".to_owned()));
            }
            Event::Approve(step) => self.approve(*step),
            Event::Resume => self.resume(),
            Event::FailureAction(n) if setting.rollout.has_failure_policy => {
                let policy = json!({ "action": ACTIONS[*n] });
                let rolling = json!({ "failurePolicy": policy });
                self.edit(json!({ "updateStrategy": { "rollingUpdate": rolling } }));
            }
            Event::FailureAction(_) => {}
            Event::Decoration(event) => self.apply_decoration_event(*event),
        }
    }

    fn delete_claim(&mut self, index: usize) {
        if let Some(claim) = self.claims().get(index) {
            let name = claim["metadata"]["name"].as_str().unwrap();
            self.cluster.delete("persistentvolumeclaims", name);
        }
    }

    fn pod_at(&self, index: usize) -> Option<Pod> {
        self.pods().into_iter().nth(index)
    }

    fn change_membership(&mut self, event: &Event, pod: &Pod) {
        let name = pod.name();
        if let Event::Exclude(_) = event {
            self.edit(lists(&[name], &[], &[]));
        } else if let Event::Include(_) = event {
            if !pod.is_owned() {
                self.edit(lists(&[], &[name], &[]));
            }
        } else if let Event::ListToDelete(_) = event {
            self.edit(lists(&[], &[], &[name]));
        } else if let Event::Control(_, is_set) = event {
            let value = is_set.then_some(well_known::CONTROL_ON);
            self.label(name, well_known::CONTROL, value);
        } else {
            self.label(name, well_known::TO_REPLACE, None);
        }
    }

    fn set_by_label(&mut self, setting: &Setting, is_by_label: bool) {
        let mut rolling = rolling_update(setting);
        // A merge patch: the other field is removed.
        if is_by_label {
            rolling["byLabel"] = json!({});
            rolling["byPartition"] = Value::Null;
            rolling["steps"] = Value::Null;
        } else {
            rolling["byLabel"] = Value::Null;
        }
        self.edit(json!({ "updateStrategy": { "rollingUpdate": rolling } }));
    }

    /// Ends the states that only users can end, so that the CollaSet can converge.
    fn settle(&mut self, setting: &Setting) {
        self.cluster.rejected_image = None;
        self.edit(json!({ "paused": false }));
        if !self.set()["spec"]["updateStrategy"]["rollingUpdate"]["byLabel"].is_null() {
            self.set_by_label(setting, false);
        }
        for pod in self.pods() {
            self.label(pod.name(), well_known::CONTROL, Some(well_known::CONTROL_ON));
        }
        self.set_decoration_partition(None);
        let has_bad_revision = self
            .cluster
            .all("controllerrevisions")
            .any(|revision| starts_never(&revision["data"]["spec"]["template"]));
        if has_bad_revision {
            // A partition would keep Pods at the revision that never starts.
            let by_partition = json!({ "byPartition": { "partition": 0 } });
            self.edit(json!({ "updateStrategy": { "rollingUpdate": by_partition } }));
        }
        if starts_never(&self.set()["spec"]["template"]) {
            self.set_image("v4");
        }
        self.reconcile();
        self.approve(usize::MAX);
        self.resume();
    }

    /// Applies the event of another program to one Pod.
    fn operate_on(&mut self, event: &Event, pod: &Pod) {
        if let Event::Kubelet(_) = event {
            self.kubelet_of(pod);
        } else if let Event::Lifecycle(_) = event {
            self.lifecycle_of(pod);
        } else if pod.is_live() {
            self.restart_by_job(pod);
        }
    }

    /// Sets another reference to the image that the container runs, as an OperationJob does.
    fn restart_by_job(&mut self, pod: &Pod) {
        let image_id = &pod.0["status"]["containerStatuses"][0]["imageID"];
        let other = other_reference(pod.image(), image_id.as_str().unwrap_or_default());
        if let Some(other) = other.filter(|_| !pod.has(&LabelKind::Operating.key(COLLASET))) {
            self.cluster.change("pods", pod.name(), |pod| {
                pod["spec"]["containers"][0]["image"] = json!(other);
            });
        }
    }

    /// Lets the containers of a Pod crash.
    fn break_container(&mut self, index: usize) {
        let Some(pod) = self.pod_at(index).filter(Pod::is_live) else { return };
        let since = Timestamp::from_second(self.now).unwrap().to_string();
        self.cluster.change("pods", pod.name(), |pod| {
            let Some(statuses) = pod["status"]["containerStatuses"].as_array_mut() else { return };
            for status in statuses {
                status["state"] = json!({ "waiting": { "reason": "CrashLoopBackOff" } });
            }
            let ready = &mut pod["status"]["conditions"][0];
            (ready["status"], ready["lastTransitionTime"]) = (json!("False"), json!(since));
        });
    }

    /// Resumes the rollout of the updated revision.
    fn resume(&mut self) {
        let revision = self.status()["updatedRevision"].clone();
        self.annotate_set(well_known::RESUME_ROLLOUT, revision);
    }

    /// Applies a user's or a node's event to one Pod.
    fn change_pod(&mut self, pod: &Pod, event: &Event) {
        if let Event::Label(_, label) = event {
            self.label(pod.name(), label, Some("1"));
        } else if let Event::DeletePod(_) = event {
            self.cluster.delete("pods", pod.name());
        } else if let Event::EndPod(_, phase) = event {
            self.cluster.change("pods", pod.name(), |pod| {
                pod["status"]["phase"] = json!(phase);
                pod["status"]["conditions"] = json!([]);
            });
        }
    }

    /// Asserts that Pods, claims, ResourceContext and status match the spec after convergence.
    fn assert_converged(&self, setting: &Setting) {
        let replicas = self.set()["spec"]["replicas"].as_u64().unwrap();
        let live = self.live();
        assert_eq!(live.len() as u64, replicas, "number of Pods");
        assert!(live.iter().all(|pod| pod.has(well_known::SERVICE_AVAILABLE)), "all are available");
        for pod in &live {
            let labels = pod.0["metadata"]["labels"].as_object().unwrap();
            let temporary = [".podopslifecycle.", "replace-pair", "/to-"];
            let left: Vec<_> =
                labels.keys().filter(|key| temporary.iter().any(|p| key.contains(p))).collect();
            assert!(left.is_empty(), "{} still has {left:?}", pod.name());
        }
        let ids: Vec<i64> = self.contexts().into_keys().collect();
        let mut pod_ids: Vec<i64> = live.iter().map(Pod::id).collect();
        pod_ids.sort_unstable();
        assert_eq!(ids, pod_ids, "instance IDs of the ResourceContext");
        assert_eq!(self.count("replicas").unsigned_abs(), replicas);
        assert_eq!(self.count("availableReplicas").unsigned_abs(), replicas);
        self.assert_revisions(&live);
        self.assert_decorated();
        self.assert_claims(setting, &live);
    }

    fn assert_revisions(&self, live: &[Pod]) {
        let spec = &self.set()["spec"];
        let replicas = spec["replicas"].as_u64().unwrap();
        let partition = &spec["updateStrategy"]["rollingUpdate"]["byPartition"]["partition"];
        let partition = partition.as_u64().unwrap_or_default();
        let [current, updated] = ["currentRevision", "updatedRevision"]
            .map(|field| self.status()[field].as_str().unwrap());
        let at_updated = live.iter().filter(|pod| pod.revision() == updated).count() as u64;
        if partition == 0 {
            assert_eq!(at_updated, replicas, "all Pods are updated");
            let image = spec["template"]["spec"]["containers"][0]["image"].as_str().unwrap();
            for pod in live {
                let running = &pod.0["status"]["containerStatuses"][0]["imageID"];
                assert_eq!(*running, image_id(image), "{} runs another image", pod.name());
            }
        } else if current != updated {
            assert_eq!(at_updated, replicas.saturating_sub(partition), "partition {partition}");
        }
    }

    fn assert_claims(&self, setting: &Setting, live: &[Pod]) {
        let mut waiting_instances = Vec::new();
        for pod in live {
            assert_eq!(pod.mounts().len(), usize::from(setting.has_claims));
            // While a mounted claim is terminating, the instance keeps its other claims.
            if pod.mounts().iter().any(|claim| self.is_claim_deleting(claim)) {
                waiting_instances.push(pod.id().to_string());
            }
        }
        let mut surplus = self.claims();
        // Those of excluded Pods leave with them.
        surplus.retain(|claim| claim["metadata"]["labels"][well_known::ORPHANED].is_null());
        surplus.retain(|claim| {
            let name = claim["metadata"]["name"].as_str().unwrap();
            let id = claim["metadata"]["labels"][well_known::INSTANCE_ID].as_str().unwrap();
            let is_mounted = live.iter().flat_map(Pod::mounts).any(|mounted| mounted == name);
            !is_mounted && !waiting_instances.iter().any(|waiting| waiting == id)
        });
        assert!(setting.retains_claims || surplus.is_empty(), "surplus claims: {surplus:#?}");
    }

    fn is_claim_deleting(&self, name: &str) -> bool {
        let claim = self.cluster.get("persistentvolumeclaims", name).expect("the claim exists");
        !claim["metadata"]["deletionTimestamp"].is_null()
    }
}

fn lists(exclude: &[&str], include: &[&str], delete: &[&str]) -> Value {
    json!({ "scaleStrategy": {
        "podToExclude": exclude, "podToInclude": include, "podToDelete": delete,
    } })
}

fn starts_never(template: &Value) -> bool {
    template["spec"]["containers"][0]["image"] == "bad"
}

/// 400 runs with a fixed seed; if `PROPTEST_RNG_SEED` is set, `PROPTEST_CASES` runs from that seed.
fn config() -> ProptestConfig {
    let requested = ProptestConfig::default();
    let is_default = requested.rng_seed == RngSeed::Random;
    ProptestConfig {
        cases: if is_default { 400 } else { requested.cases },
        rng_seed: if is_default { RngSeed::Fixed(1) } else { requested.rng_seed },
        failure_persistence: None,
        ..requested
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn safety_holds_and_the_set_converges_to_its_spec(
        setting in settings(),
        events in events(),
    ) {
        let mut world = world(&setting);
        for event in &events {
            world.apply_event(&setting, event);
        }
        world.settle(&setting);
        world.converge();
        world.assert_converged(&setting);
    }
}
