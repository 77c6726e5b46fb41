//! Rules over Pods' operations, on a real API server.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use kube::{Api, ResourceExt as _, api::PostParams};
use podops_api::{
    marks,
    transition_rule::{PodTransitionRule, PodTransitionRuleStatus},
};
use podops_e2e::{
    lab::{Lab, SOON, eventually, programs},
    outages::Outages,
    scenarios::Subject,
};
use serde_json::{Value, json};

fn rules(lab: &Lab) -> Api<PodTransitionRule> {
    lab.all_of()
}

/// Makes a rule about the Pods that a selector selects, and waits until it is enforced.
async fn make_rule(lab: &Lab, name: &str, selector: Value, kinds: Value) {
    let rule = json!({
        "metadata": { "name": name }, "spec": { "selector": selector, "rules": kinds },
    });
    let rule = serde_json::from_value(rule).unwrap();
    rules(lab).create(&PostParams::default(), &rule).await.unwrap();
    until_rule(lab, name, |_| true).await;
}

/// Waits until a rule's status is of its current spec and `holds`.
async fn until_rule(lab: &Lab, name: &str, holds: impl Fn(&PodTransitionRuleStatus) -> bool) {
    let waited = eventually(SOON, async || {
        let rule = rules(lab).get(name).await?;
        Ok(rule.status.is_some_and(|status| {
            Some(status.observed_generation) == rule.metadata.generation && holds(&status)
        }))
    });
    if waited.await.is_err() {
        panic!("{name}: {:#?}", rules(lab).get(name).await.unwrap().status);
    }
}

fn app(name: &str) -> Value {
    json!({ "matchLabels": { "app": name } })
}

fn gate() -> String {
    format!("{}/{}", marks::PRE_CHECK_GATE, marks::TRANSITION_RULE)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_is_kept_for_few_writes() {
    let lab = Lab::start(&programs().unwrap()).await.unwrap();
    let budget = json!([{ "name": "budget", "availablePolicy": { "maxUnavailableValue": "10%" } }]);
    make_rule(&lab, "web", app("web"), budget).await;
    let web = Subject { lab: &lab, set: "web", pods: 100 };
    let created = web.create().await.unwrap();
    eprintln!("create: {:.2} requests per Pod", created.requests_per_pod());
    for pod in lab.pods_of("web").await.unwrap() {
        assert!(pod.labels().contains_key(&gate()), "{} came without its gate", pod.name_any());
    }
    assert!(created.requests_per_pod() <= 3.6, "gates come for nothing");
    let outages = Outages::follow(&lab).await.unwrap();
    let updated = web.update_in_place("nginx:2").await.unwrap();
    eprintln!(
        "update: {:.2} Pod writes, {:.2} requests per Pod, {} out at most, in {:?}",
        updated.pod_writes_per_pod(),
        updated.requests_per_pod(),
        outages.worst(),
        updated.took,
    );
    assert!(updated.rejected().is_empty(), "refused: {:#?}", updated.rejected());
    assert!((1..=10).contains(&outages.worst()), "{} were out", outages.worst());
    assert!(updated.pod_writes_per_pod() <= 7.2, "{}", updated.pod_writes_per_pod());
    assert!(updated.requests_per_pod() <= 8.5, "{}", updated.requests_per_pod());
    until_rule(&lab, "web", |s| s.reservations.is_empty() && s.details.is_empty()).await;
    lab.nothing_forbidden().unwrap();
}
