//! Tests of the planner: a job, its status and Pods in, changes and the next status out.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podops_api::{
    lifecycle::LabelKind,
    operation_job::{
        OperationJobSpec, OperationJobStatus,
        Progress::{Failed, Pending, Processing, Succeeded},
    },
    well_known,
};
use podops_client::write::{Change, Write};
use serde_json::{Value, json};

use super::{
    run::{Restart, with_restart},
    *,
};
use crate::view::{ContainerView, Missing, Owner};

const DIGEST: &str = "1111111111111111111111111111111111111111111111111111111111111111";

fn now() -> Timestamp {
    Timestamp::from_second(1_000).unwrap()
}

/// A Pod of a CollaSet: `<name>`, followed by `available`, `permitted`, `operating`, `deleting`,
/// `to-replace`, `to-delete`, `protected`, `of=<origin>`, `replaced=<origin>`, `uid=<uid>`,
/// `id=<instance ID>`.
fn pod(text: &str) -> PodView {
    let mut words = text.split(' ');
    let name = words.next().unwrap();
    let mut pod = PodView {
        name: name.into(),
        uid: format!("uid-{name}").into(),
        created: now(),
        owner: Some(Owner { kind: "CollaSet".to_owned(), uid: "set".into() }),
        containers: vec![ContainerView {
            name: "c".to_owned(),
            image: "nginx:1".to_owned(),
            image_id: format!("docker.io/library/nginx@sha256:{DIGEST}"),
            container_id: "id-1".to_owned(),
            ready: true,
        }],
        ..PodView::default()
    };
    let mut label =
        |key: &str, value: &str| drop(pod.labels.insert(key.to_owned(), value.to_owned()));
    for word in words {
        match word.split_once('=').unwrap_or((word, "")) {
            ("available", _) => label(well_known::SERVICE_AVAILABLE, "1"),
            ("operating", _) => {
                label(&LabelKind::Operating.key("job"), "1");
                label(&LabelKind::OperationType.key("job"), "Restart");
            }
            ("permitted", _) => {
                label(&LabelKind::Operating.key("job"), "1");
                label(&LabelKind::OperationType.key("job"), "Restart");
                label(&LabelKind::Operate.key("job"), "1");
            }
            ("other", _) => label(&LabelKind::Operating.key("collaset"), "1"),
            ("to-replace", _) => label(well_known::TO_REPLACE, "true"),
            ("to-delete", _) => label(well_known::TO_DELETE, "true"),
            ("of", origin) => label(well_known::REPLACE_PAIR_ORIGIN_NAME, origin),
            ("id", id) => label(well_known::INSTANCE_ID, id),
            ("deleting", _) => pod.deleting = true,
            ("protected", _) => pod.finalizers.push(well_known::REPLACE_PROTECTED.to_owned()),
            ("uid", uid) => pod.uid = uid.into(),
            ("replaced", origin) => {
                pod.annotations =
                    Some([(well_known::REPLACEMENT_OF.to_owned(), origin.to_owned())].into());
            }
            ("requested", _) => {
                let requested = (well_known::REPLACE_REQUESTED_BY.to_owned(), "job-uid".to_owned());
                pod.annotations = Some([requested].into());
            }
            (word, _) => unreachable!("{word}"),
        }
    }
    pod
}

/// A job named `job` on the targets `a`, `b`, …, of which these Pods exist; the others are possible
/// successors.
fn job(action: &str, targets: &[&str], pods: &[&str]) -> Observed {
    let targets: Vec<_> = targets.iter().map(|name| json!({ "name": name })).collect();
    let spec: OperationJobSpec =
        serde_json::from_value(json!({ "action": action, "targets": targets })).unwrap();
    let mut observed = Observed {
        name: "job".to_owned(),
        uid: "job-uid".into(),
        finalizers: vec![well_known::PROTECTED.to_owned()],
        spec,
        ..Observed::default()
    };
    for pod in pods.iter().map(|text| Arc::new(pod(text))) {
        if observed.spec.targets.iter().any(|target| target.name == *pod.name) {
            observed.pods.insert(pod.name.clone(), pod.clone());
        }
        observed.successors.push(pod);
    }
    observed
}

/// Plans, and returns the changes as text.
fn changes(observed: &Observed) -> String {
    let plan = plan(observed, now());
    let changes = plan.targets.iter().map(|change| {
        let kind = format!("{:?}", change.change);
        let kind = kind.split([' ', '{']).next().unwrap_or_default().to_owned();
        format!("{kind} {}", change.pod)
    });
    changes.collect::<Vec<_>>().join(", ")
}

/// Plans and stores the status, as the API server would.
fn store(observed: &mut Observed) -> OperationJobStatus {
    let plan = plan(observed, now());
    observed.status = plan.status;
    observed.status.clone()
}

fn progress(status: &OperationJobStatus) -> Vec<Progress> {
    status.target_details.iter().map(|target| target.progress).collect()
}

fn set_pods(observed: &mut Observed, pods: &[&str]) {
    let fresh = job(&observed.spec.action, &["a", "b", "c"], pods);
    let is_target = |name: &PodName| observed.spec.targets.iter().any(|t| t.name == **name);
    observed.pods = fresh.pods.into_iter().filter(|(name, _)| is_target(name)).collect();
    observed.successors = fresh.successors;
}

#[test]
fn a_start_is_stored_before_its_pod_is_changed() {
    let mut observed = job("Replace", &["a"], &["a available"]);
    assert_eq!(changes(&observed), "");
    assert_eq!(progress(&store(&mut observed)), [Progress::Processing]);
    assert_eq!(changes(&observed), "RequestReplacement a");
}

#[test]
fn a_replacement_succeeds_once_only_the_new_pod_is_left() {
    let mut observed = job("Replace", &["a"], &["a available"]);
    store(&mut observed);
    set_pods(&mut observed, &["a available to-replace", "n of=a id=7"]);
    assert_eq!(store(&mut observed).target_details[0].extra_info["NewPod"], "n");
    set_pods(&mut observed, &["n id=7"]);
    assert_eq!(progress(&store(&mut observed)), [Progress::Processing]);
    // The new Pod is lost: its successor has the same instance ID.
    set_pods(&mut observed, &["m id=7 available"]);
    let status = store(&mut observed);
    assert_eq!(progress(&status), [Progress::Succeeded]);
    assert_eq!(status.target_details[0].extra_info["NewPod"], "m");
}

#[test]
fn an_unobserved_replacement_is_found_by_its_annotation() {
    let mut observed = job("Replace", &["a"], &["a available"]);
    store(&mut observed);
    set_pods(&mut observed, &["n replaced=a available", "o available"]);
    assert_eq!(progress(&store(&mut observed)), [Progress::Succeeded]);
    let mut lost = job("Replace", &["a"], &["a available"]);
    store(&mut lost);
    set_pods(&mut lost, &["o available"]);
    let status = store(&mut lost);
    assert_eq!(status.target_details[0].error.as_ref().unwrap().reason, "PodNotFound");
}

#[test]
fn partition_and_parallelism_limit_the_targets() {
    let pods = ["a available", "b available", "c available"];
    let mut observed = job("Replace", &["a", "b", "c"], &pods);
    observed.spec.partition = Some(2);
    observed.spec.parallelism = Some(1);
    assert_eq!(progress(&store(&mut observed)), [Processing, Pending, Pending]);
    assert_eq!(progress(&store(&mut observed)), [Processing, Pending, Pending]);
    observed.status.target_details[0].progress = Succeeded;
    assert_eq!(progress(&store(&mut observed)), [Succeeded, Processing, Pending]);
    observed.status.target_details[1].progress = Succeeded;
    assert_eq!(progress(&store(&mut observed)), [Succeeded, Succeeded, Pending]);
    observed.spec.partition = None;
    observed.spec.pause = true;
    assert_eq!(progress(&store(&mut observed)), [Succeeded, Succeeded, Pending]);
    observed.spec.pause = false;
    assert_eq!(progress(&store(&mut observed)), [Succeeded, Succeeded, Processing]);
}

#[test]
fn a_restart_in_place_begins_patches_finishes_and_observes() {
    let mut observed = job("Restart", &["a"], &["a available"]);
    store(&mut observed);
    assert_eq!(changes(&observed), "Begin a");
    set_pods(&mut observed, &["a available other"]);
    assert_eq!(changes(&observed), "");
    set_pods(&mut observed, &["a operating"]);
    assert_eq!(changes(&observed), "");
    set_pods(&mut observed, &["a permitted"]);
    assert_eq!(changes(&observed), "Restart a");
    let restarted = |text: &str, id: &str| {
        let mut pod = pod(text);
        let json = json!({ "job": "job-uid", "containers": { "c": "id-1" } });
        pod.annotations = Some([(well_known::RESTARTED.to_owned(), json.to_string())].into());
        pod.containers[0].container_id = id.to_owned();
        Arc::new(pod)
    };
    observed.pods.insert("a".into(), restarted("a permitted", "id-1"));
    assert_eq!(changes(&observed), "");
    observed.pods.insert("a".into(), restarted("a permitted", "id-2"));
    assert_eq!(changes(&observed), "Finish a");
    observed.pods.insert("a".into(), restarted("a", "id-2"));
    assert_eq!(progress(&plan(&observed, now()).status), [Progress::Processing]);
    observed.pods.insert("a".into(), restarted("a available", "id-2"));
    assert_eq!(progress(&plan(&observed, now()).status), [Progress::Succeeded]);
}

#[test]
fn two_jobs_restart_a_container_once_each() {
    let of = |uid: &str| {
        let mut observed = job("Restart", &["a"], &["a available"]);
        store(&mut observed);
        observed.uid = uid.into();
        observed
    };
    let with = |id: &str, restarts: Value| {
        let mut pod = pod("a permitted");
        pod.annotations = Some([(well_known::RESTARTED.to_owned(), restarts.to_string())].into());
        pod.containers[0].container_id = id.to_owned();
        pod
    };
    let restart = |job: &str, id: &str, at: i64| {
        let at = Time(Timestamp::from_second(at).unwrap());
        json!({ "job": job, "containers": { "c": id }, "at": at })
    };
    let first = restart("first", "id-1", 990);
    let second = restart("second", "id-2", 990);
    let changes_of = |uid: &str, pod: &PodView| {
        let mut observed = of(uid);
        observed.pods.insert("a".into(), Arc::new(pod.clone()));
        changes(&observed)
    };
    let requested = with("id-1", json!([first]));
    assert_eq!(changes_of("second", &requested), "", "waits for the restart by the first job");
    let stuck = with("id-1", json!([restart("first", "id-1", 0)]));
    assert_eq!(changes_of("second", &stuck), "Restart a", "its image cannot be pulled");
    let earlier_release = with("id-2", json!({ "job": "first", "containers": { "c": "id-1" } }));
    assert_eq!(changes_of("first", &earlier_release), "Finish a");
    let restarted = with("id-2", json!([first]));
    assert_eq!(changes_of("second", &restarted), "Restart a");
    let both = with("id-2", json!([first, second]));
    assert_eq!(changes_of("first", &both), "Finish a", "the first job reads its own restart");
    let new = Restart { job: "third".to_owned(), ..Restart::default() };
    let jobs: Vec<String> = with_restart(&both, new).into_iter().map(|r| r.job).collect();
    assert_eq!(jobs, ["first", "second", "third"]);
}

/// Until the CollaSet has finished its update, the kubelet may report the digest of the image
/// before.
#[test]
fn a_restart_waits_for_the_update_of_the_pod() {
    let mut observed = job("Restart", &["a"], &["a permitted"]);
    store(&mut observed);
    assert_eq!(changes(&observed), "Restart a");
    let pod = Arc::make_mut(observed.pods.get_mut(&PodName::from("a")).unwrap());
    let updated = [(well_known::LAST_POD_STATUS.to_owned(), "{}".to_owned())];
    pod.annotations = Some(updated.into());
    assert_eq!(changes(&observed), "");
}

#[test]
fn restarts_take_one_pod_at_a_time_by_default() {
    let pods = ["a available", "b available", "c available"];
    let mut restart = job("Restart", &["a", "b", "c"], &pods);
    assert_eq!(progress(&store(&mut restart)), [Processing, Pending, Pending]);
    let mut replace = job("Replace", &["a", "b", "c"], &pods);
    assert_eq!(progress(&store(&mut replace)), [Processing, Processing, Processing]);
    let mut dry_run = job("Restart", &["a", "b", "c"], &pods);
    dry_run.spec.dry_run = true;
    assert_eq!(progress(&store(&mut dry_run)), [Succeeded, Succeeded, Succeeded]);
}

#[test]
fn a_restart_waits_for_containers_that_are_not_reported() {
    let mut observed = job("Restart", &["a"], &["a available"]);
    Arc::make_mut(observed.pods.get_mut(&PodName::from("a")).unwrap()).containers[0]
        .container_id
        .clear();
    assert_eq!(progress(&store(&mut observed)), [Progress::Pending]);
    observed.status.start_time = Some(Time(Timestamp::from_second(900).unwrap()));
    let status = store(&mut observed);
    assert_eq!(status.target_details[0].error.as_ref().unwrap().reason, "ContainerNotRunning");
}

#[test]
fn a_pod_of_unknown_digest_is_recreated() {
    let mut observed = job("Restart", &["a"], &["a available id=3"]);
    Arc::make_mut(observed.pods.get_mut(&PodName::from("a")).unwrap()).containers[0].image_id =
        "sha256:local".to_owned();
    let status = store(&mut observed);
    assert_eq!(status.target_details[0].extra_info["Method"], "Recreate");
    set_pods(&mut observed, &["a permitted id=3"]);
    assert_eq!(changes(&observed), "Delete a");
    set_pods(&mut observed, &["n id=3"]);
    assert_eq!(progress(&store(&mut observed)), [Progress::Processing]);
    set_pods(&mut observed, &["n id=3 available"]);
    assert_eq!(progress(&store(&mut observed)), [Progress::Succeeded]);
}

#[test]
fn two_recreated_pods_have_two_successors() {
    let mut observed = job("Recreate", &["a", "b"], &["a available", "b available"]);
    observed.spec.parallelism = Some(2);
    store(&mut observed);
    set_pods(&mut observed, &["n available"]);
    assert_eq!(progress(&store(&mut observed)), [Succeeded, Processing]);
    set_pods(&mut observed, &["n available", "m available"]);
    assert_eq!(progress(&store(&mut observed)), [Succeeded, Succeeded]);
}

#[test]
fn missing_uncontrolled_and_unsupported_targets_fail() {
    let mut observed = job("Replace", &["a", "b", "c"], &["c available"]);
    assert_eq!(progress(&plan(&observed, now()).status)[0], Progress::Pending);
    observed.missing =
        [("a".into(), Missing::NotFound), ("b".into(), Missing::NotControlled)].into();
    Arc::make_mut(observed.pods.get_mut(&PodName::from("c")).unwrap()).owner = None;
    let status = store(&mut observed);
    let reasons: Vec<&str> = status
        .target_details
        .iter()
        .filter_map(|target| Some(target.error.as_ref()?.reason.as_str()))
        .collect();
    assert_eq!(reasons, ["PodNotFound", "PodNotControlled", "ReplaceNotSupported"]);
    assert_eq!(status.progress, Some(Progress::Failed));
    let mut unknown = job("Reboot", &["a"], &["a available"]);
    let status = store(&mut unknown);
    assert_eq!(status.target_details[0].error.as_ref().unwrap().reason, "UnknownAction");
}

#[test]
fn a_deadline_counts_for_each_target_and_cancels_its_operation() {
    let mut observed = job("Restart", &["a", "b"], &["a operating", "b operating"]);
    observed.spec.parallelism = Some(2);
    store(&mut observed);
    observed.status.target_details[0].start_time = None;
    observed.status.target_details[1].start_time = Some(Time(Timestamp::UNIX_EPOCH));
    observed.spec.active_deadline_seconds = 60;
    assert_eq!(changes(&observed), "Undo b");
    let status = store(&mut observed);
    assert_eq!(progress(&status), [Processing, Failed]);
    // A Pod that is out of service is returned to service instead.
    set_pods(&mut observed, &["a operating", "b permitted"]);
    assert_eq!(changes(&observed), "Finish b");
    set_pods(&mut observed, &["a operating", "b available"]);
    assert_eq!(store(&mut observed).target_details[1].extra_info["Released"], "true");
}

#[test]
fn a_finished_job_lives_for_its_time_to_live() {
    let mut observed = job("Replace", &["a"], &[]);
    observed.missing = [("a".into(), Missing::NotFound)].into();
    store(&mut observed);
    assert_eq!(plan(&observed, now()).job, None);
    store(&mut observed);
    let wait = plan(&observed, now()).requeue_after.unwrap();
    assert_eq!(wait, Duration::from_secs(1_800));
    observed.status.end_time = Some(Time(Timestamp::UNIX_EPOCH));
    observed.spec.ttl_seconds_after_finished = 60;
    assert_eq!(plan(&observed, now()).job, Some(JobChange::Delete));
}

/// The finalizer is the only trace of who requested the replacement.
#[test]
fn a_request_of_kuperators_job_is_taken_over() {
    let mut observed = job("Replace", &["a"], &["a to-replace protected"]);
    observed.status.target_details = vec![TargetStatus {
        name: "a".to_owned(),
        progress: Processing,
        ..TargetStatus::default()
    }];
    assert_eq!(changes(&observed), "", "the Pod is recorded first");
    store(&mut observed);
    assert_eq!(observed.status.target_details[0].extra_info["Owner"], "set");
    for deleting in [false, true] {
        observed.deleting = deleting;
        let plan = plan(&observed, now());
        assert_eq!(plan.job, None);
        let write = crate::render::change_target(&observed, &plan.targets[0], now()).unwrap();
        let Write::Patch { change: Change::Merge(body), .. } = write else {
            panic!("a merge patch")
        };
        assert_eq!(body["metadata"]["finalizers"], json!([]));
        let requested_by = &body["metadata"]["annotations"][well_known::REPLACE_REQUESTED_BY];
        assert_eq!(requested_by, "job-uid");
    }
}

#[test]
fn a_deleted_job_cancels_only_what_it_requested() {
    let mut observed = job(
        "Replace",
        &["a", "b", "c"],
        &["a to-replace requested", "b to-replace", "c to-replace requested to-delete"],
    );
    store(&mut observed);
    observed.deleting = true;
    assert_eq!(changes(&observed), "CancelReplacement a");
    assert_eq!(plan(&observed, now()).job, None);
    set_pods(&mut observed, &["a", "b to-replace", "c deleting"]);
    assert_eq!(changes(&observed), "");
    assert_eq!(plan(&observed, now()).job, Some(JobChange::RemoveFinalizer));
}
