//! OperationJobs on a real API server: replacement, restart and recreation of Pods, cancellation,
//! limits, bad input, crashes of the operator, and the number of requests.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use podops_api::{
    operation_job::{OperationJob, OperationJobStatus, Progress},
    well_known,
};
use podops_test_cluster::{
    cluster::{TIMEOUT, TestCluster, eventually, image},
    measure::Cost,
    suite::{Group, Lane, Suite, all_requests_are_permitted, new_cluster},
};
use serde_json::{Value, json};

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite
        .group(
            Group::new("operation_jobs", Lane::Beside, new_cluster)
                .beside(a_job_replaces_pods)
                .beside(a_partition_is_raised_step_by_step)
                .beside(a_target_that_does_not_exist_fails)
                .beside(two_jobs_replace_one_pod_once)
                .beside(a_new_pod_of_a_replacement_is_not_replaced)
                .beside(a_deleted_job_cancels_its_replacement)
                .beside(a_missed_deadline_cancels_the_operation)
                .beside(containers_are_restarted_in_place)
                .beside(pods_are_recreated_with_parallelism)
                .beside(a_paused_job_and_a_dry_run_change_nothing)
                .beside(bad_jobs_are_rejected)
                .end(all_requests_are_permitted),
        )
        .scenario(Lane::Beside, jobs_need_few_api_requests_and_survive_kills)
}

fn jobs(cluster: &TestCluster) -> Api<OperationJob> {
    cluster.api()
}

/// Creates a job on these Pods; the fields of `spec` are added to its spec.
async fn create(cluster: &TestCluster, name: &str, action: &str, pods: &[String], spec: Value) {
    let targets: Vec<Value> = pods.iter().map(|pod| json!({ "name": pod })).collect();
    let mut job =
        json!({ "metadata": { "name": name }, "spec": { "action": action, "targets": targets } });
    for (key, value) in spec.as_object().unwrap() {
        job["spec"][key] = value.clone();
    }
    let job = serde_json::from_value(job).unwrap();
    jobs(cluster).create(&PostParams::default(), &job).await.unwrap();
}

async fn patch(cluster: &TestCluster, name: &str, spec: Value) {
    let patch = Patch::Merge(json!({ "spec": spec }));
    jobs(cluster).patch(name, &PatchParams::default(), &patch).await.unwrap();
}

async fn status(cluster: &TestCluster, name: &str) -> OperationJobStatus {
    jobs(cluster).get(name).await.unwrap().status.unwrap_or_default()
}

/// Waits until the status of a job fulfils `condition`.
async fn wait(cluster: &TestCluster, name: &str, condition: impl Fn(&OperationJobStatus) -> bool) {
    let api = jobs(cluster);
    let waited = eventually(TIMEOUT, async || {
        Ok(condition(&api.get(name).await?.status.unwrap_or_default()))
    });
    let is_reached = waited.await.is_ok();
    assert!(is_reached, "{name}: {:#?}", status(cluster, name).await);
}

async fn wait_for(cluster: &TestCluster, name: &str, progress: Progress) {
    wait(cluster, name, |status| status.progress == Some(progress)).await;
}

async fn pods(cluster: &TestCluster, set: &str) -> Vec<Pod> {
    let pods = cluster.pods_of(set).await.unwrap();
    pods.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect()
}

async fn names(cluster: &TestCluster, set: &str) -> Vec<String> {
    pods(cluster, set).await.iter().map(ResourceExt::name_any).collect()
}

fn uids(pods: &[Pod]) -> BTreeSet<String> {
    pods.iter().filter_map(ResourceExt::uid).collect()
}

/// Asserts that no label or annotation of an operation or a job is left on the Pods.
#[track_caller]
fn assert_no_labels(pods: &[Pod]) {
    for pod in pods {
        let left: Vec<&String> = pod
            .labels()
            .keys()
            .filter(|key| {
                key.contains(".podopslifecycle.") || key.as_str() == well_known::TO_REPLACE
            })
            .collect();
        assert!(left.is_empty(), "{}: {left:?}", pod.name_any());
    }
}

async fn a_job_replaces_pods(cluster: &TestCluster) {
    cluster.create_and_wait("replace", 2, &json!({})).await.unwrap();
    let before = pods(cluster, "replace").await;
    create(cluster, "replace", "Replace", &names(cluster, "replace").await, json!({})).await;
    wait_for(cluster, "replace", Progress::Succeeded).await;
    let after = pods(cluster, "replace").await;
    assert!(uids(&before).is_disjoint(&uids(&after)));
    let status = status(cluster, "replace").await;
    assert_eq!((status.total_pod_count, status.succeeded_pod_count), (2, 2));
    let new: BTreeSet<&String> =
        status.target_details.iter().map(|target| &target.extra_info["NewPod"]).collect();
    let names: Vec<String> = after.iter().map(ResourceExt::name_any).collect();
    assert_eq!(new, names.iter().collect());
    cluster.wait_until_rolled_out("replace", 2, TIMEOUT).await.unwrap();
    assert_no_labels(&pods(cluster, "replace").await);
}

async fn a_partition_is_raised_step_by_step(cluster: &TestCluster) {
    cluster.create_and_wait("steps", 3, &json!({})).await.unwrap();
    let targets = names(cluster, "steps").await;
    create(cluster, "steps", "Replace", &targets, json!({ "partition": 0 })).await;
    wait_for(cluster, "steps", Progress::Pending).await;
    for partition in 1..=3 {
        patch(cluster, "steps", json!({ "partition": partition })).await;
        wait(cluster, "steps", |status| status.succeeded_pod_count == partition).await;
        let count = usize::try_from(partition).unwrap();
        let done = status(cluster, "steps").await.target_details;
        let done: Vec<&str> = done
            .iter()
            .filter(|target| target.progress == Progress::Succeeded)
            .map(|target| target.name.as_str())
            .collect();
        assert_eq!(done, targets[..count], "targets are operated on in their order");
    }
    wait_for(cluster, "steps", Progress::Succeeded).await;
}

async fn a_target_that_does_not_exist_fails(cluster: &TestCluster) {
    create(cluster, "missing", "Replace", &["no-such-pod".to_owned()], json!({})).await;
    wait_for(cluster, "missing", Progress::Failed).await;
    let error = status(cluster, "missing").await.target_details[0].error.clone().unwrap();
    assert_eq!(error.reason, "PodNotFound");
    cluster.wait_for_event("missing", "TargetFailed").await.unwrap();
}

async fn two_jobs_replace_one_pod_once(cluster: &TestCluster) {
    cluster.create_and_wait("parallel", 2, &json!({})).await.unwrap();
    let targets = names(cluster, "parallel").await;
    create(cluster, "parallel-a", "Replace", &targets, json!({})).await;
    create(cluster, "parallel-b", "Replace", &targets, json!({})).await;
    for job in ["parallel-a", "parallel-b"] {
        wait_for(cluster, job, Progress::Succeeded).await;
    }
    let new = async |job| -> Vec<String> {
        let details = status(cluster, job).await.target_details;
        details.iter().map(|target| target.extra_info["NewPod"].clone()).collect()
    };
    assert_eq!(new("parallel-a").await, new("parallel-b").await);
    assert_eq!(pods(cluster, "parallel").await.len(), 2);
}

async fn a_new_pod_of_a_replacement_is_not_replaced(cluster: &TestCluster) {
    let delayed = json!({ "minReadySeconds": 3600 });
    cluster.create_with("chain", 1, "nginx:1", &delayed).await.unwrap();
    cluster.wait_for_status("chain", TIMEOUT, |s| s.ready_replicas == 1).await.unwrap();
    let origin = names(cluster, "chain").await;
    create(cluster, "chain-a", "Replace", &origin, json!({})).await;
    wait(cluster, "chain-a", |status| {
        status.target_details.iter().any(|target| target.extra_info.contains_key("NewPod"))
    })
    .await;
    let new = status(cluster, "chain-a").await.target_details[0].extra_info["NewPod"].clone();
    create(cluster, "chain-b", "Replace", std::slice::from_ref(&new), json!({})).await;
    wait(cluster, "chain-b", |status| {
        let known = status
            .target_details
            .first()
            .and_then(|t| t.extra_info.get("NotAllowedToReplaceNewPod"));
        known.is_some_and(|text| text.contains(&origin[0]))
            && status.progress == Some(Progress::Processing)
    })
    .await;
    assert_eq!(pods(cluster, "chain").await.len(), 2);
}

async fn a_deleted_job_cancels_its_replacement(cluster: &TestCluster) {
    let delayed = json!({ "minReadySeconds": 3600 });
    cluster.create_with("cancel", 1, "nginx:1", &delayed).await.unwrap();
    cluster.wait_for_status("cancel", TIMEOUT, |s| s.ready_replicas == 1).await.unwrap();
    let origin = names(cluster, "cancel").await;
    create(cluster, "cancel", "Replace", &origin, json!({})).await;
    eventually(TIMEOUT, async || Ok(pods(cluster, "cancel").await.len() == 2)).await.unwrap();
    jobs(cluster).delete("cancel", &DeleteParams::default()).await.unwrap();
    let is_gone = async || Ok(jobs(cluster).get_opt("cancel").await?.is_none());
    eventually(TIMEOUT, is_gone).await.unwrap();
    eventually(TIMEOUT, async || Ok(names(cluster, "cancel").await == origin)).await.unwrap();
    assert_no_labels(&pods(cluster, "cancel").await);
}

async fn a_missed_deadline_cancels_the_operation(cluster: &TestCluster) {
    cluster.create_and_wait("deadline", 1, &json!({})).await.unwrap();
    let origin = names(cluster, "deadline").await;
    // The finalizer keeps the Pod in phase Preparing, so that the restart is not permitted.
    let finalizers = json!({ "finalizers": ["prot.podopslifecycle.kusionstack.io/test"] });
    cluster.patch_pod_metadata(&origin[0], finalizers).await.unwrap();
    let limits = json!({ "activeDeadlineSeconds": 6, "TTLSecondsAfterFinished": 10 });
    create(cluster, "deadline", "Restart", &origin, limits).await;
    wait_for(cluster, "deadline", Progress::Failed).await;
    let error = status(cluster, "deadline").await.target_details[0].error.clone().unwrap();
    assert_eq!(error.reason, "DeadlineExceeded");
    assert!(error.message.contains("permission"), "{}", error.message);
    let is_gone = async || Ok(jobs(cluster).get_opt("deadline").await?.is_none());
    eventually(TIMEOUT, is_gone).await.unwrap();
    let is_released = async || {
        let pods = pods(cluster, "deadline").await;
        Ok(!pods[0].labels().keys().any(|key| key.contains(".podopslifecycle.")))
    };
    eventually(TIMEOUT, is_released).await.unwrap();
    let finalizers = json!({ "finalizers": null });
    cluster.patch_pod_metadata(&origin[0], finalizers).await.unwrap();
}

async fn containers_are_restarted_in_place(cluster: &TestCluster) {
    cluster.create_and_wait("restart", 2, &json!({})).await.unwrap();
    let before = pods(cluster, "restart").await;
    let ids = |pods: &[Pod]| -> BTreeSet<String> {
        let statuses =
            pods.iter().flat_map(|p| p.status.iter().flat_map(|s| &s.container_statuses));
        let statuses = statuses.flatten();
        statuses
            .filter_map(|s| Some(format!("{}/{}", s.container_id.as_ref()?, s.restart_count)))
            .collect()
    };
    for (round, name) in ["restart-1", "restart-2"].into_iter().enumerate() {
        create(cluster, name, "Restart", &names(cluster, "restart").await, json!({})).await;
        wait_for(cluster, name, Progress::Succeeded).await;
        let after = pods(cluster, "restart").await;
        let status = status(cluster, name).await;
        assert_eq!(uids(&before), uids(&after), "{status:#?}");
        let restarts = after.iter().map(|pod| {
            pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0].restart_count
        });
        assert_eq!(restarts.collect::<Vec<_>>(), [i32::try_from(round).unwrap() + 1; 2]);
        assert_eq!(status.target_details[0].extra_info["Method"], "InPlace");
        assert_no_labels(&after);
    }
    assert!(ids(&before).is_disjoint(&ids(&pods(cluster, "restart").await)));
    // The next update of the CollaSet sets its image.
    cluster.set_image("restart", "nginx:2").await.unwrap();
    cluster.wait_for_replicas("restart", [2; 4]).await.unwrap();
    assert!(pods(cluster, "restart").await.iter().all(|pod| image(pod) == "nginx:2"));

    let targets = names(cluster, "restart").await;
    let job = json!({ "metadata": { "name": "restart-unknown" }, "spec": { "action": "Restart",
        "targets": [{ "name": targets[0], "containers": ["unknown"] }] } });
    let job = serde_json::from_value(job).unwrap();
    jobs(cluster).create(&PostParams::default(), &job).await.unwrap();
    wait_for(cluster, "restart-unknown", Progress::Failed).await;
    let error = status(cluster, "restart-unknown").await.target_details[0].error.clone().unwrap();
    assert_eq!(error.reason, "ContainerNotFound");
}

async fn pods_are_recreated_with_parallelism(cluster: &TestCluster) {
    cluster.create_and_wait("recreate", 4, &json!({})).await.unwrap();
    let before = pods(cluster, "recreate").await;
    let limits = json!({ "parallelism": 2, "operationDelaySeconds": 1 });
    create(cluster, "recreate", "Recreate", &names(cluster, "recreate").await, limits).await;
    let is_over = async || {
        let status = status(cluster, "recreate").await;
        let processing =
            status.target_details.iter().filter(|t| t.progress == Progress::Processing).count();
        assert!(processing <= 2, "{status:#?}");
        Ok(status.progress == Some(Progress::Succeeded))
    };
    eventually(TIMEOUT, is_over).await.unwrap();
    let after = pods(cluster, "recreate").await;
    assert!(uids(&before).is_disjoint(&uids(&after)));
    let ids = |pods: &[Pod]| -> BTreeSet<String> {
        pods.iter().map(|pod| pod.labels()[well_known::INSTANCE_ID].clone()).collect()
    };
    assert_eq!(ids(&before), ids(&after));
}

async fn a_paused_job_and_a_dry_run_change_nothing(cluster: &TestCluster) {
    cluster.create_and_wait("still", 1, &json!({})).await.unwrap();
    let before = pods(cluster, "still").await;
    let targets = names(cluster, "still").await;
    create(cluster, "still-paused", "Recreate", &targets, json!({ "pause": true })).await;
    create(cluster, "still-dry", "Restart", &targets, json!({ "dryRun": true })).await;
    wait_for(cluster, "still-dry", Progress::Succeeded).await;
    assert_eq!(
        status(cluster, "still-dry").await.target_details[0].extra_info["Method"],
        "InPlace"
    );
    // The operator has handled later changes, and not the paused job.
    create(cluster, "still-last", "Restart", &targets, json!({ "dryRun": true })).await;
    wait_for(cluster, "still-last", Progress::Succeeded).await;
    let after = pods(cluster, "still").await;
    let versions =
        |pods: &[Pod]| pods.iter().filter_map(ResourceExt::resource_version).collect::<Vec<_>>();
    assert_eq!(versions(&before), versions(&after));
    assert_eq!(status(cluster, "still-paused").await.progress, Some(Progress::Pending));
    patch(cluster, "still-paused", json!({ "pause": false })).await;
    wait_for(cluster, "still-paused", Progress::Succeeded).await;
}

async fn bad_jobs_are_rejected(cluster: &TestCluster) {
    let kind = ApiResource::erase::<OperationJob>(&());
    let client = cluster.pods().into_client();
    let api: Api<DynamicObject> = Api::namespaced_with(client, &cluster.namespace, &kind);
    let target = || json!([{ "name": "a" }]);
    for (spec, field) in [
        (json!({ "action": "", "targets": target() }), "action"),
        (json!({ "action": "Reboot", "targets": target() }), "action"),
        (json!({ "action": "Replace", "targets": [] }), "targets"),
        (json!({ "action": "Replace" }), "targets"),
        (
            json!({ "action": "Replace", "targets": [{ "name": "a" }, { "name": "a" }] }),
            "Duplicate",
        ),
        (
            json!({ "action": "Restart", "targets": [{ "name": "a", "containers": ["b", "b"] }] }),
            "Duplicate",
        ),
        (
            json!({ "action": "Replace", "targets": target(), "partition": -1 }),
            "should not be negative",
        ),
        (
            json!({ "action": "Replace", "targets": target(), "activeDeadlineSeconds": 0 }),
            "should be larger than 0",
        ),
        (
            json!({ "action": "Replace", "targets": target(), "TTLSecondsAfterFinished": 0 }),
            "should be larger than 0",
        ),
        (json!({ "action": "Replace", "targets": target(), "parallelism": 0 }), "parallelism"),
    ] {
        let object = DynamicObject::new("bad", &kind).data(json!({ "spec": spec }));
        let rejected = api.create(&PostParams::default(), &object).await;
        let message = rejected.map(|_| ()).unwrap_err().to_string();
        assert!(message.contains(field), "{spec}: {message}");
    }
    let spec = json!({ "partition": 1, "pause": true });
    create(cluster, "immutable", "Replace", &["a".to_owned()], spec).await;
    for (change, field) in [
        (json!({ "action": "Recreate" }), "spec.action is immutable"),
        (json!({ "targets": [{ "name": "b" }] }), "spec.targets field is immutable"),
        (json!({ "partition": 0 }), "should not be decreased"),
        (json!({ "dryRun": true }), "spec.dryRun is immutable"),
    ] {
        let patch = Patch::Merge(json!({ "spec": change }));
        let rejected = jobs(cluster).patch("immutable", &PatchParams::default(), &patch).await;
        let message = rejected.map(|_| ()).unwrap_err().to_string();
        assert!(message.contains(field), "{change}: {message}");
    }
    // Without a partition, all targets are operated on, which is more than any number.
    patch(cluster, "immutable", json!({ "partition": null })).await;
}

/// 100 Pods are replaced, 10 at a time, and restarted in place, while the operator is killed.
async fn jobs_need_few_api_requests_and_survive_kills() {
    let cluster = new_cluster().await;
    cluster.create("fleet", 100, "nginx:1").await.unwrap();
    cluster.wait_until_rolled_out("fleet", 100, TIMEOUT).await.unwrap();
    // They are Ready before lifecycle-operator writes this label, with which the job's writes would
    // meet.
    let in_service = async || {
        let pods = pods(&cluster, "fleet").await;
        Ok(pods.iter().all(|pod| pod.labels().contains_key(well_known::SERVICE_AVAILABLE)))
    };
    eventually(TIMEOUT, in_service).await.unwrap();
    let targets = names(&cluster, "fleet").await;
    let restarted = Cost::of(&cluster, 100, async {
        create(&cluster, "restart", "Restart", &targets, json!({ "parallelism": 100 })).await;
        wait_for(&cluster, "restart", Progress::Succeeded).await;
        Ok(())
    });
    let restarted = restarted.await.unwrap();
    eprintln!("requests per restarted Pod: {:.2}", restarted.requests_per_pod());
    assert!(restarted.requests_per_pod() <= 7.0, "{:.2}", restarted.requests_per_pod());
    restarted.ensure_none_rejected().unwrap();
    let replaced = Cost::of(&cluster, 100, async {
        create(&cluster, "replace", "Replace", &targets, json!({ "parallelism": 10 })).await;
        wait_for(&cluster, "replace", Progress::Succeeded).await;
        Ok(())
    });
    let replaced = replaced.await.unwrap();
    eprintln!("requests per replaced Pod: {:.2}", replaced.requests_per_pod());
    assert!(replaced.requests_per_pod() <= 11.0, "{:.2}", replaced.requests_per_pod());
    cluster.wait_until_rolled_out("fleet", 100, TIMEOUT).await.unwrap();
    assert_no_labels(&pods(&cluster, "fleet").await);

    // Killed while it restarts and replaces: every container restarts once.
    let targets = names(&cluster, "fleet").await;
    create(&cluster, "killed", "Restart", &targets[..50], json!({ "parallelism": 10 })).await;
    create(&cluster, "killed-too", "Replace", &targets[50..], json!({ "parallelism": 10 })).await;
    for _ in 0..4 {
        tokio::time::sleep(Duration::from_millis(700)).await;
        cluster.kill_and_restart("operationjob-operator").await.unwrap();
    }
    for job in ["killed", "killed-too"] {
        wait_for(&cluster, job, Progress::Succeeded).await;
    }
    let after = pods(&cluster, "fleet").await;
    assert_eq!(after.len(), 100);
    for pod in after.iter().filter(|pod| targets[..50].contains(&pod.name_any())) {
        let status = pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap();
        assert_eq!(status[0].restart_count, 1, "{}", pod.name_any());
    }
    assert!(targets[50..].iter().all(|name| !after.iter().any(|pod| pod.name_any() == *name)));
    cluster.assert_no_forbidden_requests().unwrap();
}
