//! Test cluster: a control plane, fake nodes, and each operator as a process with a token of its
//! shipped ServiceAccount.

mod assertions;
mod install;
mod objects;
mod operators;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::Pod;
use podops_api::collaset::CollaSetStatus;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{
    control_plane::ControlPlane,
    kubelets::{self, Kubelet},
    nodes::{self, FakeNodes},
    operator_processes::{Operators, Settings},
};
pub use crate::{folders::root, operator_processes::memory_limit_mebibytes};

/// The operator that runs packages, which is started by itself.
pub const INSTANCE_OPERATOR: &str = "instance-operator";

/// Names of the operators' programs and ServiceAccounts.
pub const OPERATORS: [&str; 5] = [
    "collaset-operator",
    "consist-operator",
    "lifecycle-operator",
    "operationjob-operator",
    "transition-rule-operator",
];

/// Timeout of anything that should happen promptly.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// Number of fake nodes.
const NODES: usize = 5;
/// Number of real kubelets.
const KUBELETS: usize = 2;

/// Leader election of an operator without a standby: the default timeouts, and an identity that it
/// keeps after a restart, as a container does in its Pod, so that it continues without waiting for
/// its Lease to expire.
const ONE_INSTANCE: &[&str] = &["--leader-elect-identity=first"];

/// A control plane, nodes and operators; dropping it stops them.
pub struct TestCluster {
    /// Real kubelets, in place of the fake nodes. Dropped first, because their logs name their files.
    kubelets: Vec<Kubelet>,
    /// The control plane.
    pub plane: ControlPlane,
    operators: Operators,
    /// Second instances of operators.
    standbys: Operators,
    programs: PathBuf,
    /// Port of each operator that serves admission webhooks.
    webhook_ports: BTreeMap<&'static str, u16>,
    /// Arguments and environment variables of operators, in addition to the common ones.
    settings: BTreeMap<&'static str, Settings>,
    /// Leader election flags; empty for the operators' defaults.
    leader_election: &'static [&'static str],
    /// True if webhook rules may call only the addresses that the shipped flags permit.
    are_webhooks_restricted: bool,
    /// Namespace of the test's objects.
    pub namespace: String,
    nodes: Option<Arc<FakeNodes>>,
    node_tasks: JoinSet<anyhow::Result<()>>,
}

/// Environment variable with which clusters remain at their end until Ctrl-C.
const KEEP_CLUSTER: &str = "PODOPS_KEEP_CLUSTER";

impl Drop for TestCluster {
    fn drop(&mut self) {
        if std::env::var_os(KEEP_CLUSTER).is_none() {
            return;
        }
        eprintln!("==> the cluster remains until Ctrl-C:{}", self.plane.usage(&self.namespace));
        // The thread of a runtime must not wait for another runtime.
        let interrupted = std::thread::spawn(|| {
            let runtime = tokio::runtime::Runtime::new()?;
            runtime.block_on(tokio::signal::ctrl_c())
        });
        if !matches!(interrupted.join(), Ok(Ok(()))) {
            eprintln!("==> the cluster does not remain: Ctrl-C cannot be waited for");
        }
    }
}

impl TestCluster {
    /// Starts everything; `programs` is the directory of the operators' programs.
    ///
    /// # Errors
    ///
    /// If a component does not start.
    pub async fn start(programs: &Path) -> anyhow::Result<Self> {
        let mut cluster = Self::start_without_operators(programs).await?;
        cluster.start_operators().await?;
        Ok(cluster)
    }

    /// Starts everything with graceful deletion: deletes and evictions wait for the Pod's
    /// lifecycle.
    ///
    /// # Errors
    ///
    /// If a component does not start.
    pub async fn start_with_graceful_deletion(programs: &Path) -> anyhow::Result<Self> {
        Self::start_empty(programs).await?.with_graceful_deletion().await
    }

    /// Starts everything that the documentation describes: all operators with the arguments of
    /// `deploy`, graceful deletion, and [`INSTANCE_OPERATOR`].
    ///
    /// # Errors
    ///
    /// If a component does not start.
    pub async fn start_for_demo(programs: &Path) -> anyhow::Result<Self> {
        let mut cluster = Self::start_empty(programs).await?;
        cluster.add_args("collaset-operator", &["--default-max-unavailable=25%".to_owned()]);
        let mut cluster = cluster.with_graceful_deletion().await?;
        cluster.add_instance_operator().await?;
        Ok(cluster)
    }

    /// Starts everything with graceful deletion; its webhooks require the API server's client
    /// certificate.
    ///
    /// # Errors
    ///
    /// If a component does not start.
    pub async fn start_with_client_certificates(programs: &Path) -> anyhow::Result<Self> {
        let mut cluster = Self::start_empty(programs).await?;
        cluster.require_client_certificates();
        cluster.with_graceful_deletion().await
    }

    /// Starts a control plane and nodes, and installs CRDs and manifests; starts no operators.
    ///
    /// # Errors
    ///
    /// If a component does not start.
    pub async fn start_without_operators(programs: &Path) -> anyhow::Result<Self> {
        let cluster = Self::start_empty(programs).await?;
        cluster.install_crds().await?;
        cluster.install("deploy/overlays/all").await?;
        Ok(cluster)
    }

    /// Starts a control plane and nodes, and installs nothing.
    ///
    /// # Errors
    ///
    /// If a component does not start.
    pub async fn start_empty(programs: &Path) -> anyhow::Result<Self> {
        let mut cluster = Self::start_without_nodes(programs).await?;
        cluster.start_nodes().await?;
        Ok(cluster)
    }

    /// Starts everything with graceful deletion, and with real kubelets in place of the fake nodes.
    ///
    /// # Errors
    ///
    /// If a component does not start.
    pub async fn start_with_kubelets(programs: &Path) -> anyhow::Result<Self> {
        let mut cluster = Self::start_without_nodes(programs).await?;
        let isolate = programs.join("podops-e2e");
        let tasks = &mut cluster.node_tasks;
        cluster.kubelets = kubelets::start(&cluster.plane, KUBELETS, &isolate, tasks).await?;
        let are_ready = async || kubelets::are_ready(&cluster.plane.admin, KUBELETS).await;
        eventually(TIMEOUT, are_ready).await.context("waiting for kubelets")?;
        cluster.with_graceful_deletion().await
    }

    /// Starts a control plane only.
    async fn start_without_nodes(programs: &Path) -> anyhow::Result<Self> {
        let cluster = Self {
            plane: ControlPlane::start().await?,
            operators: Operators::default(),
            standbys: Operators::default(),
            programs: programs.to_owned(),
            webhook_ports: BTreeMap::new(),
            settings: BTreeMap::new(),
            leader_election: ONE_INSTANCE,
            are_webhooks_restricted: false,
            namespace: "default".to_owned(),
            nodes: None,
            kubelets: Vec::new(),
            node_tasks: JoinSet::new(),
        };
        cluster.wait_for_namespace(&cluster.namespace).await?;
        Ok(cluster)
    }

    /// Restores the last backup of etcd, and restarts all programs but the operators, as the
    /// administrators of a cluster do.
    ///
    /// # Errors
    ///
    /// If a component does not start.
    pub async fn restore(&mut self) -> anyhow::Result<()> {
        self.node_tasks.shutdown().await;
        self.plane.restore().await?;
        self.start_nodes().await
    }

    /// Starts the fake nodes.
    async fn start_nodes(&mut self) -> anyhow::Result<()> {
        let client = self.plane.admin.clone();
        let (delays, server) = (nodes::Delays::default(), self.programs.join("podops-e2e"));
        let nodes = nodes::start(client, NODES, delays, server, &mut self.node_tasks).await?;
        self.nodes = Some(nodes);
        Ok(())
    }

    /// Starts a control plane, nodes, and [`INSTANCE_OPERATOR`] as the leader.
    ///
    /// # Errors
    ///
    /// If a component does not start.
    pub async fn start_with_packages(programs: &Path) -> anyhow::Result<Self> {
        let mut cluster = Self::start_empty(programs).await?;
        cluster.add_instance_operator().await?;
        Ok(cluster)
    }

    /// Starts a control plane, nodes, and [`INSTANCE_OPERATOR`] with the leader election of
    /// operators that have a standby.
    ///
    /// # Errors
    ///
    /// If a component does not start.
    pub async fn start_with_packages_for_standby(programs: &Path) -> anyhow::Result<Self> {
        let mut cluster = Self::start_empty(programs).await?;
        cluster.expect_standbys();
        cluster.add_instance_operator().await?;
        Ok(cluster)
    }

    /// Installs CRDs and roles in the cluster of a kubeconfig context, creates a namespace there,
    /// and runs the operators as local processes.
    ///
    /// # Errors
    ///
    /// If the cluster rejects a request or an operator does not start.
    pub async fn attach(programs: &Path, context: &str) -> anyhow::Result<Self> {
        let mut cluster = Self {
            plane: ControlPlane::existing(context).await?,
            operators: Operators::default(),
            standbys: Operators::default(),
            programs: programs.to_owned(),
            webhook_ports: BTreeMap::new(),
            settings: BTreeMap::new(),
            leader_election: ONE_INSTANCE,
            are_webhooks_restricted: false,
            namespace: "podops-demo".to_owned(),
            nodes: None,
            kubelets: Vec::new(),
            node_tasks: JoinSet::new(),
        };
        cluster.install_crds().await?;
        cluster.install("deploy/namespace").await?;
        for name in OPERATORS {
            let roles = root().join("deploy").join(name).join("rbac.yaml").display().to_string();
            cluster.plane.kubectl(&["apply", "--server-side", "-f", &roles]).await?;
            cluster.start_operator(name).await?;
        }
        cluster.create_namespace(&cluster.namespace).await?;
        cluster.wait_for_leaders().await?;
        Ok(cluster)
    }

    /// Deletes the CollaSets and the namespace created in an attached cluster; CRDs and roles stay.
    ///
    /// # Errors
    ///
    /// If the cluster rejects a request.
    pub async fn clean_up(self) -> anyhow::Result<()> {
        if self.nodes.is_none() && self.kubelets.is_empty() {
            let delete = ["delete", "--all", "collasets", "--namespace", &self.namespace];
            self.plane.kubectl(&delete).await?;
            self.plane.kubectl(&["delete", "namespace", &self.namespace]).await?;
        }
        Ok(())
    }

    /// Fake nodes that run the Pods.
    ///
    /// # Errors
    ///
    /// If this is an attached cluster, which has nodes of its own.
    pub fn nodes(&self) -> anyhow::Result<&FakeNodes> {
        self.nodes.as_deref().context("an attached cluster has no fake nodes")
    }
}

/// Image of a Pod's first container.
#[must_use]
pub fn image(pod: &Pod) -> &str {
    let first = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    first.and_then(|container| container.image.as_deref()).unwrap_or_default()
}

/// Returns whether a condition of a Pod is True.
#[must_use]
pub fn is_true(pod: &Pod, condition: &str) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|known| known.type_ == condition && known.status == "True")
}

/// Selector of the Pods of a CollaSet created by [`TestCluster::create`].
#[must_use]
pub fn app(set: &str) -> Value {
    json!({ "matchLabels": { "app": set } })
}

/// Returns whether all Pods are updated and available, and none is operated on or terminating.
#[must_use]
pub fn is_rolled_out(status: &CollaSetStatus, replicas: i32) -> bool {
    status.replicas == replicas
        && status.updated_available_replicas == replicas
        && status.operating_replicas == 0
        && status.terminating_replicas == 0
}

/// Directory of the operators' programs: `PODOPS_PROGRAMS`, or else that of this program, or of the
/// programs that were built with this test.
///
/// # Errors
///
/// If the path of this program is not known.
pub fn programs() -> anyhow::Result<PathBuf> {
    if let Some(programs) = std::env::var_os("PODOPS_PROGRAMS") {
        return Ok(programs.into());
    }
    let this = std::env::current_exe()?;
    let directory = this.parent().context("path of this program has no parent")?;
    // Cargo puts programs of tests into a directory of their own.
    let is_test = directory.ends_with("deps");
    let parent = directory.parent().filter(|_| is_test);
    Ok(parent.unwrap_or(directory).to_owned())
}

/// Intervals at which [`eventually`] polls at first, and once it has waited for long.
const POLLS: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(400)];
/// Wait from which on [`eventually`] polls less often: polls of many scenarios load the API server.
const LONG_WAIT: Duration = Duration::from_secs(4);

/// Polls until `condition` returns true.
///
/// # Errors
///
/// If it does not return true within `within`, or returns an error.
pub async fn eventually(
    within: Duration,
    condition: impl AsyncFn() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let started = Instant::now();
    while !condition().await? {
        let waited = started.elapsed();
        if waited > within {
            bail!("timed out after {within:?}");
        }
        tokio::time::sleep(POLLS[usize::from(waited > LONG_WAIT)]).await;
    }
    Ok(())
}
