//! `kubectl podops uninstall` on a real API server: Pods run on or are deleted gracefully, and
//! nothing of Podops is left, in whichever order a user removes it.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Stdio,
    time::Duration,
};

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{PersistentVolumeClaim, Pod, Service},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams},
};
use kubectl_podops::{
    installed,
    uninstall::{Next, Workloads, concerns, next},
};
use podops_api::well_known;
use podops_test_cluster::{
    cluster::{OPERATORS, TIMEOUT, TestCluster, app, eventually, programs},
    suite::{Lane, Suite},
};
use serde_json::json;
use tokio::process::{Child, Command};

/// Namespace of the operators.
const OPERATOR_NAMESPACE: &str = "podops-system";
/// Time within which an unexpected deletion would happen, by the garbage collector too.
const UNCHANGED_FOR: Duration = Duration::from_secs(5);
/// Times in milliseconds after which the command is killed.
const INTERRUPTED_AFTER: [u64; 4] = [200, 500, 1_000, 2_000];

/// Starts the command, which deletes CollaSets without a question.
fn uninstall(cluster: &TestCluster, workloads: &str) -> Child {
    uninstall_with(cluster, &[workloads, "--yes"])
}

/// Starts the command with these arguments after `--workloads`, and no terminal.
fn uninstall_with(cluster: &TestCluster, arguments: &[&str]) -> Child {
    let mut command = Command::new(programs().unwrap().join("kubectl-podops"));
    command
        .args(["uninstall", "--timeout", "60", "--workloads"])
        .args(arguments)
        .stdin(Stdio::null())
        .env("KUBECONFIG", cluster.plane.admin_kubeconfig())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command.spawn().unwrap()
}

/// Output of the command, once it has succeeded.
async fn succeed(command: Child) -> String {
    let output = command.wait_with_output().await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{text}{error}");
    text
}

/// Stops the operators as soon as their Deployments are deleted, as the kubelets do.
async fn stop_with_deployments(cluster: &mut TestCluster) {
    let deployments: Api<Deployment> =
        Api::namespaced(cluster.plane.admin.clone(), OPERATOR_NAMESPACE);
    let deleted = async || Ok(deployments.list(&ListParams::default()).await?.items.is_empty());
    eventually(TIMEOUT, deleted).await.unwrap();
    for operator in OPERATORS {
        cluster.stop_operator(operator).await.unwrap();
    }
}

/// A CollaSet with claims, a Service, a rule, a decoration and a job; one Pod is taken out of
/// service.
async fn create_workload(cluster: &TestCluster) -> BTreeSet<String> {
    cluster.create_managed_service("web", json!({ "app": "web" }), &json!({})).await.unwrap();
    let claim = json!({
        "metadata": { "name": "data" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    });
    cluster.create_and_wait("web", 4, &json!({ "volumeClaimTemplates": [claim] })).await.unwrap();
    let none = json!([{ "name": "half", "availablePolicy": { "maxUnavailableValue": "50%" } }]);
    cluster.create_rule("web", app("web"), none).await.unwrap();
    let objects = "
apiVersion: apps.kusionstack.io/v1alpha1
kind: PodDecoration
metadata: { name: web, namespace: default }
spec:
  selector: { matchLabels: { app: web } }
  template: { metadata: [{ patchPolicy: Overwrite, labels: { team: shop } }] }
";
    let path = cluster.plane.dir.path().join("decoration.yaml");
    std::fs::write(&path, objects).unwrap();
    cluster.plane.kubectl(&["apply", "-f", path.to_str().unwrap()]).await.unwrap();
    let decorated = async || {
        let pods = cluster.pods_of("web").await?;
        Ok(pods.iter().all(|pod| pod.labels().contains_key("team")))
    };
    eventually(TIMEOUT, decorated).await.unwrap();
    cluster.wait_until_rolled_out("web", 4, TIMEOUT).await.unwrap();
    let pods = cluster.pods_of("web").await.unwrap();
    // Out of service when Podops is removed.
    let offline = "kubectl-podops offline ".to_owned() + &pods[0].name_any();
    cluster.plane.shell(&offline, &programs().unwrap()).await.unwrap();
    let is_offline = |pod: &Pod| gate(pod) == Some("False");
    cluster.wait_for_pod(&pods[0].name_any(), is_offline).await.unwrap();
    pods.iter().filter_map(ResourceExt::uid).collect()
}

/// Status of the condition of the readiness gate.
fn gate(pod: &Pod) -> Option<&str> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let mut gates = conditions.iter().filter(|c| c.type_ == well_known::SERVICE_READY);
    gates.next().map(|condition| condition.status.as_str())
}

/// Asserts that nothing of Podops is in the cluster.
async fn assert_nothing_is_left(cluster: &TestCluster) {
    let nothing = async || {
        let installation =
            installed::read(&cluster.plane.admin, OPERATOR_NAMESPACE, concerns).await?;
        Ok(next(&installation, Workloads::Keep)? == Next::Done)
    };
    eventually(TIMEOUT, nothing).await.unwrap();
    let all = ["api-resources", "--api-group=apps.kusionstack.io", "-o", "name"];
    assert_eq!(cluster.plane.kubectl(&all).await.unwrap().trim(), "");
    let gone = ["get", "namespace", OPERATOR_NAMESPACE, "--ignore-not-found", "-o", "name"];
    assert_eq!(cluster.plane.kubectl(&gone).await.unwrap().trim(), "");
    let kinds = "pods,services,persistentvolumeclaims,controllerrevisions";
    let left = cluster.plane.kubectl(&["get", kinds, "-A", "-o", "yaml"]).await.unwrap();
    // The user's own labels and annotations of the Service stay.
    let ours = left.lines().filter(|line| line.contains("kusionstack.io"));
    let ours: Vec<&str> = ours.filter(|line| !line.contains(well_known::CONTROL)).collect();
    let is_gate = |line: &&str| line.contains(well_known::SERVICE_READY);
    let ours: Vec<&&str> = ours.iter().filter(|line| !is_gate(line)).collect();
    assert!(ours.is_empty(), "{ours:#?}");
}

/// Asserts that these Pods are still there, in service and without owner, and can be deleted.
async fn assert_pods_are_kept(cluster: &TestCluster, uids: &BTreeSet<String>) {
    tokio::time::sleep(UNCHANGED_FOR).await;
    let pods = cluster.pods().list(&ListParams::default()).await.unwrap().items;
    let kept: BTreeSet<String> = pods.iter().filter_map(ResourceExt::uid).collect();
    assert_eq!(kept, *uids);
    for pod in &pods {
        assert!(pod.metadata.deletion_timestamp.is_none(), "{}", pod.name_any());
        assert_eq!(gate(pod), Some("True"), "{}", pod.name_any());
        assert!(pod.owner_references().is_empty() && pod.finalizers().is_empty());
        cluster.pods().delete(&pod.name_any(), &DeleteParams::default()).await.unwrap();
        cluster.wait_until_deleted(&pod.name_any()).await.unwrap();
    }
    let claims: Api<PersistentVolumeClaim> = cluster.api();
    assert_eq!(claims.list(&ListParams::default()).await.unwrap().items.len(), 4);
    let services: Api<Service> = cluster.api();
    services.delete("web", &DeleteParams::default()).await.unwrap();
    let is_gone = async || Ok(services.get_opt("web").await?.is_none());
    eventually(TIMEOUT, is_gone).await.unwrap();
}

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite
        .scenario(Lane::Waiting, pods_run_on_when_podops_is_removed)
        .scenario(Lane::Waiting, pods_run_on_after_operators_and_definitions_were_deleted)
        .scenario(Lane::Waiting, pods_run_on_after_the_namespace_was_deleted)
        .scenario(Lane::Waiting, pods_are_deleted_with_the_definitions_while_operators_run)
        .scenario(Lane::Waiting, pods_are_deleted_gracefully_when_that_is_chosen)
}

async fn pods_run_on_when_podops_is_removed() {
    let mut cluster =
        TestCluster::start_with_graceful_deletion(&programs().unwrap()).await.unwrap();
    let pods = create_workload(&cluster).await;
    let command = uninstall(&cluster, "keep");
    stop_with_deployments(&mut cluster).await;
    let output = succeed(command).await;
    assert!(output.ends_with("Podops is uninstalled\n"), "{output}");
    assert_nothing_is_left(&cluster).await;
    assert_pods_are_kept(&cluster, &pods).await;
}

/// A cluster with a workload, whose operators have ended; returns the UIDs of its Pods, too.
async fn without_operators() -> (TestCluster, BTreeSet<String>) {
    let mut cluster =
        TestCluster::start_with_graceful_deletion(&programs().unwrap()).await.unwrap();
    let pods = create_workload(&cluster).await;
    for operator in OPERATORS {
        cluster.stop_operator(operator).await.unwrap();
    }
    (cluster, pods)
}

/// As a user does who removes the operators and the CRDs first: both hang, and nothing is lost.
async fn pods_run_on_after_operators_and_definitions_were_deleted() {
    let (cluster, pods) = without_operators().await;
    let overlay = ["delete", "-k", "../deploy/overlays/graceful-deletion", "--wait=false"];
    cluster.plane.kubectl(&overlay).await.unwrap();
    // The API server applies the policy that protects them for a moment longer.
    let definitions = ["delete", "-k", "../crds", "--wait=false", "--ignore-not-found"];
    let are_deleted = async || Ok(cluster.plane.kubectl(&definitions).await.is_ok());
    eventually(TIMEOUT, are_deleted).await.unwrap();
    // Its operators are needed to delete Pods gracefully.
    let refused = uninstall(&cluster, "delete").wait_with_output().await.unwrap();
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(error.starts_with("Error: collaset-operator is not running"), "{error}");
    succeed(uninstall(&cluster, "keep")).await;
    assert_nothing_is_left(&cluster).await;
    assert_pods_are_kept(&cluster, &pods).await;
}

/// As a user does who removes the namespace first, and then interrupts the command.
async fn pods_run_on_after_the_namespace_was_deleted() {
    let (cluster, pods) = without_operators().await;
    cluster.plane.kubectl(&["delete", "namespace", OPERATOR_NAMESPACE]).await.unwrap();
    let mut interruptions = 0;
    for milliseconds in INTERRUPTED_AFTER {
        let mut command = uninstall(&cluster, "keep");
        tokio::time::sleep(Duration::from_millis(milliseconds)).await;
        if command.try_wait().unwrap().is_none() {
            command.kill().await.unwrap();
            interruptions += 1;
        }
    }
    assert!(interruptions > 1, "{interruptions}");
    succeed(uninstall(&cluster, "keep")).await;
    assert_nothing_is_left(&cluster).await;
    assert_pods_are_kept(&cluster, &pods).await;
}

/// As a user does who removes the CRDs first: that deletes the CollaSets, and their Pods through
/// the lifecycle, as long as the operators run.
async fn pods_are_deleted_with_the_definitions_while_operators_run() {
    let mut cluster =
        TestCluster::start_with_graceful_deletion(&programs().unwrap()).await.unwrap();
    create_workload(&cluster).await;
    let start = cluster.audit_log_end().unwrap();
    let delete = ["delete", "-k", "../crds", "--timeout=90s"];
    let denied = cluster.plane.kubectl(&delete).await.unwrap_err().to_string();
    assert!(
        denied.contains("collasets.apps.kusionstack.io would delete all its objects"),
        "{denied}"
    );
    let permit = "podopslifecycle.kusionstack.io/allow-deletion=true";
    cluster.plane.kubectl(&["annotate", "-k", "../crds", permit]).await.unwrap();
    cluster.plane.kubectl(&delete).await.unwrap();
    let (requests, _) = cluster.requests(start).unwrap();
    let of_pods = requests.iter().filter(|r| r.verb == "delete" && r.resource() == "pods");
    // The first delete of each Pod must be an operator's, because the garbage collector would not
    // wait for the lifecycle. The kubelets complete the deletion.
    let mut first = BTreeMap::new();
    for request in of_pods {
        first.entry(request.name()).or_insert(request.operator());
    }
    assert!(first.len() == 4 && first.values().all(Option::is_some), "{first:?}");
    assert!(cluster.pods().list(&ListParams::default()).await.unwrap().items.is_empty());
    let command = uninstall(&cluster, "keep");
    stop_with_deployments(&mut cluster).await;
    succeed(command).await;
    assert_nothing_is_left(&cluster).await;
}

async fn pods_are_deleted_gracefully_when_that_is_chosen() {
    let mut cluster =
        TestCluster::start_with_graceful_deletion(&programs().unwrap()).await.unwrap();
    create_workload(&cluster).await;
    let unconfirmed = uninstall_with(&cluster, &["delete"]).wait_with_output().await.unwrap();
    let error = String::from_utf8(unconfirmed.stderr).unwrap();
    assert!(error.ends_with("will be deleted. Repeat the command with --yes\n"), "{error}");
    let command = uninstall(&cluster, "delete");
    stop_with_deployments(&mut cluster).await;
    let output = succeed(command).await;
    assert!(output.starts_with("delete collaset/web in namespace default\n"), "{output}");
    assert!(output.contains("Pods of 1 CollaSet to be deleted"), "{output}");
    assert_nothing_is_left(&cluster).await;
    assert!(cluster.pods().list(&ListParams::default()).await.unwrap().items.is_empty());
}
