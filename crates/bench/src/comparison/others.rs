//! Runs the controllers of Argo Rollouts and OpenKruise, with their own manifests and roles.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use podops_test_cluster::{
    cluster::{TIMEOUT, TestCluster, eventually},
    control_plane::free_ports,
    process::{Spec, SupervisedProcess},
};
use podops_test_programs::GoProject;

/// Argo Rollouts. Later versions need a later version of Go.
pub(super) const ARGO_ROLLOUTS: GoProject = GoProject {
    name: "Argo Rollouts",
    module: "github.com/argoproj/argo-rollouts",
    version: "v1.10.1",
    package: "./cmd/rollouts-controller",
};

/// OpenKruise.
pub(super) const OPEN_KRUISE: GoProject = GoProject {
    name: "OpenKruise",
    module: "github.com/openkruise/kruise",
    version: "v1.8.2",
    package: ".",
};

/// Memory that a controller may use, in MiB: more than any of them needs.
const MEMORY_MEBIBYTES: f64 = 2048.0;

/// Installs Argo Rollouts, and starts its controller, which ends when it is dropped.
pub(super) async fn start_argo_rollouts(
    cluster: &TestCluster,
) -> anyhow::Result<SupervisedProcess> {
    const NAMESPACE: &str = "argo-rollouts";
    let (program, source) = build(ARGO_ROLLOUTS).await?;
    cluster.create_namespace(NAMESPACE).await?;
    apply(cluster, &source.join("manifests/cluster-install"), NAMESPACE).await?;
    let [metrics, health] = free_ports()?;
    let args = vec![
        format!("--metricsPort={metrics}"),
        format!("--healthzPort={health}"),
        "--leader-elect=false".to_owned(),
        // Otherwise the namespace of the kubeconfig.
        format!("--namespace={NAMESPACE}"),
    ];
    let kubeconfig = cluster.service_account_kubeconfig(NAMESPACE, "argo-rollouts").await?;
    let log = cluster.log("argo-rollouts");
    let env = Vec::new();
    let memory_mebibytes = MEMORY_MEBIBYTES;
    let spec = Spec { program, args, env, kubeconfig, log, memory_mebibytes };
    Ok(SupervisedProcess::start(spec))
}

/// Installs OpenKruise, starts its controllers, which end when they are dropped, and waits until
/// they serve its webhooks.
pub(super) async fn start_open_kruise(cluster: &TestCluster) -> anyhow::Result<SupervisedProcess> {
    const NAMESPACE: &str = "kruise-system";
    let (program, source) = build(OPEN_KRUISE).await?;
    apply(cluster, &source.join("config/default"), NAMESPACE).await?;
    let [metrics, health, webhooks] = free_ports()?;
    let args = vec![
        format!("--metrics-addr=127.0.0.1:{metrics}"),
        format!("--health-probe-addr=127.0.0.1:{health}"),
        "--enable-pprof=false".to_owned(),
        "--enable-leader-election=false".to_owned(),
    ];
    let certificates = cluster.plane.dir.path().join("kruise-certificates");
    let env = [
        ("POD_NAMESPACE", NAMESPACE.to_owned()),
        ("WEBHOOK_HOST", "127.0.0.1".to_owned()),
        ("WEBHOOK_PORT", webhooks.to_string()),
        ("WEBHOOK_CERT_DIR", certificates.display().to_string()),
    ];
    let env = env.map(|(name, value)| (name.to_owned(), value)).to_vec();
    let kubeconfig = cluster.service_account_kubeconfig(NAMESPACE, "kruise-manager").await?;
    let log = cluster.log("kruise-manager");
    let memory_mebibytes = MEMORY_MEBIBYTES;
    let spec = Spec { program, args, env, kubeconfig, log, memory_mebibytes };
    let controller = SupervisedProcess::start(spec);
    let is_admitted = async || {
        let dry = ["create", "--dry-run=server", "deployment", "dry", "--image=web:1"];
        let webhooks = ["get", "mutatingwebhookconfigurations", "--output=yaml"];
        let are_local = cluster.plane.kubectl(&webhooks).await?.contains("https://127.0.0.1");
        Ok(are_local && cluster.plane.kubectl(&dry).await.is_ok())
    };
    eventually(TIMEOUT, is_admitted).await.context("waiting for the webhooks of OpenKruise")?;
    Ok(controller)
}

async fn build(project: GoProject) -> anyhow::Result<(PathBuf, PathBuf)> {
    tokio::task::spawn_blocking(move || podops_test_programs::go_project(&project)).await?
}

async fn apply(cluster: &TestCluster, kustomization: &Path, namespace: &str) -> anyhow::Result<()> {
    let folder = kustomization.display().to_string();
    let apply = ["apply", "--server-side", "--namespace", namespace, "--kustomize", &folder];
    cluster.plane.kubectl(&apply).await?;
    let established = ["wait", "--for=condition=Established", "crd", "--all", "--timeout=30s"];
    cluster.plane.kubectl(&established).await.map(drop)
}
