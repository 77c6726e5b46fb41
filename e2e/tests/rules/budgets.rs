//! PodTransitionRules on a real API server: budgets, overrides, and an operator that is down.

use std::{cell::Cell, time::Duration};

use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::Pod};
use kube::{
    ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use podops_api::{
    collaset::CollaSetStatus, condition, lifecycle, transition_rule::PodTransitionRuleStatus,
    well_known,
};
use podops_bench::soak;
use podops_client::shell::clock;
use podops_test_cluster::{
    availability::{AvailabilityMonitor, TEAM},
    cluster::{TIMEOUT, TestCluster, app, eventually, image, programs},
    http,
    scenarios::Scenario,
    suite::{Lane, Suite, new_cluster},
};
use serde_json::{Value, json};

fn gate() -> String {
    format!("{}/{}", well_known::PRE_CHECK_GATE, well_known::TRANSITION_RULE)
}

fn budget(max_unavailable: &Value) -> Value {
    json!([{ "name": "budget", "availablePolicy": { "maxUnavailableValue": max_unavailable } }])
}

/// Waits until the API server adds gates to new Pods of an app. Until it has loaded the admission
/// policies and the rule, the operator adds them, with one write for each Pod.
async fn until_gated(cluster: &TestCluster, name: &str) {
    let pod = json!({
        "metadata": { "name": "dry", "labels": { "app": name, well_known::CONTROL: "true" } },
        "spec": { "containers": [{ "name": "web", "image": "nginx:1" }] },
    });
    let pod = serde_json::from_value(pod).unwrap();
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    // While the API server loads the other policies, it may read the rules once more, and adds no
    // gates meanwhile. A hundred in a row take some ten seconds.
    let successes = Cell::new(0);
    let gated = async || {
        let is_gated = cluster.pods().create(&dry, &pod).await?.labels().contains_key(&gate());
        successes.set(if is_gated { successes.get() + 1 } else { 0 });
        Ok(successes.get() >= 100)
    };
    // Admission policies may observe a new rule half a minute late.
    eventually(TIMEOUT * 3, gated).await.unwrap();
}

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite
        .scenario(Lane::Beside, rollout_keeps_the_budget_with_few_writes)
        .scenario(Lane::Waiting, rules_apply_to_their_namespace_and_can_be_overridden)
        .scenario(Lane::Waiting, a_budget_holds_while_a_stateful_set_recreates_pods)
        .scenario(Lane::Waiting, pods_wait_while_transition_rule_operator_is_down)
        .scenario(Lane::Beside, random_rollouts_with_faults_exceed_no_budget)
}

async fn rollout_keeps_the_budget_with_few_writes() {
    let cluster = new_cluster().await;
    cluster.create_rule("web", app("web"), budget(&json!("10%"))).await.unwrap();
    until_gated(&cluster, "web").await;
    let web = Scenario { cluster: &cluster, set: "web", pods: 100 };
    let created = web.create().await.unwrap();
    for pod in cluster.pods_of("web").await.unwrap() {
        assert!(
            pod.labels().contains_key(&gate()),
            "Pod {} was created without its gate",
            pod.name_any()
        );
    }
    let each = created.requests_per_pod();
    assert!(
        each <= 3.6,
        "{each} requests per Pod, although gates are added at creation:\n{}",
        created.requests_by_kind()
    );
    let monitor = AvailabilityMonitor::start(&cluster).await.unwrap();
    let updated = web.update_in_place("nginx:2").await.unwrap();
    let max_unavailable = monitor.max_unavailable("");
    eprintln!(
        "{:.2} requests per Pod to create; {:.2} Pod writes and {:.2} requests to update; at most \
         {max_unavailable} Pods unavailable, in {:?}",
        created.requests_per_pod(),
        updated.pod_writes_per_pod(),
        updated.requests_per_pod(),
        updated.duration,
    );
    updated.ensure_none_rejected().unwrap();
    assert!((1..=10).contains(&max_unavailable), "{max_unavailable} Pods unavailable");
    assert!(updated.pod_writes_per_pod() <= 7.2, "{}", updated.pod_writes_per_pod());
    assert!(updated.requests_per_pod() <= 8.5, "{}", updated.requests_by_kind());
    cluster
        .wait_for_rule("web", |s| s.reservations.is_empty() && s.details.is_empty())
        .await
        .unwrap();

    // When the last rule is deleted, its gates are removed, so that no operation waits for it.
    cluster.rules().delete("web", &DeleteParams::default()).await.unwrap();
    let released = async || {
        let pods = cluster.pods_of("web").await?;
        let has_no_trace = |pod: &Pod| {
            let mut annotations = pod.annotations().keys();
            !pod.labels().contains_key(&gate())
                && annotations.all(|annotation| annotation == well_known::OPERATION_HISTORY)
        };
        Ok(pods.iter().all(has_no_trace))
    };
    eventually(TIMEOUT, released).await.unwrap();
    // Control run without the rule: the monitor does observe a higher number.
    monitor.reset();
    web.update_in_place("nginx:3").await.unwrap();
    assert!(
        monitor.max_unavailable("") > 10,
        "no more Pods unavailable without the rule than with it"
    );
    cluster.assert_no_forbidden_requests().unwrap();
}

/// Kuperator's known defect 9 (docs/KUPERATOR.md#known-defects).
async fn rules_apply_to_their_namespace_and_can_be_overridden() {
    let cluster = new_cluster().await;
    cluster.create_namespace("other").await.unwrap();
    let rule = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodTransitionRule",
        "metadata": { "name": "frozen", "namespace": "other" },
        "spec": { "selector": {}, "rules": budget(&json!(0)) },
    });
    let rules: kube::Api<podops_api::transition_rule::PodTransitionRule> =
        kube::Api::namespaced(cluster.plane.admin.clone(), "other");
    let rule = serde_json::from_value(rule).unwrap();
    rules.create(&PostParams::default(), &rule).await.unwrap();
    cluster.create_and_wait("web", 3, &json!({})).await.unwrap();
    cluster.set_image("web", "nginx:2").await.unwrap();
    cluster.wait_until_rolled_out("web", 3, TIMEOUT).await.unwrap();

    let has_status = async || Ok(rules.get("frozen").await?.status.is_some());
    eventually(TIMEOUT, has_status).await.unwrap();
    let rule = rules.get("frozen").await.unwrap().status.unwrap();
    let enforced = rule.conditions.iter().find(|c| c.type_ == "Enforced").unwrap();
    let message = enforced.message.as_deref().unwrap_or_default();
    assert!(message.contains("matches the selector"), "{message}");

    // A rule in the same namespace blocks; a break-glass override unblocks one Pod, with an event.
    cluster.create_rule("frozen", app("web"), budget(&json!(0))).await.unwrap();
    cluster.set_image("web", "nginx:3").await.unwrap();
    cluster.wait_until_rejected("frozen", "budget", "maxUnavailable=0").await.unwrap();
    // Long before each Pod is annotated, which is after a minute.
    let names_the_rule = |status: &CollaSetStatus| {
        let by = "not yet permitted by transition-rule: frozen/budget";
        status.waiting.iter().any(|waiting| waiting.count > 1 && waiting.reason == by)
    };
    cluster.wait_for_status("web", Duration::from_secs(20), names_the_rule).await.unwrap();
    a_closed_budget_is_named_beside_another_rejection(&cluster).await;
    let first = cluster.pods_of("web").await.unwrap()[0].name_any();
    let until = clock::now() + jiff::SignedDuration::from_secs(600);
    let typo = json!({ "rules": ["bugdet"], "until": until }).to_string();
    let typo = json!({ "annotations": { well_known::BREAK_GLASS: typo } });
    cluster.patch_pod_metadata(&first, typo).await.unwrap();
    cluster.wait_for_event(&first, "BreakGlassInvalid").await.unwrap();
    let break_glass = json!({ "rules": ["budget"], "until": until, "reason": "fire" }).to_string();
    cluster
        .patch_pod_metadata(
            &first,
            json!({ "annotations": { well_known::BREAK_GLASS: break_glass } }),
        )
        .await
        .unwrap();
    let updated = |pod: &k8s_openapi::api::core::v1::Pod| {
        image(pod) == "nginx:3" && pod.labels().contains_key(well_known::SERVICE_AVAILABLE)
    };
    cluster.wait_for_pod(&first, updated).await.unwrap();
    cluster.wait_for_event(&first, "RuleOverridden").await.unwrap();
    let waiting = cluster.pods_of("web").await.unwrap();
    assert_eq!(
        waiting.iter().filter(|pod| updated(pod)).count(),
        1,
        "the override must not unblock other Pods"
    );
    assert_series_go_with_their_rule(&cluster).await;
    cluster.assert_no_forbidden_requests().unwrap();
}

/// A budget that permits no Pod is not hidden until the other rule permits the Pod.
async fn a_closed_budget_is_named_beside_another_rejection(cluster: &TestCluster) {
    let never = json!({ "requires": { "matchLabels": { "go": "yes" } } });
    let check = json!({ "name": "check", "labelCheck": never });
    let mut rules = budget(&json!(0));
    rules.as_array_mut().unwrap().insert(0, check);
    let params = PatchParams::default();
    let both = Patch::Merge(json!({ "spec": { "rules": rules } }));
    cluster.rules().patch("frozen", &params, &both).await.unwrap();
    let names_both = |status: &PodTransitionRuleStatus| {
        status.details.iter().any(|detail| {
            let by = |rule: &str| detail.reject_info.iter().any(|info| info.rule_name == rule);
            by("check") && by("budget")
        })
    };
    cluster.wait_for_rule("frozen", names_both).await.unwrap();
    let one = Patch::Merge(json!({ "spec": { "rules": budget(&json!(0)) } }));
    cluster.rules().patch("frozen", &params, &one).await.unwrap();
}

/// The metrics of a rule are removed with it, and those of a namespace with its last rule.
async fn assert_series_go_with_their_rule(cluster: &TestCluster) {
    let series = [
        r#"podops_rule_decisions_total{kind="availablePolicy",namespace="default",rule="frozen/budget""#,
        r#"podops_rule_budget_pods{limit="max_unavailable",namespace="default",rule="frozen/budget"}"#,
        r#"podops_rule_overrides_total{namespace="default"}"#,
    ];
    let address = cluster.metrics_address("transition-rule-operator").unwrap();
    let page = http::get(address, "/metrics").unwrap();
    assert!(series.iter().all(|series| page.contains(series)), "{page}");
    cluster.rules().delete("frozen", &DeleteParams::default()).await.unwrap();
    let are_gone = async || {
        let page = http::get(address, "/metrics")?;
        Ok(series.iter().all(|series| !page.contains(series)))
    };
    eventually(TIMEOUT, are_gone).await.unwrap();
    let page = http::get(address, "/metrics").unwrap();
    assert!(page.contains(r#"namespace="other""#), "those of other namespaces stay: {page}");
}

/// A StatefulSet recreates a Pod only after the old one is gone; until then its Pods are one fewer.
async fn a_budget_holds_while_a_stateful_set_recreates_pods() {
    let cluster = new_cluster().await;
    cluster.create_rule("native", app("native"), budget(&json!(1))).await.unwrap();
    until_gated(&cluster, "native").await;
    let set = json!({
        "metadata": { "name": "native" },
        "spec": {
            "replicas": 3, "selector": app("native"), "serviceName": "native",
            "template": {
                "metadata": { "labels": { "app": "native", TEAM: "native", well_known::CONTROL: "true" } },
                "spec": {
                    "terminationGracePeriodSeconds": 0,
                    "containers": [{ "name": "web", "image": "nginx:1" }],
                },
            },
        },
    });
    let set = serde_json::from_value(set).unwrap();
    cluster.api::<StatefulSet>().create(&PostParams::default(), &set).await.unwrap();
    // UIDs of the available Pods.
    let available = async || {
        let pods = cluster.pods_of("native").await?.into_iter();
        let available = pods.filter(|p| p.labels().contains_key(well_known::SERVICE_AVAILABLE));
        anyhow::Ok(available.filter_map(|pod| pod.uid()).collect::<Vec<String>>())
    };
    eventually(TIMEOUT, async || Ok(available().await?.len() == 3)).await.unwrap();
    let before = available().await.unwrap();
    let monitor = AvailabilityMonitor::start(&cluster).await.unwrap();
    for pod in ["native-0", "native-1", "native-2"] {
        let delete = json!({ "labels": { well_known::TO_DELETE: "true" } });
        cluster.patch_pod_metadata(pod, delete).await.unwrap();
    }
    let recreated = async || {
        let now = available().await?;
        Ok(now.len() == 3 && now.iter().all(|uid| !before.contains(uid)))
    };
    eventually(TIMEOUT * 2, recreated).await.unwrap();
    assert_eq!(monitor.min_available("native"), 2);
    cluster.assert_no_forbidden_requests().unwrap();
}

async fn pods_wait_while_transition_rule_operator_is_down() {
    let mut cluster = TestCluster::start_without_operators(&programs().unwrap()).await.unwrap();
    for name in ["collaset-operator", "lifecycle-operator"] {
        cluster.start_operator(name).await.unwrap();
    }
    let rule = json!({ "metadata": { "name": "web" }, "spec": { "selector": app("web"), "rules": budget(&json!(3)) } });
    let rule = serde_json::from_value(rule).unwrap();
    cluster.rules().create(&PostParams::default(), &rule).await.unwrap();
    until_gated(&cluster, "web").await;
    cluster.create_and_wait("web", 3, &json!({})).await.unwrap();
    cluster.set_image("web", "nginx:2").await.unwrap();
    let waits = async || {
        let pods = cluster.pods_of("web").await?;
        let key = lifecycle::LabelKind::PreCheck.key(lifecycle::COLLASET);
        Ok(pods.len() == 3 && pods.iter().all(|pod| pod.labels().contains_key(&key)))
    };
    eventually(TIMEOUT, waits).await.unwrap();
    // The other operators have nothing more to do for it once they have updated another set.
    cluster.create_and_wait("other", 1, &json!({})).await.unwrap();
    cluster.set_image("other", "nginx:2").await.unwrap();
    cluster.wait_until_rolled_out("other", 1, TIMEOUT).await.unwrap();
    assert!(waits().await.unwrap(), "gated Pods must wait for transition-rule-operator");
    cluster.start_operator("transition-rule-operator").await.unwrap();
    cluster.wait_until_rolled_out("web", 3, TIMEOUT).await.unwrap();
    let rule = cluster.rules().get("web").await.unwrap();
    assert!(condition::is_true(&rule.status.unwrap().conditions, "Enforced"));
    cluster.assert_no_forbidden_requests().unwrap();
}

async fn random_rollouts_with_faults_exceed_no_budget() {
    let cluster = new_cluster().await;
    let report = soak::run(&cluster, 2, 1).await.unwrap();
    eprintln!("{report}");
    assert!(report.fully_used > 0, "no budget was fully used, so the test shows nothing");
    assert_eq!(report.exceeded, 0);
}
