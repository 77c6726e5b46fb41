//! `podops-e2e demo` on an existing cluster.

use podops_test_cluster::{
    cluster::{TestCluster, programs},
    suite::{Lane, Suite},
};
use tokio::process::Command;

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite
        .scenario(Lane::Beside, the_demo_runs_on_an_existing_cluster_and_cleans_up)
        .scenario(Lane::Waiting, the_demo_of_a_package_runs)
}

async fn the_demo_runs_on_an_existing_cluster_and_cleans_up() {
    let programs = programs().unwrap();
    let cluster = TestCluster::start_empty(&programs).await.unwrap();
    let demo = Command::new(programs.join("podops-e2e"))
        .args(["demo", "--context", "podops"])
        .env("KUBECONFIG", cluster.plane.dir.path().join("admin.kubeconfig"))
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let output = String::from_utf8_lossy(&demo.stderr);
    assert!(demo.status.success(), "{output}");
    for step in ["created: 20 Pods", "updated in place: 20", "rolled back: 20", "scaled in: 8"] {
        assert!(output.contains(step), "no {step:?} in {output}");
    }
    let remaining =
        cluster.plane.kubectl(&["get", "collasets,pods", "-A", "-o", "name"]).await.unwrap();
    assert_eq!(remaining, "");
    cluster.plane.kubectl(&["wait", "--for=delete", "namespace/podops-demo"]).await.unwrap();
}

/// A package is deployed, reconfigured, upgraded and removed; its Pods keep their claims.
async fn the_demo_of_a_package_runs() {
    let programs = programs().unwrap();
    let mut demo = Command::new(programs.join("podops-e2e"));
    let demo = demo.args(["demo", "--package"]).kill_on_drop(true).output().await.unwrap();
    let output = String::from_utf8_lossy(&demo.stderr);
    assert!(demo.status.success(), "{output}");
    let steps = ["deployed", "reconfigured", "backed up", "upgraded", "removed"];
    for step in steps.map(|step| format!("==> {step} after ")) {
        assert!(output.contains(&step), "no {step:?} in {output}");
    }
    assert!(output.contains("the Pods have kept their 3 claims"), "{output}");
    assert!(output.contains("spec.template.spec.containers[store].env[CACHE].value"), "{output}");
    assert!(output.contains("scaled to 0 before it is deleted"), "{output}");
}
