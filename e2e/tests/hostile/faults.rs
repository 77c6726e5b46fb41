//! Faults during rollouts: operators killed at random times, and an API server that is restarted,
//! suspended or down for a minute.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use podops_api::{collaset::CollaSet, lifecycle::LabelKind, well_known};
use podops_test_cluster::{
    cluster::{OPERATORS, TestCluster, eventually, is_rolled_out, programs},
    process::Signal,
    suite::{Lane, Suite, new_cluster},
    tenant::{Tenant, collaset},
    updates::{BESIDE_ANOTHER, Updates},
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinSet, time::timeout};

const PODS: i32 = 10;
const KILLS: u64 = 20;
/// Fixed, so that a failure can be reproduced.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// Pseudo-random number below `below` for each turn (SplitMix64).
fn random(turn: u64, below: u64) -> u64 {
    let mut z = SEED.wrapping_mul(turn + 1);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) % below
}

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite
        .scenario(Lane::Long, rollouts_complete_after_operators_are_killed_at_any_time)
        .scenario(Lane::Waiting, rollouts_complete_after_api_server_outages)
        .scenario(Lane::Waiting, lost_connections_delay_a_rollout_by_less_than_two_minutes)
        .scenario(Lane::Waiting, a_restored_backup_delays_a_rollout_by_less_than_two_minutes)
        .scenario(Lane::Waiting, undecodable_set_blocks_no_other_and_sigterm_frees_leases)
        .scenario(Lane::Long, creates_that_conflict_with_a_quota_are_repeated)
        .scenario(Lane::Waiting, a_write_without_event_stops_no_collaset)
}

async fn rollouts_complete_after_operators_are_killed_at_any_time() {
    let cluster = new_cluster().await;
    cluster.create("web", 10, "nginx:0").await.unwrap();
    cluster.wait_until_rolled_out("web", PODS, Duration::from_secs(60)).await.unwrap();
    let before = uids(&cluster).await;
    for turn in 0..KILLS {
        cluster.set_image("web", &format!("nginx:{}", turn + 1)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(random(turn, 900))).await;
        let victim = OPERATORS[usize::try_from(turn).unwrap() % OPERATORS.len()];
        cluster.kill_and_restart(victim).await.unwrap();
        assert_rollout_completes(&cluster, &format!("after kill {turn} of {victim}")).await;
    }
    assert_eq!(before, uids(&cluster).await, "a Pod was recreated");
    cluster.assert_no_forbidden_requests().unwrap();
}

async fn uids(cluster: &TestCluster) -> Vec<Option<String>> {
    cluster.pods_of("web").await.unwrap().into_iter().map(|pod| pod.uid()).collect()
}

/// Asserts that the rollout completes and leaves no lifecycle labels.
async fn assert_rollout_completes(cluster: &TestCluster, when: &str) {
    if let Err(error) = cluster.wait_until_rolled_out("web", PODS, Duration::from_secs(60)).await {
        panic!("{when}: {error:#}");
    }
    for pod in cluster.pods_of("web").await.unwrap() {
        let labels: Vec<_> =
            pod.labels().keys().filter(|key| key.contains(".podopslifecycle.")).collect();
        assert!(labels.is_empty(), "{when}: {} still has {labels:?}", pod.name_any());
        assert!(pod.labels().contains_key(well_known::SERVICE_AVAILABLE));
    }
}

async fn rollouts_complete_after_api_server_outages() {
    let mut cluster = new_cluster().await;
    cluster.create("web", 10, "nginx:0").await.unwrap();
    cluster.wait_until_rolled_out("web", PODS, Duration::from_secs(60)).await.unwrap();
    let before = uids(&cluster).await;
    for (turn, outage) in [0, 0, 60].into_iter().enumerate() {
        cluster.set_image("web", &format!("nginx:outage-{turn}")).await.unwrap();
        tokio::time::sleep(Duration::from_millis(random(turn as u64, 900))).await;
        cluster.plane.kill_apiserver().await.unwrap();
        tokio::time::sleep(Duration::from_secs(outage)).await;
        cluster.plane.start_apiserver().await.unwrap();
        assert_rollout_completes(&cluster, &format!("after an outage of {outage} s and more"))
            .await;
    }

    // A leader that cannot renew its Lease exits before the Lease expires, and is restarted.
    let exits =
        |cluster: &TestCluster| OPERATORS.map(|name| cluster.operator(name).unwrap().exits().len());
    let exits_before = exits(&cluster);
    cluster.set_image("web", "nginx:frozen").await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    cluster.plane.suspend_apiserver().unwrap();
    // Longer than the renew deadline, 10 s, and a retry.
    tokio::time::sleep(Duration::from_secs(15)).await;
    let exits_suspended = exits(&cluster);
    cluster.plane.resume_apiserver().unwrap();
    assert_rollout_completes(&cluster, "after a freeze").await;
    assert!(
        exits_before.iter().zip(&exits_suspended).all(|(before, after)| after > before),
        "a leader did not exit: {exits_before:?}, {exits_suspended:?}"
    );
    // An API server that starts returns 403 until it has loaded its roles, so 403s are not checked.
    assert_eq!(before, uids(&cluster).await, "a Pod was recreated");
}

/// A watch over a connection that is lost without being closed is blind.
async fn lost_connections_delay_a_rollout_by_less_than_two_minutes() {
    let mut cluster = TestCluster::start_without_operators(&programs().unwrap()).await.unwrap();
    let relay = cluster.plane.start_relay().await.unwrap();
    cluster.start_operators().await.unwrap();
    cluster.create("web", 10, "nginx:0").await.unwrap();
    cluster.wait_until_rolled_out("web", PODS, Duration::from_secs(60)).await.unwrap();
    let before = uids(&cluster).await;
    // The connections of the watches become idle, those of the Leases do not.
    tokio::time::sleep(Duration::from_secs(8)).await;
    let lost = relay.lose_idle_connections().await;
    let started = Instant::now();
    cluster.set_image("web", "nginx:1").await.unwrap();
    cluster.wait_until_rolled_out("web", PODS, Duration::from_secs(120)).await.unwrap();
    let blind = started.elapsed();
    eprintln!("{lost} connections lost; the rollout took {blind:.1?}");
    assert!(blind > Duration::from_secs(20), "no watch was lost: {blind:?}");
    let exits = OPERATORS.iter().map(|name| cluster.operator(name).unwrap().exits().len());
    assert_eq!(exits.sum::<usize>(), 0, "an operator was restarted");
    assert_eq!(before, uids(&cluster).await, "a Pod was recreated");
}

/// After the restore, caches and watches have versions that the API server reaches again only much
/// later. A leader may also end because of the outage; a second replica ends for this reason only.
async fn a_restored_backup_delays_a_rollout_by_less_than_two_minutes() {
    let mut cluster = TestCluster::start_without_operators(&programs().unwrap()).await.unwrap();
    cluster.expect_standbys();
    cluster.start_operators().await.unwrap();
    cluster.start_standby("collaset-operator").await.unwrap();
    cluster.create("web", 10, "nginx:0").await.unwrap();
    cluster.wait_until_rolled_out("web", PODS, Duration::from_secs(60)).await.unwrap();
    let before = uids(&cluster).await;
    cluster.plane.back_up().unwrap();
    for turn in 1..=5 {
        cluster.set_image("web", &format!("nginx:{turn}")).await.unwrap();
        cluster.wait_until_rolled_out("web", PODS, Duration::from_secs(60)).await.unwrap();
    }

    cluster.restore().await.unwrap();
    let started = Instant::now();
    cluster.set_image("web", "nginx:restored").await.unwrap();
    cluster.wait_until_rolled_out("web", PODS, Duration::from_secs(120)).await.unwrap();
    eprintln!("the rollout took {:.1?} after the restore", started.elapsed());
    assert_eq!(before, uids(&cluster).await, "a Pod was recreated");
    let logs = ["log", "standby.log"].map(|extension| {
        std::fs::read_to_string(cluster.log("collaset-operator").with_extension(extension))
    });
    let is_noticed = |log: &String| log.contains("was restored from a backup");
    assert!(logs.iter().flatten().any(is_noticed), "no replica has ended because of the restore");
}

/// Creates a CollaSet that cannot be deserialized, as one accepted by an older, laxer CRD.
async fn create_undecodable_set(cluster: &TestCluster) {
    let crd = "customresourcedefinitions/collasets.apps.kusionstack.io";
    let lax = json!({ "spec": { "versions": [{
        "name": "v1alpha1", "served": true, "storage": true, "subresources": { "status": {} },
        "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
    }] } });
    cluster
        .plane
        .kubectl(&["patch", crd, "--type=merge", "--patch", &lax.to_string()])
        .await
        .unwrap();
    let kind = kube::core::ApiResource::erase::<podops_api::collaset::CollaSet>(&());
    let sets = Api::<kube::core::DynamicObject>::namespaced_with(
        cluster.plane.admin.clone(),
        "default",
        &kind,
    );
    let spec = json!({ "replicas": "many" });
    let bad: Value = json!({ "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet", "metadata": { "name": "bad" }, "spec": spec });
    let bad: kube::core::DynamicObject = serde_json::from_value(bad).unwrap();
    // The API server takes a moment to apply the new schema.
    let created = eventually(Duration::from_secs(30), async || {
        Ok(sets.create(&PostParams::default(), &bad).await.is_ok())
    });
    created.await.unwrap();
    cluster.install("crds").await.unwrap();
    let invalid = Patch::Merge(json!({ "spec": { "replicas": "more" } }));
    let rejected = async || Ok(sets.patch("bad", &PatchParams::default(), &invalid).await.is_err());
    eventually(Duration::from_secs(30), rejected).await.unwrap();
}

/// With kube 5's typed reflector, one undecodable object would end the whole watch.
async fn undecodable_set_blocks_no_other_and_sigterm_frees_leases() {
    let mut cluster = TestCluster::start_without_operators(&programs().unwrap()).await.unwrap();
    create_undecodable_set(&cluster).await;
    cluster.start_operators().await.unwrap();
    cluster.create("web", 10, "nginx:0").await.unwrap();
    assert_rollout_completes(&cluster, "beside a CollaSet that cannot be deserialized").await;
    cluster.wait_for_event("bad", "CollaSetInvalid").await.unwrap();

    for name in OPERATORS {
        assert_ne!(cluster.leader(name).await.unwrap(), "");
        let operator = cluster.operator(name).unwrap();
        let logged = std::fs::read_to_string(cluster.log(name)).unwrap().len();
        let exit = operator.restart_with(Signal::TERM);
        let exit = tokio::time::timeout(Duration::from_secs(15), exit).await.unwrap().unwrap();
        assert!(exit.success(), "{name} exited with {exit}");
        let log = std::fs::read_to_string(cluster.log(name)).unwrap().split_off(logged);
        assert!(!log.contains("Failed to release the Lease"), "{name} did not release its Lease");
        assert!(!log.contains("Grace period expired"), "{name} did not complete its work");
    }
    cluster.set_image("web", "nginx:1").await.unwrap();
    assert_rollout_completes(&cluster, "after SIGTERM").await;
    cluster.assert_no_forbidden_requests().unwrap();
}

/// Clients that change the ResourceQuota all the time.
const QUOTA_WRITERS: usize = 8;
/// Number of Pods whose creation may conflict with them.
const CONTENDED_PODS: i32 = 50;

/// Quota admission rejects creates with a conflict while others change the ResourceQuota, and no
/// event follows when the next try would succeed.
async fn creates_that_conflict_with_a_quota_are_repeated() {
    let cluster = new_cluster().await;
    cluster.create_and_wait("web", 10, &json!({})).await.unwrap();
    let tenant = Tenant::new(&cluster, "contended").await.unwrap();
    let quotas: Api<ResourceQuota> = tenant.api();
    let hard = json!({ "count/pods": "1000" });
    let quota = json!({ "metadata": { "name": "contended" }, "spec": { "hard": hard } });
    let quota = serde_json::from_value(quota).unwrap();
    quotas.create(&PostParams::default(), &quota).await.unwrap();
    let status = json!({ "status": { "hard": hard, "used": { "count/pods": "0" } } });
    let params = PatchParams::default();
    quotas.patch_status("contended", &params, &Patch::Merge(status)).await.unwrap();
    let mut writers = JoinSet::new();
    for writer in 0..QUOTA_WRITERS {
        let quotas = quotas.clone();
        writers.spawn(async move {
            for n in 0_u64.. {
                let note =
                    json!({ "metadata": { "annotations": { "n": format!("{writer}-{n}") } } });
                drop(quotas.patch("contended", &PatchParams::default(), &Patch::Merge(note)).await);
            }
        });
    }
    // The writers load the API server, too.
    let undisturbed = Updates::measure(&cluster, "web", 10, "undisturbed", 5).await.unwrap();
    let since = cluster.audit_log_end().unwrap();
    tenant.create(&collaset("contended", CONTENDED_PODS)).await.unwrap();
    let has_conflicts = async || {
        let (requests, _) = cluster.requests(since)?;
        Ok(requests.iter().any(|request| {
            request.operator() == Some("collaset-operator")
                && [&request.verb, request.resource()] == ["create", "pods"]
                && request.code() == 409
        }))
    };
    eventually(Duration::from_secs(60), has_conflicts).await.unwrap();
    let disturbed = Updates::measure(&cluster, "web", 10, "disturbed", 5).await.unwrap();
    assert!(writers.try_join_next().is_none(), "the quota was changed all the time");
    drop(writers);
    // Sooner than all objects are reconciled again, which is after ten minutes.
    let sets: Api<CollaSet> = tenant.api();
    let has_all = async || {
        let status = sets.get("contended").await?.status.unwrap_or_default();
        Ok(is_rolled_out(&status, CONTENDED_PODS))
    };
    eventually(Duration::from_secs(60), has_all).await.unwrap();
    disturbed.ensure_not_slowed(&undisturbed, BESIDE_ANOTHER).unwrap();
    cluster.assert_no_forbidden_requests().unwrap();
}

/// Delays the writes of collaset-operator to Pods: the API server waits for a webhook that never
/// answers.
async fn delay_pod_writes(cluster: &TestCluster, webhook: &TcpListener) {
    let operator = "system:serviceaccount:podops-system:collaset-operator";
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": "silent" },
        "webhooks": [{
            "name": "silent.example.com", "sideEffects": "None", "timeoutSeconds": 3,
            "failurePolicy": "Ignore", "admissionReviewVersions": ["v1"],
            "clientConfig": { "url": format!("https://{}/", webhook.local_addr().unwrap()) },
            "matchConditions": [{
                "name": "operator", "expression": format!("request.userInfo.username == '{operator}'"),
            }],
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"],
                "resources": ["pods"],
            }],
        }],
    });
    cluster.plane.create(&configuration).await.unwrap();
    // The API server loads it after a moment.
    let pods: Api<Pod> =
        Api::namespaced(cluster.plane.client_as(operator).await.unwrap(), "default");
    let name = cluster.pods_of("web").await.unwrap()[0].name_any();
    let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
    let note = json!({ "metadata": { "annotations": { "probe": "1" } } });
    let is_called = async || {
        pods.patch(&name, &dry_run, &Patch::Merge(&note)).await?;
        Ok(timeout(Duration::from_millis(100), webhook.accept()).await.is_ok())
    };
    eventually(Duration::from_secs(30), is_called).await.unwrap();
}

/// The operators watch Pods under control only: a write to a Pod that has just left their watch
/// yields no event, and on a quiet cluster, no other Pod does either.
async fn a_write_without_event_stops_no_collaset() {
    let cluster = new_cluster().await;
    cluster.create_and_wait("web", 1, &json!({})).await.unwrap();
    let name = cluster.pods_of("web").await.unwrap()[0].name_any();
    let webhook = TcpListener::bind("127.0.0.1:0").await.unwrap();
    delay_pod_writes(&cluster, &webhook).await;
    cluster.set_image("web", "nginx:1.1").await.unwrap();
    let _held = timeout(Duration::from_secs(10), webhook.accept()).await.unwrap().unwrap();
    let labels = json!({ "labels": { (well_known::CONTROL): null } });
    cluster.patch_pod_metadata(&name, labels).await.unwrap();
    let operating = LabelKind::Operating.key("collaset");
    let is_written = async || {
        let pod = cluster.pods().get(&name).await?;
        assert!(!pod.labels().contains_key(well_known::CONTROL), "it has left the watch");
        Ok(pod.labels().contains_key(&operating))
    };
    eventually(Duration::from_secs(20), is_written).await.unwrap();
    let silent = ["delete", "validatingwebhookconfiguration", "silent"];
    cluster.plane.kubectl(&silent).await.unwrap();
    cluster.patch("web", json!({ "replicas": 2 })).await.unwrap();
    let is_scaled = async || {
        let all = ListParams::default().labels("app=web");
        Ok(cluster.pods().list(&all).await?.items.len() == 2)
    };
    eventually(Duration::from_secs(15), is_scaled).await.unwrap();
    cluster.assert_no_forbidden_requests().unwrap();
}
