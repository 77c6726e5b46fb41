//! A client with rights in one namespace.

use podops_e2e::cluster::{TIMEOUT, TestCluster, eventually};
use serde_json::Value;

/// Namespace of the tenant.
pub(super) const TENANT: &str = "tenant";
/// ServiceAccount of the tenant.
pub(super) const USER: &str = "system:serviceaccount:tenant:mallory";

/// Creates a namespace, and an account with rights in it only.
pub(super) async fn create_account(cluster: &TestCluster) {
    let plane = &cluster.plane;
    plane.kubectl(&["create", "namespace", TENANT]).await.unwrap();
    plane.kubectl(&["create", "serviceaccount", "mallory", "-n", TENANT]).await.unwrap();
    let role = [
        "create",
        "role",
        "tenant",
        "-n",
        TENANT,
        "--verb=*",
        "--resource=pods,pods/status,services,persistentvolumeclaims,collasets.apps.kusionstack.io,\
         podtransitionrules.apps.kusionstack.io,poddecorations.apps.kusionstack.io,\
         operationjobs.apps.kusionstack.io,resourcecontexts.apps.kusionstack.io,\
         controllerrevisions.apps,statefulsets.apps,poddisruptionbudgets.policy,\
         endpointslices.discovery.k8s.io",
    ];
    plane.kubectl(&role).await.unwrap();
    let binding = [
        "create",
        "rolebinding",
        "tenant",
        "-n",
        TENANT,
        "--role=tenant",
        "--serviceaccount=tenant:mallory",
    ];
    plane.kubectl(&binding).await.unwrap();
    let exists = async || {
        let account = ["get", "serviceaccount", "default", "-n", TENANT];
        Ok(plane.kubectl(&account).await.is_ok())
    };
    eventually(TIMEOUT, exists).await.unwrap();
}

/// Runs kubectl as the tenant.
pub(super) async fn as_tenant(cluster: &TestCluster, arguments: &[&str]) -> anyhow::Result<String> {
    let account = ["--as", USER, "-n", TENANT];
    let arguments: Vec<&str> = account.into_iter().chain(arguments.iter().copied()).collect();
    cluster.plane.kubectl(&arguments).await
}

pub(super) async fn create(
    cluster: &TestCluster,
    name: &str,
    object: &Value,
) -> anyhow::Result<String> {
    let path = cluster.plane.dir.path().join(format!("{name}.json"));
    std::fs::write(&path, object.to_string())?;
    as_tenant(cluster, &["create", "-f", path.to_str().unwrap()]).await
}
