//! A client with rights in one namespace only, for tests of its effects on other namespaces.

use kube::{Api, Client, Resource, core::NamespaceResourceScope};
use podops_api::{lifecycle::LabelKind, well_known};
use serde_json::{Value, json};

use crate::cluster::{TIMEOUT, TestCluster, app, eventually};

/// Name of a tenant's ServiceAccount.
const ACCOUNT: &str = "tenant";

/// Resources that a tenant may read and write in its namespace.
const RESOURCES: &str = "--resource=pods,pods/status,services,persistentvolumeclaims,resourcequotas,\
    resourcequotas/status,collasets.apps.kusionstack.io,podtransitionrules.apps.kusionstack.io,\
    poddecorations.apps.kusionstack.io,operationjobs.apps.kusionstack.io,\
    resourcecontexts.apps.kusionstack.io,controllerrevisions.apps,statefulsets.apps,\
    poddisruptionbudgets.policy,endpointslices.discovery.k8s.io";

/// A namespace, and a ServiceAccount with rights in it only.
pub struct Tenant<'a> {
    cluster: &'a TestCluster,
    /// The namespace.
    pub namespace: String,
    /// Name of the ServiceAccount as a user.
    user: String,
    /// Client with the rights of the ServiceAccount.
    client: Client,
}

impl<'a> Tenant<'a> {
    /// Creates the namespace and the ServiceAccount.
    ///
    /// # Errors
    ///
    /// If kubectl fails, or the client cannot be made.
    pub async fn new(cluster: &'a TestCluster, namespace: &str) -> anyhow::Result<Self> {
        cluster.create_namespace(namespace).await?;
        let account = format!("--serviceaccount={namespace}:{ACCOUNT}");
        let commands: [&[&str]; 3] = [
            &["create", "serviceaccount", ACCOUNT],
            &["create", "role", "tenant", "--verb=*", RESOURCES],
            &["create", "rolebinding", "tenant", "--role=tenant", &account],
        ];
        for command in commands {
            let arguments = [command, &["-n", namespace]].concat();
            cluster.plane.kubectl(&arguments).await?;
        }
        let user = format!("system:serviceaccount:{namespace}:{ACCOUNT}");
        let client = cluster.plane.client_as(&user).await?;
        Ok(Self { cluster, namespace: namespace.to_owned(), user, client })
    }

    /// Returns the tenant's objects of a type, with the rights of the tenant.
    #[must_use]
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType: Default>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Runs kubectl as the tenant, and returns its stdout.
    ///
    /// # Errors
    ///
    /// If kubectl fails; the error contains its stderr.
    pub async fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let account = ["--as", &self.user, "-n", &self.namespace];
        self.cluster.plane.kubectl(&[&account, arguments].concat()).await
    }

    /// Creates the object of a manifest, or those of a List, as the tenant, without validation by
    /// kubectl.
    ///
    /// # Errors
    ///
    /// If the API server rejects one; the error contains its message.
    pub async fn create(&self, manifest: &Value) -> anyhow::Result<()> {
        let flags = ["--validate=false", "--as", &self.user, "-n", &self.namespace];
        self.cluster.plane.create_with(manifest, &flags).await
    }

    /// Creates a PodTransitionRule for the Pods with this label `app`.
    ///
    /// # Errors
    ///
    /// If the API server rejects it.
    pub async fn create_rule(&self, name: &str, pods: &str, rules: &Value) -> anyhow::Result<()> {
        let rule = json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodTransitionRule",
            "metadata": { "name": name }, "spec": { "selector": app(pods), "rules": rules },
        });
        self.create(&rule).await
    }

    /// Starts an update of each Pod with this label `app`, once rules apply to `count` of them.
    ///
    /// # Errors
    ///
    /// If kubectl fails, or the rules do not apply in time.
    pub async fn start_operations(&self, app: &str, count: usize) -> anyhow::Result<()> {
        let gate = well_known::PRE_CHECK_GATE;
        let selector = format!("{gate}/{},app={app}", well_known::TRANSITION_RULE);
        let gated = async || {
            let names = self.kubectl(&["get", "pods", "-l", &selector, "-o", "name"]).await?;
            Ok(names.lines().count() == count)
        };
        eventually(TIMEOUT, gated).await?;
        let operating = format!("{}=1", LabelKind::Operating.key("t"));
        let operation_type = format!("{}=update", LabelKind::OperationType.key("t"));
        self.kubectl(&["label", "pods", "-l", &selector, &operating, &operation_type]).await?;
        Ok(())
    }
}

/// Manifest of a CollaSet whose Pods have its name as their label `app`.
#[must_use]
pub fn collaset(name: &str, replicas: i32) -> Value {
    json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet",
        "metadata": { "name": name },
        "spec": {
            "replicas": replicas, "selector": app(name),
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": { "containers": [{ "name": "a", "image": "a:1" }] },
            },
        },
    })
}
