//! Test cluster: a control plane, fake nodes, and each operator as a process with a token of its
//! shipped ServiceAccount.

use std::{
    cell::Cell,
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use k8s_openapi::api::{
    admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    coordination::v1::{Lease, LeaseSpec},
    core::v1::{Pod, Service, ServiceAccount},
    events::v1::Event,
};
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::NamespaceResourceScope,
};
use podops_api::{
    collaset::{CollaSet, CollaSetStatus},
    consist::CLEAN_FINALIZER,
    transition_rule::{PodTransitionRule, PodTransitionRuleStatus},
    well_known,
};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{
    audit,
    control_plane::{ControlPlane, free_ports},
    nodes::{self, FakeNodes},
    process::{Signal, Spec, SupervisedProcess},
};

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

/// Operators with admission webhooks.
const WITH_WEBHOOKS: [&str; 2] = ["lifecycle-operator", "transition-rule-operator"];

/// Timeout of anything that should happen promptly.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// Number of fake nodes.
const NODES: usize = 5;

/// Leader election of an operator without a standby: the default timeouts, and an identity that it
/// keeps after a restart, as a container does in its Pod, so that it continues without waiting for
/// its Lease to expire.
const ONE_INSTANCE: &[&str] = &["--leader-elect-identity=first"];

/// Leader election of operators with a standby, which waits for a Lease to expire. Under load, a Lease
/// with so short timeouts is lost: requests of the leader are cancelled, and it restarts.
const WITH_STANDBY: &[&str] = &[
    "--leader-elect-lease-duration=4s",
    "--leader-elect-renew-deadline=3s",
    "--leader-elect-retry-period=750ms",
];

/// Identity of the second instance of an operator.
const STANDBY: &str = "standby";

/// A control plane, nodes and operators; dropping it stops them.
pub struct TestCluster {
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
    _node_tasks: JoinSet<anyhow::Result<()>>,
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

/// Processes of the operators. A crash that no test has requested fails the test, and so does memory
/// above the limit in the shipped Deployment, which would end the operator on a cluster.
#[derive(Default)]
struct Operators {
    by_name: BTreeMap<&'static str, SupervisedProcess>,
    /// Memory limits in MiB that differ from those in the shipped Deployments.
    limits: BTreeMap<&'static str, f64>,
}

impl Drop for Operators {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for (name, process) in &self.by_name {
            self.check(name, process);
        }
    }
}

impl Operators {
    /// Asserts that an operator did not crash, and that its memory fits into its limit.
    fn check(&self, name: &str, process: &SupervisedProcess) {
        let crashes = process.crashes();
        assert!(crashes.is_empty(), "{name} crashed: {crashes:?}");
        let panics = process.panics();
        let has_none = panics.as_ref().is_ok_and(Vec::is_empty);
        assert!(has_none, "{name} panicked: {panics:?}");
        let peak = process.peak_mebibytes();
        let limit = self.limit_mebibytes(name);
        let fits = limit.as_ref().is_ok_and(|limit| peak < *limit);
        assert!(fits, "{name} used {peak:.0} MiB; its limit is {limit:?} MiB");
    }

    /// Memory limit of an operator, in MiB.
    fn limit_mebibytes(&self, name: &str) -> anyhow::Result<f64> {
        self.limits.get(name).copied().map_or_else(|| memory_limit_mebibytes(name), Ok)
    }

    /// Ends an operator, which is checked before.
    fn stop(&mut self, name: &str) -> Option<u32> {
        let process = self.by_name.remove(name)?;
        self.check(name, &process);
        process.pid()
    }
}

/// Memory limit in an operator's shipped Deployment, in MiB.
///
/// # Errors
///
/// If the Deployment has no limit in MiB.
pub fn memory_limit_mebibytes(operator: &str) -> anyhow::Result<f64> {
    let path = root().join("deploy").join(operator).join("deployment.yaml");
    let manifest = std::fs::read_to_string(path)?;
    let limit =
        manifest.split_once("limits: { memory: ").and_then(|(_, rest)| rest.split_once("Mi }"));
    Ok(limit.context("manifest without a memory limit")?.0.parse()?)
}

/// Environment variables in an operator's shipped Deployment.
///
/// # Errors
///
/// If the Deployment cannot be read.
fn shipped_env(operator: &str) -> anyhow::Result<Vec<(String, String)>> {
    let path = root().join("deploy").join(operator).join("deployment.yaml");
    let manifest = std::fs::read_to_string(path)?;
    let Some((_, env)) = manifest.split_once("        env:\n") else { return Ok(Vec::new()) };
    let lines = env.lines().map(|line| line.trim_start().strip_prefix("- { name: "));
    let variables = lines.map_while(|line| line?.strip_suffix("\" }")?.split_once(", value: \""));
    Ok(variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

/// Additional arguments and environment variables of an operator.
#[derive(Clone, Debug, Default)]
struct Settings {
    args: Vec<String>,
    env: Vec<(String, String)>,
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

    /// Starts all operators, and waits until each is leader.
    ///
    /// # Errors
    ///
    /// If an operator does not start.
    pub async fn start_operators(&mut self) -> anyhow::Result<()> {
        for name in OPERATORS {
            self.start_operator(name).await?;
        }
        self.wait_for_leaders().await
    }

    /// Sets a memory limit, in MiB, that differs from the one in the operator's shipped Deployment, as
    /// for a cluster of more objects than that one is for.
    pub fn set_memory_limit(&mut self, operator: &'static str, mebibytes: f64) {
        self.operators.limits.insert(operator, mebibytes);
    }

    /// Uses short leader election timeouts, from the operators' next start on, so that a standby soon
    /// takes over.
    pub fn expect_standbys(&mut self) {
        self.leader_election = WITH_STANDBY;
    }

    /// Sets the directory of the operators' programs, from their next start on.
    pub fn use_programs(&mut self, programs: &Path) {
        programs.clone_into(&mut self.programs);
    }

    /// Adds arguments for the next start of an operator.
    pub fn add_args(&mut self, operator: &'static str, args: &[String]) {
        self.settings.entry(operator).or_default().args.extend_from_slice(args);
    }

    /// Adds environment variables for the next start of an operator.
    pub fn add_env(&mut self, operator: &'static str, env: &[(&str, String)]) {
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        self.settings.entry(operator).or_default().env.extend(env);
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

    /// Lets webhook rules call only the addresses that the shipped flags permit, from the next start of
    /// transition-rule-operator on; otherwise also those of the tests' services.
    pub fn restrict_webhooks(&mut self) {
        self.are_webhooks_restricted = true;
    }

    /// Makes admission webhooks require the API server's client certificate, from the operators' next start
    /// on.
    pub fn require_client_certificates(&mut self) {
        let ca = self.plane.dir.path().join("ca.crt").display().to_string();
        for operator in WITH_WEBHOOKS {
            self.add_env(operator, &[("PODOPS_ADMISSION_CLIENT_CA_FILE", ca.clone())]);
        }
    }

    /// Installs the CRDs and the operators with graceful deletion into an empty cluster, and starts them.
    ///
    /// # Errors
    ///
    /// If a component does not start.
    pub async fn with_graceful_deletion(mut self) -> anyhow::Result<Self> {
        self.install_crds().await?;
        self.install_with_webhooks("deploy/overlays/graceful-deletion").await?;
        let opt_in = format!("{}=true", well_known::GRACEFUL_EVICTION);
        self.plane.kubectl(&["label", "namespace", &self.namespace, &opt_in]).await?;
        self.start_operators().await?;
        self.wait_for_admission().await?;
        self.wait_for_readiness_gates().await?;
        Ok(self)
    }

    /// Waits until the API server steadily adds the readiness gate to new Pods: while it loads its
    /// admission policies, it may skip them once more.
    async fn wait_for_readiness_gates(&self) -> anyhow::Result<()> {
        let pod = json!({
            "metadata": { "name": "dry", "labels": { well_known::CONTROL: "true" } },
            "spec": { "containers": [{ "name": "web", "image": "nginx:1" }] },
        });
        let pod = serde_json::from_value(pod)?;
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        let successes = Cell::new(0);
        let gated = async || {
            let spec = self.pods().create(&dry, &pod).await?.spec.unwrap_or_default();
            let mut gates = spec.readiness_gates.iter().flatten();
            let is_gated = gates.any(|gate| gate.condition_type == well_known::SERVICE_READY);
            successes.set(if is_gated { successes.get() + 1 } else { 0 });
            Ok(successes.get() >= 10)
        };
        eventually(TIMEOUT, gated).await.context("waiting for readiness gates on new Pods")
    }

    /// Deletes a Pod of a CollaSet with graceful deletion, which rejects the request and continues later, and waits
    /// until the CollaSet has this number of Pods without it.
    ///
    /// # Errors
    ///
    /// If the request is not rejected by the lifecycle, or the Pod is not replaced `within` this time.
    pub async fn recreate_gracefully(
        &self,
        set: &str,
        pods: usize,
        within: Duration,
    ) -> anyhow::Result<()> {
        let pod = self.pods_of(set).await?.into_iter().next().context("no Pod to delete")?;
        let deleted = self.pods().delete(&pod.name_any(), &DeleteParams::default()).await;
        let rejection = deleted.err().context("the Pod was deleted at once")?.to_string();
        anyhow::ensure!(rejection.contains("PodOpsLifecycle"), "{rejection}");
        let recreated = async || {
            let now = self.pods_of(set).await?;
            Ok(now.len() == pods && now.iter().all(|other| other.uid() != pod.uid()))
        };
        eventually(within, recreated).await.context("waiting until the Pod is replaced")
    }

    /// Installs an overlay, and points its webhooks at local addresses instead of Services.
    ///
    /// # Errors
    ///
    /// If the overlay is rejected.
    pub async fn install_with_webhooks(&mut self, overlay: &str) -> anyhow::Result<()> {
        self.install(overlay).await?;
        self.use_local_webhooks().await
    }

    /// Points the installed webhooks at local addresses instead of Services.
    ///
    /// # Errors
    ///
    /// If the API server rejects that.
    pub async fn use_local_webhooks(&mut self) -> anyhow::Result<()> {
        let ports: [u16; WITH_WEBHOOKS.len()] = free_ports()?;
        let ports: BTreeMap<&str, u16> = WITH_WEBHOOKS.into_iter().zip(ports).collect();
        for configurations in self.webhook_configurations() {
            for configuration in configurations.list(&ListParams::default()).await?.items {
                let name = configuration.name_any();
                let operator = name.strip_prefix("podops-").unwrap_or_default();
                let Some((operator, port)) = ports.get_key_value(operator) else { continue };
                self.webhook_ports.insert(operator, *port);
                let url = json!(format!("https://127.0.0.1:{port}"));
                let use_local_url = |n: usize| {
                    let client = format!("/webhooks/{n}/clientConfig");
                    let remove = json!({ "op": "remove", "path": format!("{client}/service") });
                    [remove, json!({ "op": "add", "path": format!("{client}/url"), "value": url })]
                };
                let count = webhooks(&configuration).len();
                let patch: Vec<Value> = (0..count).flat_map(use_local_url).collect();
                let patch = Patch::Json::<()>(serde_json::from_value(json!(patch))?);
                configurations.patch(&name, &PatchParams::default(), &patch).await?;
            }
        }
        Ok(())
    }

    fn webhook_configurations(&self) -> [Api<DynamicObject>; 2] {
        let kinds = [
            ApiResource::erase::<ValidatingWebhookConfiguration>(&()),
            ApiResource::erase::<MutatingWebhookConfiguration>(&()),
        ];
        kinds.map(|kind| Api::all_with(self.plane.admin.clone(), &kind))
    }

    /// URL of the webhook for evictions, with its path token, and its CA bundle.
    ///
    /// # Errors
    ///
    /// If the webhook is not configured.
    pub async fn eviction_webhook(&self) -> anyhow::Result<(http::Uri, Vec<u8>)> {
        let hooks: Api<ValidatingWebhookConfiguration> = Api::all(self.plane.admin.clone());
        let hooks = hooks.get("podops-lifecycle-operator").await?.webhooks.unwrap_or_default();
        let client = &hooks.get(1).context("no webhook for evictions")?.client_config;
        let url = client.url.as_deref().context("webhook without a URL")?;
        let bundle = client.ca_bundle.clone().context("webhook without a CA bundle")?;
        Ok((url.parse()?, bundle.0))
    }

    /// Waits until every webhook configuration has a CA bundle.
    ///
    /// # Errors
    ///
    /// If the wait times out.
    pub async fn wait_for_admission(&self) -> anyhow::Result<()> {
        let configured = async || {
            for configurations in self.webhook_configurations() {
                for configuration in configurations.list(&ListParams::default()).await?.items {
                    let has_ca = |hook: &Value| hook["clientConfig"]["caBundle"].is_string();
                    if !webhooks(&configuration).iter().all(has_ca) {
                        return Ok(false);
                    }
                }
            }
            Ok(true)
        };
        eventually(TIMEOUT, configured).await.context("waiting for the webhooks' CA bundles")
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
        let plane = ControlPlane::start().await?;
        let mut node_tasks = JoinSet::new();
        let client = plane.admin.clone();
        let delays = nodes::Delays::default();
        let server = programs.join("podops-e2e");
        let nodes = nodes::start(client, NODES, delays, server, &mut node_tasks).await?;
        let cluster = Self {
            plane,
            operators: Operators::default(),
            standbys: Operators::default(),
            programs: programs.to_owned(),
            webhook_ports: BTreeMap::new(),
            settings: BTreeMap::new(),
            leader_election: ONE_INSTANCE,
            are_webhooks_restricted: false,
            namespace: "default".to_owned(),
            nodes: Some(nodes),
            _node_tasks: node_tasks,
        };
        cluster.wait_for_namespace(&cluster.namespace).await?;
        Ok(cluster)
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

    /// Starts a control plane, nodes, and [`INSTANCE_OPERATOR`] with the leader election of operators that
    /// have a standby.
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

    /// Adds [`INSTANCE_OPERATOR`] as the leader.
    ///
    /// # Errors
    ///
    /// If it does not start.
    pub async fn add_instance_operator(&mut self) -> anyhow::Result<()> {
        self.install_definitions("crds/kudo").await?;
        self.install("deploy/overlays/packages").await?;
        self.start_operator(INSTANCE_OPERATOR).await?;
        self.wait_for_leader(INSTANCE_OPERATOR).await
    }

    /// Adds the component `package-admin` to the overlay of packages: Instances without a ServiceAccount may
    /// write everything.
    ///
    /// # Errors
    ///
    /// If kubectl fails.
    pub async fn add_package_admin(&self) -> anyhow::Result<()> {
        self.install_with_component("packages", "package-admin").await
    }

    /// Applies an overlay with a component, as an overlay of a user's own does.
    ///
    /// # Errors
    ///
    /// If kubectl fails.
    pub async fn install_with_component(
        &self,
        overlay: &str,
        component: &str,
    ) -> anyhow::Result<()> {
        let own = tempfile::tempdir_in(self.plane.dir.path())?;
        // kustomize finds folders by relative paths only.
        let to_root = "../".repeat(own.path().canonicalize()?.components().count() - 1);
        let deploy = root().join("deploy").canonicalize()?;
        let deploy = format!("{to_root}{}", deploy.strip_prefix("/")?.display());
        let kustomization = serde_json::json!({
            "resources": [format!("{deploy}/overlays/{overlay}")],
            "components": [format!("{deploy}/components/{component}")],
        });
        std::fs::write(own.path().join("kustomization.yaml"), kustomization.to_string())?;
        self.apply_kustomization(own.path()).await
    }

    /// Creates a ServiceAccount of the default namespace, which may read and write these resources there,
    /// and a Role of its name.
    ///
    /// # Errors
    ///
    /// If kubectl fails.
    pub async fn create_writer(&self, name: &str, resources: &str) -> anyhow::Result<()> {
        let verbs = "--verb=get,list,watch,create,patch,delete";
        let resources = format!("--resource={resources}");
        let role = format!("--role={name}");
        let account = format!("--serviceaccount=default:{name}");
        let commands: [&[&str]; 3] = [
            &["create", "serviceaccount", name],
            &["create", "role", name, verbs, &resources],
            &["create", "rolebinding", name, &role, &account],
        ];
        for command in commands {
            self.plane.kubectl(command).await?;
        }
        Ok(())
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
            _node_tasks: JoinSet::new(),
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
        if self.nodes.is_none() {
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

    /// Identity of an operator's leader, from its Lease; empty without a leader.
    ///
    /// # Errors
    ///
    /// If the Lease cannot be read.
    pub async fn leader(&self, operator: &str) -> anyhow::Result<String> {
        Ok(self.lease(operator).await?.holder_identity.unwrap_or_default())
    }

    /// Lease of an operator; empty if the Lease does not exist.
    ///
    /// # Errors
    ///
    /// If the Lease cannot be read.
    pub async fn lease(&self, operator: &str) -> anyhow::Result<LeaseSpec> {
        let leases: Api<Lease> = Api::namespaced(self.plane.admin.clone(), "podops-system");
        let spec = leases.get_opt(operator).await?.and_then(|lease| lease.spec);
        Ok(spec.unwrap_or_default())
    }

    /// Waits until each operator has a leader.
    ///
    /// # Errors
    ///
    /// If one has none in time.
    pub async fn wait_for_leaders(&self) -> anyhow::Result<()> {
        for name in OPERATORS {
            self.wait_for_leader(name).await?;
        }
        Ok(())
    }

    async fn wait_for_leader(&self, name: &str) -> anyhow::Result<()> {
        let leads = async || Ok(!self.leader(name).await?.is_empty());
        let waited = eventually(TIMEOUT, leads).await;
        waited.with_context(|| format!("waiting for a leader of {name}"))
    }

    /// Creates a namespace, in which Pods can be created at once.
    ///
    /// # Errors
    ///
    /// If the API server rejects it, or no ServiceAccount is created in it in time.
    pub async fn create_namespace(&self, name: &str) -> anyhow::Result<()> {
        self.plane.kubectl(&["create", "namespace", name]).await?;
        self.wait_for_namespace(name).await
    }

    /// Waits for the default ServiceAccount, because Pods are rejected without it.
    async fn wait_for_namespace(&self, name: &str) -> anyhow::Result<()> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.plane.admin.clone(), name);
        let exists = async || Ok(accounts.get_opt("default").await?.is_some());
        let waited = eventually(TIMEOUT, exists).await;
        waited.with_context(|| format!("waiting for the default ServiceAccount of {name}"))
    }

    /// Applies the CRDs and waits until they are established.
    ///
    /// # Errors
    ///
    /// If the CRDs are rejected or not established in time.
    pub async fn install_crds(&self) -> anyhow::Result<()> {
        self.install_definitions("crds").await
    }

    async fn install_definitions(&self, kustomization: &str) -> anyhow::Result<()> {
        self.install(kustomization).await?;
        let established = ["wait", "--for=condition=Established", "crd", "--all", "--timeout=30s"];
        self.plane.kubectl(&established).await.map(drop)
    }

    /// Applies a kustomization; the path is relative to the repository root.
    ///
    /// # Errors
    ///
    /// If kubectl fails.
    pub async fn install(&self, kustomization: &str) -> anyhow::Result<()> {
        self.apply_kustomization(&root().join(kustomization)).await
    }

    async fn apply_kustomization(&self, folder: &Path) -> anyhow::Result<()> {
        let folder = folder.display().to_string();
        let apply = ["apply", "--server-side", "--force-conflicts", "-k", &folder];
        self.plane.kubectl(&apply).await.map(drop)
    }

    /// Starts an operator with the credentials of its ServiceAccount.
    ///
    /// # Errors
    ///
    /// If no token can be requested.
    pub async fn start_operator(&mut self, name: &'static str) -> anyhow::Result<()> {
        let spec = self.spec(name).await?;
        self.operators.by_name.insert(name, SupervisedProcess::start(spec));
        Ok(())
    }

    /// Starts a second instance of an operator without admission webhooks, which waits to be the
    /// leader; the first was started after [`Self::expect_standbys`].
    ///
    /// # Errors
    ///
    /// If no token can be requested.
    pub async fn start_standby(&mut self, name: &'static str) -> anyhow::Result<()> {
        let mut spec = self.spec(name).await?;
        spec.args.push(format!("--leader-elect-identity={STANDBY}"));
        spec.log.set_extension("standby.log");
        self.standbys.by_name.insert(name, SupervisedProcess::start(spec));
        Ok(())
    }

    /// The instance of an operator that holds its Lease.
    ///
    /// # Errors
    ///
    /// If the Lease cannot be read or the operator was not started.
    pub async fn leading_instance(&self, name: &str) -> anyhow::Result<&SupervisedProcess> {
        if self.leader(name).await? == STANDBY {
            return self.standbys.by_name.get(name).context("the standby was not started");
        }
        self.operator(name)
    }

    /// Writes a kubeconfig with the credentials of a ServiceAccount, and returns its path.
    ///
    /// # Errors
    ///
    /// If no token can be requested, or the file cannot be written.
    pub async fn service_account_kubeconfig(
        &self,
        namespace: &str,
        name: &str,
    ) -> anyhow::Result<PathBuf> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.plane.admin.clone(), namespace);
        let request = serde_json::from_value(
            json!({ "spec": { "audiences": [], "expirationSeconds": 86400 } }),
        )?;
        let token = accounts.create_token_request(name, &PostParams::default(), &request).await?;
        let token =
            token.status.and_then(|s| s.token).context("token request returned no token")?;
        self.plane.kubeconfig(name, &token)
    }

    /// Returns how to start an operator with the credentials of its ServiceAccount.
    async fn spec(&self, name: &'static str) -> anyhow::Result<Spec> {
        let kubeconfig = self.service_account_kubeconfig("podops-system", name).await?;
        let flags = ["--metrics-bind-address=127.0.0.1:0", "--log=info"];
        // The tests' webhook services and HAProxies listen on loopback addresses.
        let extra: &[&str] = match name {
            "transition-rule-operator" if self.are_webhooks_restricted => &[],
            "transition-rule-operator" => &["--webhook-allow-private-addresses"],
            "consist-operator" => &["--haproxy-backends=default/tcp://127.0.0.1:*"],
            _ => &[],
        };
        let flags = flags.iter().chain(self.leader_election).chain(extra);
        let mut args: Vec<String> = flags.map(|flag| (*flag).to_owned()).collect();
        if let Some(port) = self.webhook_ports.get(name) {
            args.push(format!("--admission-address=127.0.0.1:{port}"));
            args.push("--admission-hosts=127.0.0.1".to_owned());
        }
        let settings = self.settings.get(name).cloned().unwrap_or_default();
        args.extend(settings.args);
        let program = self.programs.join(name);
        let log = self.log(name);
        let mut env = shipped_env(name)?;
        env.extend(settings.env);
        let memory_mebibytes = self.operators.limit_mebibytes(name)?;
        Ok(Spec { program, args, env, kubeconfig, log, memory_mebibytes })
    }

    /// Kills an operator without a restart, and returns once its process has ended.
    ///
    /// # Errors
    ///
    /// If it does not end.
    pub async fn stop_operator(&mut self, name: &str) -> anyhow::Result<()> {
        let Some(pid) = self.operators.stop(name) else { return Ok(()) };
        let proc = PathBuf::from(format!("/proc/{pid}"));
        eventually(TIMEOUT, async || Ok(!proc.exists())).await
    }

    /// Process of a started operator.
    ///
    /// # Errors
    ///
    /// If the operator was not started.
    pub fn operator(&self, name: &str) -> anyhow::Result<&SupervisedProcess> {
        self.operators.by_name.get(name).with_context(|| format!("{name} was not started"))
    }

    /// Kills an operator with SIGKILL, and returns after its restart.
    ///
    /// # Errors
    ///
    /// If the operator is not running.
    pub async fn kill_and_restart(&self, name: &str) -> anyhow::Result<()> {
        self.operator(name)?.restart_with(Signal::KILL).await.map(drop)
    }

    /// Path of an operator's log file.
    #[must_use]
    pub fn log(&self, name: &str) -> PathBuf {
        self.plane.dir.path().join(format!("{name}.log"))
    }

    /// Address of an operator's admission webhooks, if it serves them.
    #[must_use]
    pub fn admission_address(&self, operator: &str) -> Option<SocketAddr> {
        let port = self.webhook_ports.get(operator)?;
        Some(SocketAddr::from(([127, 0, 0, 1], *port)))
    }

    /// Address of an operator's probes and metrics, from its log.
    ///
    /// # Errors
    ///
    /// If the log cannot be read or contains no address.
    pub fn metrics_address(&self, name: &str) -> anyhow::Result<SocketAddr> {
        let log = std::fs::read_to_string(self.log(name))?;
        let (_, rest) = log.rsplit_once("Serving probes and metrics").context("not serving")?;
        let (_, rest) = rest.split_once("address=").context("log without an address")?;
        let address = rest.split_whitespace().next().context("log without an address")?;
        Ok(address.parse()?)
    }

    /// Requests of all clients since an offset in the audit log, and the offset of its current end.
    ///
    /// # Errors
    ///
    /// If the log cannot be read.
    pub fn requests(&self, since: u64) -> anyhow::Result<(Vec<audit::Request>, u64)> {
        audit::since(&self.plane.dir.path().join("audit.log"), since)
    }

    /// Checks that the shipped roles permitted every request of the operators.
    ///
    /// # Errors
    ///
    /// If a request was forbidden; the error lists the requests.
    pub fn assert_no_forbidden_requests(&self) -> anyhow::Result<()> {
        self.assert_none_forbidden(audit::Request::is_operator_request)
    }

    /// As [`assert_no_forbidden_requests`](Self::assert_no_forbidden_requests), of the requests that operators
    /// make as themselves: Instances may name ServiceAccounts without rights.
    ///
    /// # Errors
    ///
    /// If there is one, or the audit log cannot be read.
    pub fn assert_no_own_forbidden_requests(&self) -> anyhow::Result<()> {
        self.assert_none_forbidden(|r| r.is_operator_request() && !r.is_impersonated())
    }

    fn assert_none_forbidden(
        &self,
        is_counted: impl Fn(&audit::Request) -> bool,
    ) -> anyhow::Result<()> {
        let (all, _) = self.requests(0)?;
        let is_forbidden = |r: &&audit::Request| is_counted(r) && r.is_unauthorized();
        let forbidden: Vec<_> = all.iter().filter(is_forbidden).collect();
        anyhow::ensure!(
            forbidden.is_empty(),
            "requests forbidden by the shipped roles: {forbidden:#?}"
        );
        Ok(())
    }

    /// Byte offset of the current end of the audit log.
    ///
    /// # Errors
    ///
    /// If the log cannot be read.
    pub fn audit_log_end(&self) -> anyhow::Result<u64> {
        audit::end(&self.plane.dir.path().join("audit.log"))
    }

    /// API of a namespaced kind in the test namespace.
    #[must_use]
    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.plane.admin.clone(), &self.namespace)
    }

    /// API of CollaSets.
    #[must_use]
    pub fn sets(&self) -> Api<CollaSet> {
        self.api()
    }

    /// API of PodTransitionRules.
    #[must_use]
    pub fn rules(&self) -> Api<PodTransitionRule> {
        self.api()
    }

    /// API of Pods.
    #[must_use]
    pub fn pods(&self) -> Api<Pod> {
        self.api()
    }

    /// Lists the Pods with the label `app=<set>`.
    ///
    /// # Errors
    ///
    /// If the list fails.
    pub async fn pods_of(&self, set: &str) -> anyhow::Result<Vec<Pod>> {
        Ok(self.pods().list(&ListParams::default().labels(&format!("app={set}"))).await?.items)
    }

    /// Creates a CollaSet whose Pods are labelled `app=<name>`.
    ///
    /// # Errors
    ///
    /// If the API server rejects it.
    pub async fn create(&self, name: &str, replicas: usize, image: &str) -> anyhow::Result<()> {
        self.create_with(name, replicas, image, &json!({})).await
    }

    /// Creates a CollaSet; the fields of `overrides` replace those of its spec.
    ///
    /// # Errors
    ///
    /// If the API server rejects it.
    pub async fn create_with(
        &self,
        name: &str,
        replicas: usize,
        image: &str,
        overrides: &Value,
    ) -> anyhow::Result<()> {
        let mut spec = json!({
            "replicas": replicas,
            "selector": { "matchLabels": { "app": name } },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": { "terminationGracePeriodSeconds": 0, "containers": [{ "name": "web", "image": image }] },
            },
        });
        for (key, value) in overrides.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        let set = serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec }))?;
        self.sets().create(&PostParams::default(), &set).await?;
        Ok(())
    }

    /// Creates a Service managed by consist-operator, and waits for its finalizer: from then on the
    /// operator protects the Service's Pods.
    ///
    /// # Errors
    ///
    /// If the API server rejects it or the wait times out.
    pub async fn create_managed_service(
        &self,
        name: &str,
        selector: Value,
        annotations: &Value,
    ) -> anyhow::Result<()> {
        let labels = json!({ well_known::CONTROL: well_known::CONTROL_ON });
        let service = serde_json::from_value(json!({
            "metadata": { "name": name, "labels": labels, "annotations": annotations },
            "spec": { "selector": selector, "ports": [{ "port": 80 }] },
        }))?;
        let services: Api<Service> = self.api();
        services.create(&PostParams::default(), &service).await?;
        let has_finalizer = async || {
            let finalizers = services.get(name).await?.metadata.finalizers.unwrap_or_default();
            Ok(finalizers.iter().any(|finalizer| finalizer == CLEAN_FINALIZER))
        };
        let waited = eventually(TIMEOUT, has_finalizer).await;
        waited.with_context(|| format!("waiting for the finalizer of Service {name}"))
    }

    /// Creates a PodTransitionRule, and waits until its status is current.
    ///
    /// # Errors
    ///
    /// If the API server rejects it or the wait times out.
    pub async fn create_rule(
        &self,
        name: &str,
        selector: Value,
        rules: Value,
    ) -> anyhow::Result<()> {
        let spec = json!({ "selector": selector, "rules": rules });
        let rule = serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec }))?;
        self.rules().create(&PostParams::default(), &rule).await?;
        self.wait_for_rule(name, |_| true).await
    }

    /// Waits until a rule's status is of the current generation and fulfils `condition`.
    ///
    /// # Errors
    ///
    /// If the wait times out; the error contains the status.
    pub async fn wait_for_rule(
        &self,
        name: &str,
        condition: impl Fn(&PodTransitionRuleStatus) -> bool,
    ) -> anyhow::Result<()> {
        let waited = eventually(TIMEOUT, async || {
            let rule = self.rules().get(name).await?;
            let current = |s: &PodTransitionRuleStatus| {
                Some(s.observed_generation) == rule.metadata.generation
            };
            Ok(rule.status.as_ref().is_some_and(|s| current(s) && condition(s)))
        });
        if waited.await.is_err() {
            bail!("{name} after {TIMEOUT:?}: {:#?}", self.rules().get(name).await?.status);
        }
        Ok(())
    }

    /// Waits until the PodTransitionRule `rule` reports a Pod that its entry `by` rejects, for a
    /// reason that contains `reason`.
    ///
    /// # Errors
    ///
    /// If the wait times out; the error contains the status.
    pub async fn wait_until_rejected(
        &self,
        rule: &str,
        by: &str,
        reason: &str,
    ) -> anyhow::Result<()> {
        self.wait_for_rule(rule, |status| {
            let mut infos = status.details.iter().flat_map(|detail| &detail.reject_info);
            infos.any(|info| info.rule_name == by && info.reason.contains(reason))
        })
        .await
    }

    /// Creates a CollaSet as [`Self::create_with`] does, and waits until all its Pods are
    /// available.
    ///
    /// # Errors
    ///
    /// If the API server rejects it or the wait times out.
    pub async fn create_and_wait(
        &self,
        name: &str,
        replicas: i32,
        overrides: &Value,
    ) -> anyhow::Result<()> {
        self.create_with(name, usize::try_from(replicas)?, "nginx:1", overrides).await?;
        self.wait_for_replicas(name, [replicas; 4]).await
    }

    /// Waits until the operators have handled later changes: those of a new CollaSet of this name,
    /// whose Pod becomes available. Effects of earlier changes that have not occurred by then do
    /// not occur.
    ///
    /// # Errors
    ///
    /// As [`Self::create_and_wait`].
    pub async fn wait_until_changes_are_handled(&self, new: &str) -> anyhow::Result<()> {
        self.create_and_wait(new, 1, &json!({})).await
    }

    /// Applies a merge patch to a CollaSet's spec.
    ///
    /// # Errors
    ///
    /// If the API server rejects it.
    pub async fn patch(&self, name: &str, spec: Value) -> anyhow::Result<()> {
        self.sets()
            .patch(name, &PatchParams::default(), &Patch::Merge(json!({ "spec": spec })))
            .await?;
        Ok(())
    }

    /// Sets the image in a CollaSet's template.
    ///
    /// # Errors
    ///
    /// If the API server rejects it.
    pub async fn set_image(&self, name: &str, image: &str) -> anyhow::Result<()> {
        let containers = json!([{ "name": "web", "image": image }]);
        self.patch(name, json!({ "template": { "spec": { "containers": containers } } })).await
    }

    /// Waits until a CollaSet's status is of the current generation and fulfils `condition`.
    ///
    /// # Errors
    ///
    /// If the wait times out; the error contains the status.
    pub async fn wait_for_status(
        &self,
        name: &str,
        within: Duration,
        condition: impl Fn(&CollaSetStatus) -> bool,
    ) -> anyhow::Result<()> {
        let waited = eventually(within, async || {
            let set = self.sets().get(name).await?;
            let current =
                |s: &CollaSetStatus| Some(s.observed_generation) == set.metadata.generation;
            Ok(set.status.as_ref().is_some_and(|s| current(s) && condition(s)))
        });
        if waited.await.is_err() {
            bail!("{name} after {within:?}: {:#?}", self.sets().get(name).await?.status);
        }
        Ok(())
    }

    /// Waits until a CollaSet's status has the expected replicas, readyReplicas, availableReplicas
    /// and updatedReplicas, and as many Pods exist that are not terminating. Kuperator's own tests
    /// wait for the same.
    ///
    /// # Errors
    ///
    /// If the wait times out; the error contains the status or the expected counts.
    pub async fn wait_for_replicas(&self, name: &str, expected: [i32; 4]) -> anyhow::Result<()> {
        let matches = |s: &CollaSetStatus| {
            [s.replicas, s.ready_replicas, s.available_replicas, s.updated_replicas] == expected
        };
        self.wait_for_status(name, TIMEOUT, matches).await?;
        let live = async || {
            let pods = self.pods_of(name).await?;
            let live = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).count();
            Ok(i32::try_from(live)? == expected[0])
        };
        eventually(TIMEOUT, live).await.with_context(|| format!("waiting for {expected:?} Pods"))
    }

    /// Applies a merge patch to a Pod's metadata.
    ///
    /// # Errors
    ///
    /// If the API server rejects it.
    pub async fn patch_pod_metadata(&self, name: &str, metadata: Value) -> anyhow::Result<()> {
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        self.pods().patch(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Waits until a Pod fulfils `condition`.
    ///
    /// # Errors
    ///
    /// If the wait times out; the error contains the Pod.
    pub async fn wait_for_pod(
        &self,
        name: &str,
        condition: impl Fn(&Pod) -> bool,
    ) -> anyhow::Result<()> {
        let waited =
            eventually(TIMEOUT, async || Ok(condition(&self.pods().get(name).await?))).await;
        if waited.is_err() {
            bail!("{name} after {TIMEOUT:?}: {:#?}", self.pods().get(name).await?);
        }
        Ok(())
    }

    /// Waits until a Pod no longer exists.
    ///
    /// # Errors
    ///
    /// If the wait times out.
    pub async fn wait_until_deleted(&self, name: &str) -> anyhow::Result<()> {
        let deleted = async || Ok(self.pods().get_opt(name).await?.is_none());
        let waited = eventually(TIMEOUT, deleted).await;
        waited.with_context(|| format!("waiting for the deletion of Pod {name}"))
    }

    /// Waits for an event with this reason regarding the object of this name.
    ///
    /// # Errors
    ///
    /// If the wait times out.
    pub async fn wait_for_event(&self, object: &str, reason: &str) -> anyhow::Result<()> {
        let events: Api<Event> = self.api();
        let is_published = async || {
            let events = events.list(&ListParams::default()).await?.items;
            Ok(events.iter().any(|event| {
                let regarding = event.regarding.as_ref().and_then(|r| r.name.as_deref());
                event.reason.as_deref() == Some(reason) && regarding == Some(object)
            }))
        };
        let waited = eventually(TIMEOUT, is_published).await;
        waited.with_context(|| format!("waiting for the event {reason} of {object}"))
    }

    /// Waits until a CollaSet is rolled out; see [`is_rolled_out`].
    ///
    /// # Errors
    ///
    /// If the wait times out; the error contains the status.
    pub async fn wait_until_rolled_out(
        &self,
        name: &str,
        replicas: i32,
        within: Duration,
    ) -> anyhow::Result<()> {
        self.wait_for_status(name, within, |status| is_rolled_out(status, replicas)).await
    }
}

/// Webhooks of a webhook configuration.
fn webhooks(configuration: &DynamicObject) -> &[Value] {
    configuration.data["webhooks"].as_array().map_or(&[], Vec::as_slice)
}

/// Root directory of this repository.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
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

/// Directory of the operators' programs, for a test: `PODOPS_PROGRAMS`, or else the parent of the
/// directory of test executables.
///
/// # Errors
///
/// If the path of the test executable is not known.
pub fn programs() -> anyhow::Result<PathBuf> {
    if let Some(programs) = std::env::var_os("PODOPS_PROGRAMS") {
        return Ok(programs.into());
    }
    let test = std::env::current_exe()?;
    Ok(test.ancestors().nth(2).context("test executable is not in a target directory")?.to_owned())
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
