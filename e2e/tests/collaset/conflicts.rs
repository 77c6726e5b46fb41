//! Nodes that report every change without delay: no write of an operator conflicts with theirs.

use kube::api::DeleteParams;
use podops_test_cluster::{
    nodes::Delays,
    scenarios::Scenario,
    suite::{Lane, Suite, new_cluster},
};
use serde_json::json;

/// Number of Pods of the CollaSet.
const PODS: usize = 100;
/// Number of writes that may be rejected while Pods are created or deleted. The first write of a
/// Pod and its delete require the observed resourceVersion, because they depend on more than the
/// labels; a node that writes first makes the operator decide again.
const REJECTED_MAX: usize = PODS / 2;

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite.scenario(Lane::Beside, no_write_conflicts_with_prompt_kubelets)
}

async fn no_write_conflicts_with_prompt_kubelets() {
    let cluster = new_cluster().await;
    cluster.nodes().unwrap().set_delays(Delays::NONE);
    let web = Scenario { cluster: &cluster, set: "web", pods: PODS };
    let created = web.create().await.unwrap();

    let updated = web.update_in_place("nginx:1").await.unwrap();
    updated.ensure_none_rejected().unwrap();
    assert!(updated.pod_writes_per_pod() <= 6.1, "{} writes per Pod", updated.pod_writes_per_pod());

    let tenth = json!([{ "name": "tenth", "availablePolicy": { "maxUnavailableValue": "10%" } }]);
    cluster.create_rule("web", json!({ "matchLabels": { "app": "web" } }), tenth).await.unwrap();
    let updated = web.update_in_place("nginx:2").await.unwrap();
    updated.ensure_none_rejected().unwrap();
    assert!(updated.pod_writes_per_pod() <= 7.2, "{} writes per Pod", updated.pod_writes_per_pod());
    cluster.rules().delete("web", &DeleteParams::default()).await.unwrap();

    let recreated = web.recreate("nginx:3").await.unwrap();
    let replaced = web.replace("nginx:4").await.unwrap();
    let scaled_in = web.scale_in(PODS / 2).await.unwrap();
    for (change, cost) in [
        ("created", created),
        ("recreated", recreated),
        ("replaced", replaced),
        ("scaled in", scaled_in),
    ] {
        cost.ensure_few_rejected(change, REJECTED_MAX).unwrap();
    }
    cluster.assert_no_forbidden_requests().unwrap();
}
