//! A client with rights in one namespace only.

use kube::{Api, Resource, core::NamespaceResourceScope};
use serde_json::Value;

use crate::cluster::TestCluster;

/// Name of a tenant's ServiceAccount.
const ACCOUNT: &str = "mallory";

/// What a tenant may read and write in its namespace.
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
}

impl<'a> Tenant<'a> {
    /// Creates the namespace and the ServiceAccount.
    ///
    /// # Errors
    ///
    /// If kubectl fails.
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
        Ok(Self { cluster, namespace: namespace.to_owned() })
    }

    fn user(&self) -> String {
        format!("system:serviceaccount:{}:{ACCOUNT}", self.namespace)
    }

    /// Returns the tenant's objects of a type, with the rights of the tenant.
    ///
    /// # Errors
    ///
    /// If the client cannot be made.
    pub async fn api<K>(&self) -> anyhow::Result<Api<K>>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType: Default>,
    {
        let client = self.cluster.plane.client_as(&self.user()).await?;
        Ok(Api::namespaced(client, &self.namespace))
    }

    /// Runs kubectl as the tenant, and returns its stdout.
    ///
    /// # Errors
    ///
    /// If kubectl fails; the error contains its stderr.
    pub async fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let account = ["--as", &self.user(), "-n", &self.namespace];
        self.cluster.plane.kubectl(&[&account, arguments].concat()).await
    }

    /// Creates the object of a manifest, or those of a List, as the tenant, without validation by kubectl.
    ///
    /// # Errors
    ///
    /// If the API server rejects one; the error contains its message.
    pub async fn create(&self, manifest: &Value) -> anyhow::Result<()> {
        let flags = ["--validate=false", "--as", &self.user(), "-n", &self.namespace];
        self.cluster.plane.create_with(manifest, &flags).await
    }
}
