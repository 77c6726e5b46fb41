//! A tenant with rights in one namespace, and with connections to the operators, slows no other
//! namespace and ends no operator.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod connections;
mod objects;
mod rights;
mod rules;
mod sets;
use podops_test_cluster::{
    balancers::free_address,
    cluster::{OPERATORS, TIMEOUT, TestCluster, app, programs},
    suite::{Lane, Suite},
    tenant::Tenant,
    updates::{ALONE, Updates},
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinSet};

use self::{
    connections::{
        TO_PROBES, TO_WEBHOOKS, TO_XDS, assert_envoys_are_served, assert_probe_is_answered, flood,
        hold_connections,
    },
    objects::{create_objects_that_cannot_be_decoded, create_pods_with_many_labels},
    rights::{
        OWN_BACKEND, a_backend_of_others_is_not_used, a_leaked_url_permits_nothing,
        approvals_are_reserved_to_the_operators,
    },
    rules::{
        create_costly_rules, create_large_pods, create_rules, create_waiting_pods,
        rules_report_their_errors,
    },
    sets::{
        create_flickering_set, create_rejected_set, flicker, flickering_set_settles,
        too_many_replicas_are_rejected,
    },
};

/// Namespace of the tenant.
const TENANT: &str = "tenant";
const PODS: i32 = 10;
/// Number of Pods of the other namespace that its rule permits out of service. Small, because a
/// rule reserves once in a second: with a large number, a reservation that comes a moment late
/// costs a large part of the time.
const OUT_MAX: i32 = 3;

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite.scenario(Lane::Alone, a_tenant_affects_only_its_namespace)
}

async fn a_tenant_affects_only_its_namespace() {
    let programs = programs().unwrap();
    let mut cluster = TestCluster::start_empty(&programs).await.unwrap();
    let xds = free_address().unwrap();
    // The flags permit one backend to the tenant, and all to the other namespace.
    let haproxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let instance = format!("tcp://{}", haproxy.local_addr().unwrap());
    let flags = [
        format!("--xds-address={xds}"),
        "--xds-insecure".to_owned(),
        format!("--haproxy-backends={TENANT}/{instance}/{OWN_BACKEND}"),
    ];
    cluster.add_args("consist-operator", &flags);
    cluster.require_client_certificates();
    let cluster = cluster.with_graceful_deletion().await.unwrap();
    // All operators take part in the rollouts of the other namespace.
    cluster.create_managed_service("web", json!({ "app": "web" }), &json!({})).await.unwrap();
    cluster.create_rule("web", app("web"), at_most(OUT_MAX)).await.unwrap();
    cluster.create_and_wait("web", PODS, &json!({})).await.unwrap();
    let undisturbed = Updates::measure(&cluster, "web", PODS, "undisturbed", 5).await.unwrap();
    let exits = |operator: &str| cluster.operator(operator).unwrap().exits().len();
    let tenant = Tenant::new(&cluster, TENANT).await.unwrap();
    too_many_replicas_are_rejected(&tenant).await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    create_rules(&tenant, silent.local_addr().unwrap()).await;
    create_waiting_pods(&tenant).await;
    assert_eq!(OPERATORS.map(exits), [0; OPERATORS.len()], "exits of {OPERATORS:?}");
    a_leaked_url_permits_nothing(&cluster, &tenant).await;
    // lifecycle-operator was suspended, and may have lost its Lease.
    cluster.kill_and_restart("lifecycle-operator").await.unwrap();
    let known = OPERATORS.map(exits);
    create_costly_rules(&tenant).await;
    create_rejected_set(&tenant).await;
    create_flickering_set(&tenant).await;
    create_large_pods(&tenant).await;
    create_objects_that_cannot_be_decoded(&tenant).await;
    a_backend_of_others_is_not_used(&cluster, &tenant, &haproxy, &instance).await;
    create_pods_with_many_labels(&tenant).await;
    assert_eq!(OPERATORS.map(exits), known, "exits of {OPERATORS:?}");
    // Also when the operators list them.
    for operator in OPERATORS {
        cluster.kill_and_restart(operator).await.unwrap();
    }
    cluster.set_image("web", "nginx:restarted").await.unwrap();
    cluster.wait_until_rolled_out("web", PODS, TIMEOUT).await.unwrap();
    let known = OPERATORS.map(exits);
    approvals_are_reserved_to_the_operators(&cluster, &tenant).await;
    let mut ports = vec![(xds, TO_XDS)];
    for operator in OPERATORS {
        ports.extend(cluster.admission_address(operator).map(|address| (address, TO_WEBHOOKS)));
        ports.push((cluster.metrics_address(operator).unwrap(), TO_PROBES));
    }
    let refused = hold_connections(xds).await;
    assert_envoys_are_served(xds, &refused).await;
    let mut flood: JoinSet<()> =
        ports.into_iter().map(|(address, connections)| flood(address, connections)).collect();
    flood.spawn(flicker(tenant.api(), tenant.api()));
    let disturbed = Updates::measure(&cluster, "web", PODS, "disturbed", 5).await.unwrap();
    a_pod_is_deleted_gracefully(&cluster).await;
    rules_report_their_errors(&tenant).await;
    for operator in OPERATORS {
        assert_probe_is_answered(cluster.metrics_address(operator).unwrap()).await;
        let peak = cluster.operator(operator).unwrap().peak_mebibytes();
        eprintln!("{operator}: peak {peak:.0} MiB");
    }
    // One that lost its Lease would have ended, too.
    assert_eq!(OPERATORS.map(exits), known, "exits of {OPERATORS:?}");
    assert!(flood.try_join_next().is_none(), "the connections have lasted");
    drop(flood);
    flickering_set_settles(&tenant).await;
    disturbed.ensure_not_slowed(&undisturbed, ALONE).unwrap();
    cluster.assert_no_forbidden_requests().unwrap();
}

/// A rule with this maxUnavailable.
fn at_most(pods: i32) -> Value {
    json!([{ "name": "most", "availablePolicy": { "maxUnavailableValue": pods } }])
}

/// The admission webhook reviews a delete although the tenant holds connections to it.
async fn a_pod_is_deleted_gracefully(cluster: &TestCluster) {
    cluster.recreate_gracefully("web", PODS as usize, TIMEOUT).await.unwrap();
    cluster.wait_until_rolled_out("web", PODS, TIMEOUT).await.unwrap();
}
