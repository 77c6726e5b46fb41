//! Statuses as kstatus, Argo CD and `kubectl wait` compute them from real objects.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind, PostParams},
};
use podops_test_cluster::{
    cluster::{TIMEOUT, TestCluster, app, eventually},
    suite::{Group, Lane, Suite, all_requests_are_permitted, new_cluster},
};
use podops_test_programs::gitops;
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt as _, process::Command};

/// Time for which a state must not change.
const UNCHANGED_FOR: Duration = Duration::from_secs(2);

/// Status of an object in the tools.
#[derive(Debug, PartialEq, Eq)]
struct Statuses {
    kstatus: String,
    argocd: String,
}

/// The tools, and the objects in a cluster.
struct Tools {
    cluster: TestCluster,
    program: PathBuf,
    patch: PathBuf,
}

impl Tools {
    async fn start() -> Self {
        let patch = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/gitops/argocd-cm.yaml");
        Self { cluster: new_cluster().await, program: gitops().unwrap(), patch }
    }

    fn api(&self, kind: &str) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("apps.kusionstack.io", "v1alpha1", kind);
        let resource = ApiResource::from_gvk(&kind);
        Api::namespaced_with(self.cluster.plane.admin.clone(), "default", &resource)
    }

    async fn create(&self, kind: &str, name: &str, spec: Value) {
        let object = json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": kind,
            "metadata": { "name": name, "namespace": "default" }, "spec": spec,
        });
        let object = serde_json::from_value(object).unwrap();
        self.api(kind).create(&PostParams::default(), &object).await.unwrap();
    }

    async fn run(&self, args: &[&str], object: &DynamicObject) -> anyhow::Result<String> {
        let mut child = Command::new(&self.program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let text = serde_json::to_vec(object)?;
        child.stdin.take().unwrap().write_all(&text).await?;
        let output = child.wait_with_output().await?;
        anyhow::ensure!(output.status.success(), "gitops {args:?} failed");
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }

    async fn statuses(&self, kind: &str, name: &str) -> anyhow::Result<Statuses> {
        let object = self.api(kind).get(name).await?;
        let patch = self.patch.display().to_string();
        Ok(Statuses {
            kstatus: self.run(&["kstatus"], &object).await?,
            argocd: self.run(&["argocd", &patch], &object).await?,
        })
    }

    /// Waits until the tools compute these statuses, and checks that they still do so later.
    async fn expect(&self, kind: &str, name: &str, kstatus: &str, argocd: &str) {
        let expected = Statuses { kstatus: kstatus.to_owned(), argocd: argocd.to_owned() };
        let is_expected = async || Ok(self.statuses(kind, name).await? == expected);
        let waited = eventually(TIMEOUT, is_expected).await;
        let object = self.api(kind).get(name).await.unwrap();
        assert!(waited.is_ok(), "{kind} {name} is not {expected:?}: {:#}", object.data["status"]);
        tokio::time::sleep(UNCHANGED_FOR).await;
        assert_eq!(self.statuses(kind, name).await.unwrap(), expected, "{kind} {name}");
    }
}

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite.group(
        Group::new("gitops", Lane::Waiting, Tools::start)
            .beside(rollouts_complete_pause_and_stall)
            .beside(rules_and_decorations_are_current)
            .beside(jobs_succeed_and_fail)
            .end(async |tools: &Tools| all_requests_are_permitted(&tools.cluster).await),
    )
}

async fn rollouts_complete_pause_and_stall(tools: &Tools) {
    let cluster = &tools.cluster;
    let halt = json!({
        "progressDeadlineSeconds": 60,
        "updateStrategy": { "rollingUpdate": {
            "maxUnavailable": 1, "failurePolicy": { "failureThreshold": 1, "action": "Halt" },
        } },
    });
    cluster.create_and_wait("web", 3, &halt).await.unwrap();
    tools.expect("CollaSet", "web", "Current", "Healthy").await;
    let wait = ["wait", "--for=condition=Ready", "collaset/web", "--timeout=30s"];
    cluster.plane.kubectl(&wait).await.unwrap();
    cluster.set_image("web", "nginx:non-exist").await.unwrap();
    tools.expect("CollaSet", "web", "Failed", "Degraded").await;
    cluster.set_image("web", "nginx:2").await.unwrap();
    tools.expect("CollaSet", "web", "Current", "Healthy").await;

    cluster.create("starting", 1, "nginx:non-exist").await.unwrap();
    tools.expect("CollaSet", "starting", "InProgress", "Progressing").await;
    let deadline = json!({ "progressDeadlineSeconds": 1 });
    cluster.patch("starting", deadline).await.unwrap();
    tools.expect("CollaSet", "starting", "Failed", "Degraded").await;
    let paused = json!({ "paused": true });
    cluster.patch("starting", paused).await.unwrap();
    tools.expect("CollaSet", "starting", "InProgress", "Suspended").await;
}

async fn rules_and_decorations_are_current(tools: &Tools) {
    tools.cluster.create_and_wait("ruled", 2, &json!({})).await.unwrap();
    let budget = json!([{ "name": "one", "availablePolicy": { "maxUnavailableValue": 1 } }]);
    let rule = json!({ "selector": app("ruled"), "rules": budget });
    tools.create("PodTransitionRule", "ruled", rule).await;
    tools.expect("PodTransitionRule", "ruled", "Current", "Healthy").await;
    let webhook = json!([{ "name": "webhook", "webhook": {
        "clientConfig": { "url": "http://127.0.0.2:1/" }, "failurePolicy": "Fail",
    } }]);
    let rule = json!({ "selector": app("called"), "rules": webhook });
    tools.create("PodTransitionRule", "called", rule).await;
    tools.cluster.create_and_wait("called", 1, &json!({})).await.unwrap();
    tools.cluster.set_image("called", "nginx:2").await.unwrap();
    tools.expect("PodTransitionRule", "called", "InProgress", "Progressing").await;

    let sidecar = |name: &str| json!({ "containers": [{ "name": name, "image": "sidecar:1", "injectPolicy": "AfterPrimaryContainer" }] });
    let decoration = json!({ "selector": app("ruled"), "template": sidecar("sidecar") });
    tools.create("PodDecoration", "sidecar", decoration).await;
    tools.expect("PodDecoration", "sidecar", "Current", "Healthy").await;
    // The Pods have a container of this name.
    let conflicting = json!({ "selector": app("ruled"), "template": sidecar("web") });
    tools.create("PodDecoration", "conflicting", conflicting).await;
    tools.expect("PodDecoration", "conflicting", "Failed", "Degraded").await;
}

async fn jobs_succeed_and_fail(tools: &Tools) {
    tools.cluster.create_and_wait("target", 1, &json!({})).await.unwrap();
    let pods = tools.cluster.pods_of("target").await.unwrap();
    for (name, pod, kstatus, argocd) in [
        ("succeeds", pods[0].metadata.name.as_deref().unwrap(), "Current", "Healthy"),
        ("fails", "missing", "Failed", "Degraded"),
    ] {
        let spec = json!({ "action": "Recreate", "targets": [{ "name": pod }] });
        tools.create("OperationJob", name, spec).await;
        tools.expect("OperationJob", name, kstatus, argocd).await;
    }
}
