//! Each kind of rule on a real API server: it blocks an operation, reports why, and permits it
//! after a change; also dry runs, skipped rules and the stage PostCheck.

use std::collections::BTreeMap;

use k8s_openapi::api::{core::v1::Pod, policy::v1::PodDisruptionBudget};
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
};
use podops_api::{
    lifecycle::{COLLASET, LabelKind},
    well_known,
};
use podops_test_cluster::{
    cluster::{TIMEOUT, TestCluster, app, eventually, image},
    suite::{Group, Lane, Suite, all_requests_are_permitted, new_cluster},
};
use serde_json::{Value, json};

const ZONE: &str = "topology.kubernetes.io/zone";

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite
        .group(
            Group::new("kinds_of_rules", Lane::Beside, new_cluster)
                .beside(labels_block_until_changed)
                .beside(a_schedule_blocks_until_changed)
                .beside(an_expression_blocks_until_changed)
                .beside(a_function_of_the_number_blocks_until_changed)
                .beside(a_disruption_budget_is_respected)
                .beside(topology_spread_limits_unavailable_pods_per_zone)
                .next_wave()
                .beside(a_dry_run_rule_is_reported_and_blocks_nothing)
                .beside(a_pod_with_a_skipped_rule_is_not_blocked)
                .beside(post_check_blocks_the_return_to_service)
                .end(all_requests_are_permitted),
        )
        .scenario(Lane::Beside, gates_of_a_deleted_operator_can_be_removed_with_kubectl)
}

async fn labels_block_until_changed(cluster: &TestCluster) {
    let labels = |requires: Value| json!({ "labelCheck": { "requires": requires } });
    let blocking = labels(json!({ "matchLabels": { "ready-to-go": "yes" } }));
    let reason = "labels do not match labelCheck.requires";
    blocks_until_changed(cluster, "labels", blocking, reason, labels(json!({}))).await;
}

async fn a_schedule_blocks_until_changed(cluster: &TestCluster) {
    let frozen = json!([{ "from": "2020-01-01T00:00:00Z", "to": "2100-01-01T00:00:00Z", "reason": "frozen here" }]);
    let blocking = json!({ "schedule": { "freezes": frozen } });
    let always = json!([{ "from": "00:00", "to": "24:00" }]);
    let permitting = json!({ "schedule": { "timeZone": "Europe/Berlin", "windows": always } });
    blocks_until_changed(cluster, "schedule", blocking, "frozen here", permitting).await;
}

async fn an_expression_blocks_until_changed(cluster: &TestCluster) {
    let image = "pod.spec.containers.all(c, c.image == 'nginx:9')";
    let blocking = json!({ "cel": { "expression": image, "message": "not that image" } });
    let satisfied = "owner.kind == 'CollaSet' && rule.total >= 2 && operation.type == 'update'";
    let permitting = json!({ "cel": { "expression": satisfied } });
    blocks_until_changed(cluster, "cel", blocking, "not that image", permitting).await;
}

async fn a_function_of_the_number_blocks_until_changed(cluster: &TestCluster) {
    let steep = |coeff: &str| {
        let function = json!({ "expFunc": { "coeff": coeff, "pow": "0.5" } });
        json!({ "availablePolicy": { "maxUnavailablePolicy": function } })
    };
    blocks_until_changed(cluster, "function", steep("0"), "maxUnavailable=0", steep("1")).await;
}

/// Commands of `docs/concepts/rules-and-budgets.md#uninstall`, for an operator already deleted.
async fn gates_of_a_deleted_operator_can_be_removed_with_kubectl() {
    let mut cluster = new_cluster().await;
    let never = json!({ "labelCheck": { "requires": { "matchLabels": { "never": "yes" } } } });
    cluster.create_rule("web", app("web"), rules(never)).await.unwrap();
    cluster.create_and_wait("web", 2, &json!({})).await.unwrap();
    cluster.set_image("web", "nginx:2").await.unwrap();
    cluster.wait_until_rejected("web", "one", "labels do not match").await.unwrap();
    cluster.stop_operator("transition-rule-operator").await.unwrap();
    cluster.plane.kubectl(&["delete", "podtransitionrules", "--all"]).await.unwrap();
    for prefix in [well_known::PRE_CHECK_GATE, well_known::POST_CHECK_GATE] {
        let gate = format!("{prefix}/{}", well_known::TRANSITION_RULE);
        let remove = format!("{gate}-");
        cluster.plane.kubectl(&["label", "pods", "-A", "-l", &gate, &remove]).await.unwrap();
    }
    cluster.wait_until_rolled_out("web", 2, TIMEOUT).await.unwrap();
}

/// List of rules with this one, named `one`.
fn rules(mut rule: Value) -> Value {
    rule["name"] = json!("one");
    json!([rule])
}

/// Asserts that `rule` blocks the update of a CollaSet with `reason`, and that `permitting` in its
/// place permits it.
async fn blocks_until_changed(
    cluster: &TestCluster,
    set: &str,
    rule: Value,
    reason: &str,
    permitting: Value,
) {
    cluster.create_and_wait(set, 2, &json!({})).await.unwrap();
    cluster.create_rule(set, app(set), rules(rule)).await.unwrap();
    cluster.set_image(set, "nginx:2").await.unwrap();
    cluster.wait_until_rejected(set, "one", reason).await.unwrap();
    let change = Patch::Merge(json!({ "spec": { "rules": rules(permitting) } }));
    cluster.rules().patch(set, &PatchParams::default(), &change).await.unwrap();
    cluster.wait_until_rolled_out(set, 2, TIMEOUT).await.unwrap();
}

async fn a_disruption_budget_is_respected(cluster: &TestCluster) {
    cluster.create_and_wait("pdb", 2, &json!({})).await.unwrap();
    let budgets: Api<PodDisruptionBudget> = cluster.api();
    let budget = json!({
        "metadata": { "name": "pdb" }, "spec": { "minAvailable": 2, "selector": app("pdb") },
    });
    let budget = serde_json::from_value(budget).unwrap();
    budgets.create(&PostParams::default(), &budget).await.unwrap();
    cluster.create_rule("pdb", app("pdb"), rules(json!({ "disruptionBudget": {} }))).await.unwrap();
    cluster.set_image("pdb", "nginx:2").await.unwrap();
    cluster.wait_until_rejected("pdb", "one", "PodDisruptionBudget pdb").await.unwrap();
    let less = Patch::Merge(json!({ "spec": { "minAvailable": 1 } }));
    budgets.patch("pdb", &PatchParams::default(), &less).await.unwrap();
    cluster.wait_until_rolled_out("pdb", 2, TIMEOUT).await.unwrap();
}

/// Adds a protection finalizer to the Pods of a CollaSet, or removes it.
async fn protect(cluster: &TestCluster, set: &str, on: bool) {
    let finalizers =
        if on { json!([format!("{}/x", well_known::PROTECTION_FINALIZER)]) } else { json!(null) };
    for pod in cluster.pods_of(set).await.unwrap() {
        cluster
            .patch_pod_metadata(&pod.name_any(), json!({ "finalizers": finalizers }))
            .await
            .unwrap();
    }
}

async fn topology_spread_limits_unavailable_pods_per_zone(cluster: &TestCluster) {
    cluster.create_and_wait("zones", 6, &json!({})).await.unwrap();
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(cluster.plane.admin.clone());
    let mut unavailable: BTreeMap<String, usize> = BTreeMap::new();
    let spread = json!({ "topologySpread": { "topologyKey": ZONE, "maxUnavailable": 1 } });
    cluster.create_rule("zones", app("zones"), rules(spread)).await.unwrap();
    protect(cluster, "zones", true).await;
    cluster.set_image("zones", "nginx:2").await.unwrap();
    let unavailable_in = format!("1 Pods unavailable in {ZONE}=");
    cluster
        .wait_for_rule("zones", |status| {
            let mut infos = status.details.iter().flat_map(|detail| &detail.reject_info);
            infos.any(|info| {
                info.rule_name == "one"
                    && info.reason.starts_with(&unavailable_in)
                    && info.reason.ends_with(", maxUnavailable=1")
            })
        })
        .await
        .unwrap();
    let preparing = LabelKind::Preparing.key(COLLASET);
    let some = async || {
        Ok(cluster.pods_of("zones").await?.iter().any(|pod| pod.labels().contains_key(&preparing)))
    };
    eventually(TIMEOUT, some).await.unwrap();
    for pod in cluster.pods_of("zones").await.unwrap() {
        let node = pod.spec.as_ref().and_then(|s| s.node_name.clone()).unwrap();
        let zone = nodes.get(&node).await.unwrap().labels()[ZONE].clone();
        *unavailable.entry(zone).or_default() += usize::from(pod.labels().contains_key(&preparing));
    }
    assert!(unavailable.values().all(|count| *count <= 1), "{unavailable:?}");
    protect(cluster, "zones", false).await;
    cluster.wait_until_rolled_out("zones", 6, TIMEOUT).await.unwrap();
}

async fn a_dry_run_rule_is_reported_and_blocks_nothing(cluster: &TestCluster) {
    cluster.create_and_wait("dry", 2, &json!({})).await.unwrap();
    let rule = json!({ "mode": "DryRun", "availablePolicy": { "maxUnavailableValue": 0 } });
    cluster.create_rule("dry", app("dry"), rules(rule)).await.unwrap();
    protect(cluster, "dry", true).await;
    cluster.set_image("dry", "nginx:2").await.unwrap();
    cluster
        .wait_for_rule("dry", |status| status.rule_states.iter().any(|s| s.rejecting == Some(2)))
        .await
        .unwrap();
    protect(cluster, "dry", false).await;
    cluster.wait_until_rolled_out("dry", 2, TIMEOUT).await.unwrap();
}

async fn a_pod_with_a_skipped_rule_is_not_blocked(cluster: &TestCluster) {
    cluster.create_and_wait("skip", 2, &json!({})).await.unwrap();
    let never = json!({ "labelCheck": { "requires": { "matchLabels": { "never": "yes" } } } });
    cluster.create_rule("skip", app("skip"), rules(never)).await.unwrap();
    let skipping = cluster.pods_of("skip").await.unwrap()[0].name_any();
    let skipped = json!({ "skipRules": ["one"] }).to_string();
    cluster
        .patch_pod_metadata(
            &skipping,
            json!({ "annotations": { well_known::SKIP_RULES: skipped } }),
        )
        .await
        .unwrap();
    cluster.set_image("skip", "nginx:2").await.unwrap();
    let updated = |pod: &Pod| {
        image(pod) == "nginx:2" && pod.labels().contains_key(well_known::SERVICE_AVAILABLE)
    };
    cluster.wait_for_pod(&skipping, updated).await.unwrap();
    let pods = cluster.pods_of("skip").await.unwrap();
    assert_eq!(
        pods.iter().filter(|pod| updated(pod)).count(),
        1,
        "the rule must block the other Pod"
    );
}

async fn post_check_blocks_the_return_to_service(cluster: &TestCluster) {
    cluster.create_and_wait("after", 2, &json!({})).await.unwrap();
    let warm = json!({ "requires": { "matchLabels": { "cache": "warm" } } });
    let rule = json!({ "stage": "PostCheck", "labelCheck": warm });
    cluster.create_rule("after", app("after"), rules(rule)).await.unwrap();
    cluster.set_image("after", "nginx:2").await.unwrap();
    cluster.wait_until_rejected("after", "one", "labels do not match").await.unwrap();
    for pod in cluster.pods_of("after").await.unwrap() {
        let waits = LabelKind::PostCheck.key(COLLASET);
        cluster
            .wait_for_pod(&pod.name_any(), |pod| pod.labels().contains_key(&waits))
            .await
            .unwrap();
        let pod = cluster.pods().get(&pod.name_any()).await.unwrap();
        assert!(
            !pod.labels().contains_key(well_known::SERVICE_AVAILABLE),
            "available before PostCheck passed"
        );
        cluster
            .patch_pod_metadata(&pod.name_any(), json!({ "labels": { "cache": "warm" } }))
            .await
            .unwrap();
    }
    cluster.wait_until_rolled_out("after", 2, TIMEOUT).await.unwrap();
}
