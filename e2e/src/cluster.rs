//! The operators on a live control plane: each a process of its own, with a token of its shipped
//! ServiceAccount.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingWebhook, ValidatingWebhookConfiguration},
    coordination::v1::Lease,
    core::v1::{Pod, Service, ServiceAccount},
    events::v1::Event,
};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
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
    process::{SupervisedProcess, Signal, Spec},
};

/// The operators, by the names of their programs and ServiceAccounts.
pub const OPERATORS: [&str; 4] =
    ["collaset-operator", "consist-operator", "lifecycle-operator", "transition-rule-operator"];

/// Those that the API server can ask.
const ADMITTING: [&str; 2] = ["lifecycle-operator", "transition-rule-operator"];

/// How long anything that is to happen at once may take.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// How many nodes there are.
const NODES: usize = 5;

/// Short times for Leases, as tests kill operators and wait for the next; too short for a machine
/// that has its hands full.
const HASTY: &[&str] = &[
    "--leader-elect-lease-duration=3s",
    "--leader-elect-renew-deadline=2s",
    "--leader-elect-retry-period=500ms",
];

/// A control plane, nodes and operators; all end when it is dropped.
pub struct TestCluster {
    /// The control plane.
    pub plane: ControlPlane,
    operators: BTreeMap<&'static str, SupervisedProcess>,
    programs: PathBuf,
    /// The ports at which operators answer admission reviews, of those that do.
    admission: BTreeMap<&'static str, u16>,
    /// What operators are told beside what all labs tell them: arguments, and their environments.
    told: BTreeMap<&'static str, Told>,
    /// How operators keep their Leases, if not as they are shipped.
    lease: &'static [&'static str],
    /// Where its sets are.
    pub namespace: String,
    nodes: Option<Arc<FakeNodes>>,
    _simulated: JoinSet<anyhow::Result<()>>,
}

/// What an operator is told.
#[derive(Clone, Debug, Default)]
struct Told {
    args: Vec<String>,
    env: Vec<(String, String)>,
}

impl TestCluster {
    /// Starts everything; the operators' programs are in `programs`.
    ///
    /// # Errors
    ///
    /// If a part does not start.
    pub async fn start(programs: &Path) -> anyhow::Result<Self> {
        Self::start_with(programs, HASTY).await
    }

    /// Starts everything, with the operators' own times for Leases.
    ///
    /// # Errors
    ///
    /// If a part does not start.
    pub async fn start_with_default_lease(programs: &Path) -> anyhow::Result<Self> {
        Self::start_with(programs, &[]).await
    }

    async fn start_with(programs: &Path, lease: &'static [&'static str]) -> anyhow::Result<Self> {
        let mut cluster = Self { lease, ..Self::start_without_operators(programs).await? };
        cluster.start_operators().await?;
        Ok(cluster)
    }

    /// Starts all operators, and waits until they lead.
    ///
    /// # Errors
    ///
    /// If one does not start.
    pub async fn start_operators(&mut self) -> anyhow::Result<()> {
        for name in OPERATORS {
            self.start_operator(name).await?;
        }
        self.wait_for_leaders().await
    }

    /// Has an operator be told more when it starts: arguments.
    pub fn add_args(&mut self, operator: &'static str, args: &[String]) {
        self.told.entry(operator).or_default().args.extend_from_slice(args);
    }

    /// Has an operator be told more when it starts: its environment.
    pub fn add_env(&mut self, operator: &'static str, env: &[(&str, String)]) {
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        self.told.entry(operator).or_default().env.extend(env);
    }

    /// Starts everything, and has deletes and evictions wait for their Pods' lifecycles.
    ///
    /// # Errors
    ///
    /// If a part does not start.
    pub async fn start_with_graceful_deletion(programs: &Path) -> anyhow::Result<Self> {
        let mut cluster = Self::start_empty(programs).await?;
        cluster.install_crds().await?;
        cluster.guard().await?;
        cluster.start_operators().await?;
        cluster.wait_for_admission().await?;
        Ok(cluster)
    }

    /// Installs everything with the webhooks, which the API server finds here rather than behind
    /// Services.
    async fn guard(&mut self) -> anyhow::Result<()> {
        self.install("deploy/overlays/graceful-deletion").await?;
        let ports: [u16; ADMITTING.len()] = free_ports()?;
        self.admission = ADMITTING.into_iter().zip(ports).collect();
        for (operator, port) in &self.admission {
            let url = json!(format!("https://127.0.0.1:{port}"));
            let (hooks, name) = (self.webhooks(), format!("podops-{operator}"));
            let count = hooks.get(&name).await?.webhooks.iter().flatten().count();
            let found_here = |n: usize| {
                let client = format!("/webhooks/{n}/clientConfig");
                let remove = json!({ "op": "remove", "path": format!("{client}/service") });
                [remove, json!({ "op": "add", "path": format!("{client}/url"), "value": url })]
            };
            let patch: Vec<Value> = (0..count).flat_map(found_here).collect();
            let patch = Patch::Json::<()>(serde_json::from_value(json!(patch))?);
            hooks.patch(&name, &PatchParams::default(), &patch).await?;
        }
        Ok(())
    }

    fn webhooks(&self) -> Api<ValidatingWebhookConfiguration> {
        Api::all(self.plane.admin.clone())
    }

    /// Waits until the API server asks the operators, and trusts them.
    async fn wait_for_admission(&self) -> anyhow::Result<()> {
        let told = async || {
            let hooks = self.webhooks().list(&ListParams::default()).await?.items;
            let known = |hook: &ValidatingWebhook| hook.client_config.ca_bundle.is_some();
            Ok(hooks.iter().flat_map(|h| h.webhooks.iter().flatten()).all(known))
        };
        eventually(TIMEOUT, told).await.context("waiting for the webhooks")
    }

    /// Starts everything but the operators.
    ///
    /// # Errors
    ///
    /// If a part does not start.
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
    /// If a part does not start.
    pub async fn start_empty(programs: &Path) -> anyhow::Result<Self> {
        let plane = ControlPlane::start().await?;
        let mut simulated = JoinSet::new();
        let (client, delays) = (plane.admin.clone(), nodes::Delays::default());
        let server = programs.join("podops-lab");
        let nodes = nodes::start(client, NODES, delays, server, &mut simulated).await?;
        let cluster = Self {
            plane,
            operators: BTreeMap::new(),
            programs: programs.to_owned(),
            admission: BTreeMap::new(),
            told: BTreeMap::new(),
            lease: HASTY,
            namespace: "default".to_owned(),
            nodes: Some(nodes),
            _simulated: simulated,
        };
        cluster.wait_for_namespace().await?;
        Ok(cluster)
    }

    /// Installs CRDs and roles in the cluster of a context, and runs the operators here, in a
    /// namespace of its own there.
    ///
    /// # Errors
    ///
    /// If the cluster refuses.
    pub async fn attach(programs: &Path, context: &str) -> anyhow::Result<Self> {
        let mut cluster = Self {
            plane: ControlPlane::existing(context).await?,
            operators: BTreeMap::new(),
            programs: programs.to_owned(),
            admission: BTreeMap::new(),
            told: BTreeMap::new(),
            lease: HASTY,
            namespace: "podops-demo".to_owned(),
            nodes: None,
            _simulated: JoinSet::new(),
        };
        cluster.install_crds().await?;
        cluster.install("deploy/namespace").await?;
        for name in OPERATORS {
            let roles = root().join("deploy").join(name).join("rbac.yaml").display().to_string();
            cluster.plane.kubectl(&["apply", "--server-side", "-f", &roles]).await?;
            cluster.start_operator(name).await?;
        }
        cluster.plane.kubectl(&["create", "namespace", &cluster.namespace]).await?;
        cluster.wait_for_namespace().await?;
        cluster.wait_for_leaders().await?;
        Ok(cluster)
    }

    /// Takes away what was made in somebody else's cluster; CRDs and roles stay.
    ///
    /// # Errors
    ///
    /// If the cluster refuses.
    pub async fn clean_up(self) -> anyhow::Result<()> {
        if self.nodes.is_none() {
            let delete = ["delete", "--all", "collasets", "--namespace", &self.namespace];
            self.plane.kubectl(&delete).await?;
            self.plane.kubectl(&["delete", "namespace", &self.namespace]).await?;
        }
        Ok(())
    }

    /// The simulated nodes that its Pods are on.
    ///
    /// # Errors
    ///
    /// If the cluster has its own.
    pub fn nodes(&self) -> anyhow::Result<&FakeNodes> {
        self.nodes.as_deref().context("the nodes are somebody else's")
    }

    /// The holder of an operator's Lease; empty if there is none.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub async fn leader(&self, operator: &str) -> anyhow::Result<String> {
        let leases: Api<Lease> = Api::namespaced(self.plane.admin.clone(), "podops-system");
        let spec = leases.get_opt(operator).await?.and_then(|lease| lease.spec);
        Ok(spec.and_then(|spec| spec.holder_identity).unwrap_or_default())
    }

    async fn wait_for_leaders(&self) -> anyhow::Result<()> {
        for name in OPERATORS {
            let leads = async || Ok(!self.leader(name).await?.is_empty());
            let waited = eventually(TIMEOUT, leads).await;
            waited.with_context(|| format!("waiting for {name} to lead"))?;
        }
        Ok(())
    }

    /// ServiceAccount admission refuses Pods of a namespace that has no account yet.
    async fn wait_for_namespace(&self) -> anyhow::Result<()> {
        let accounts: Api<ServiceAccount> = self.api();
        let made = async || Ok(accounts.get_opt("default").await?.is_some());
        let waited = eventually(TIMEOUT, made).await;
        waited.context("waiting for the default ServiceAccount")
    }

    /// Applies the CRDs and waits until they are served.
    ///
    /// # Errors
    ///
    /// If they are refused.
    pub async fn install_crds(&self) -> anyhow::Result<()> {
        self.install("crds").await?;
        let established = ["wait", "--for=condition=Established", "crd", "--all", "--timeout=30s"];
        self.plane.kubectl(&established).await.map(drop)
    }

    /// Applies a kustomization of this repository.
    ///
    /// # Errors
    ///
    /// If it is refused.
    pub async fn install(&self, kustomization: &str) -> anyhow::Result<()> {
        let at = root().join(kustomization).display().to_string();
        let apply = ["apply", "--server-side", "--force-conflicts", "-k", &at];
        self.plane.kubectl(&apply).await.map(drop)
    }

    /// Starts an operator under its ServiceAccount.
    ///
    /// # Errors
    ///
    /// If it does not start.
    pub async fn start_operator(&mut self, name: &'static str) -> anyhow::Result<()> {
        let accounts: Api<ServiceAccount> =
            Api::namespaced(self.plane.admin.clone(), "podops-system");
        let request = serde_json::from_value(
            json!({ "spec": { "audiences": [], "expirationSeconds": 86400 } }),
        )?;
        let token = accounts.create_token_request(name, &PostParams::default(), &request).await?;
        let token =
            token.status.and_then(|s| s.token).context("a token request without a token")?;
        let kubeconfig = self.plane.kubeconfig(name, &token)?;
        let flags = ["--metrics-bind-address=127.0.0.1:0", "--log=info"];
        // Services of rules are tests' own, and those are on this machine.
        let more: &[&str] = match name {
            "transition-rule-operator" => &["--webhook-allow-private-addresses"],
            "consist-operator" => &["--haproxy-instances=default/tcp://127.0.0.1:*"],
            _ => &[],
        };
        let flags = flags.iter().chain(self.lease).chain(more);
        let mut args: Vec<String> = flags.map(|flag| (*flag).to_owned()).collect();
        if let Some(port) = self.admission.get(name) {
            args.push(format!("--admission-address=127.0.0.1:{port}"));
            args.push("--admission-hosts=127.0.0.1".to_owned());
        }
        let told = self.told.get(name).cloned().unwrap_or_default();
        args.extend(told.args);
        let (program, log) = (self.programs.join(name), self.log(name));
        let spec = Spec { program, args, env: told.env, kubeconfig, log };
        self.operators.insert(name, SupervisedProcess::start(spec));
        Ok(())
    }

    /// Ends an operator for good.
    pub fn stop_operator(&mut self, name: &str) {
        self.operators.remove(name);
    }

    /// A running operator.
    ///
    /// # Errors
    ///
    /// If it was not started.
    pub fn operator(&self, name: &str) -> anyhow::Result<&SupervisedProcess> {
        self.operators.get(name).with_context(|| format!("{name} was not started"))
    }

    /// Kills an operator without warning; it runs again when this returns.
    ///
    /// # Errors
    ///
    /// If it does not run.
    pub async fn kill_and_restart(&self, name: &str) -> anyhow::Result<()> {
        self.operator(name)?.restart_with(Signal::KILL).await.map(drop)
    }

    /// Where an operator's log is.
    #[must_use]
    pub fn log(&self, name: &str) -> PathBuf {
        self.plane.dir.path().join(format!("{name}.log"))
    }

    /// The requests of everybody since a place in the audit log, and the place it has come to.
    ///
    /// # Errors
    ///
    /// If the log cannot be read.
    pub fn requests(&self, since: u64) -> anyhow::Result<(Vec<audit::Request>, u64)> {
        audit::since(&self.plane.dir.path().join("audit.log"), since)
    }

    /// Fails if a shipped role lacked something that an operator asked for.
    ///
    /// # Errors
    ///
    /// If one did; the error is the requests.
    pub fn assert_no_forbidden_requests(&self) -> anyhow::Result<()> {
        let (all, _) = self.requests(0)?;
        let is_forbidden = |r: &&audit::Request| r.is_work() && r.is_unauthorized();
        let forbidden: Vec<_> = all.iter().filter(is_forbidden).collect();
        anyhow::ensure!(forbidden.is_empty(), "a shipped role lacks something: {forbidden:#?}");
        Ok(())
    }

    /// The place that the audit log has come to.
    ///
    /// # Errors
    ///
    /// If the log cannot be read.
    pub fn audit_log_end(&self) -> anyhow::Result<u64> {
        audit::end(&self.plane.dir.path().join("audit.log"))
    }

    /// Objects of a kind in the lab's namespace.
    #[must_use]
    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.plane.admin.clone(), &self.namespace)
    }

    /// The CollaSets.
    #[must_use]
    pub fn sets(&self) -> Api<CollaSet> {
        self.api()
    }

    /// The PodTransitionRules.
    #[must_use]
    pub fn rules(&self) -> Api<PodTransitionRule> {
        self.api()
    }

    /// The Pods.
    #[must_use]
    pub fn pods(&self) -> Api<Pod> {
        self.api()
    }

    /// The Pods of a set.
    ///
    /// # Errors
    ///
    /// If they cannot be listed.
    pub async fn pods_of(&self, set: &str) -> anyhow::Result<Vec<Pod>> {
        Ok(self.pods().list(&ListParams::default().labels(&format!("app={set}"))).await?.items)
    }

    /// Makes a set whose Pods are labelled `app=<name>`.
    ///
    /// # Errors
    ///
    /// If it is refused.
    pub async fn create(&self, name: &str, replicas: usize, image: &str) -> anyhow::Result<()> {
        self.create_with(name, replicas, image, &json!({})).await
    }

    /// Makes a set with more said in its spec.
    ///
    /// # Errors
    ///
    /// If it is refused.
    pub async fn create_with(
        &self,
        name: &str,
        replicas: usize,
        image: &str,
        more: &Value,
    ) -> anyhow::Result<()> {
        let mut spec = json!({
            "replicas": replicas,
            "selector": { "matchLabels": { "app": name } },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": { "terminationGracePeriodSeconds": 0, "containers": [{ "name": "web", "image": image }] },
            },
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        let set = serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec }))?;
        self.sets().create(&PostParams::default(), &set).await?;
        Ok(())
    }

    /// Makes a Service under control, and waits until it is held: from then on it holds its Pods.
    ///
    /// # Errors
    ///
    /// If it is refused, or that takes too long.
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
        let held = async || {
            let finalizers = services.get(name).await?.metadata.finalizers.unwrap_or_default();
            Ok(finalizers.iter().any(|finalizer| finalizer == CLEAN_FINALIZER))
        };
        eventually(TIMEOUT, held).await.with_context(|| format!("waiting for {name} to be held"))
    }

    /// Makes a rule about the Pods that a selector selects, and waits until it is enforced.
    ///
    /// # Errors
    ///
    /// If it is refused, or that takes too long.
    pub async fn create_rule(&self, name: &str, selector: Value, kinds: Value) -> anyhow::Result<()> {
        let spec = json!({ "selector": selector, "rules": kinds });
        let rule = serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec }))?;
        self.rules().create(&PostParams::default(), &rule).await?;
        self.wait_for_rule(name, |_| true).await
    }

    /// Waits until a rule's status is of its current spec and `holds`.
    ///
    /// # Errors
    ///
    /// If that takes too long; the error is the status.
    pub async fn wait_for_rule(
        &self,
        name: &str,
        holds: impl Fn(&PodTransitionRuleStatus) -> bool,
    ) -> anyhow::Result<()> {
        let waited = eventually(TIMEOUT, async || {
            let rule = self.rules().get(name).await?;
            let current = |s: &PodTransitionRuleStatus| {
                Some(s.observed_generation) == rule.metadata.generation
            };
            Ok(rule.status.as_ref().is_some_and(|s| current(s) && holds(s)))
        });
        if waited.await.is_err() {
            bail!("{name} after {TIMEOUT:?}: {:#?}", self.rules().get(name).await?.status);
        }
        Ok(())
    }

    /// Waits until one of its rules holds back a Pod for a reason.
    ///
    /// # Errors
    ///
    /// If that takes too long; the error is the status.
    pub async fn wait_until_rejected(&self, rule: &str, by: &str, reason: &str) -> anyhow::Result<()> {
        self.wait_for_rule(rule, |status| {
            let mut infos = status.details.iter().flat_map(|detail| &detail.reject_info);
            infos.any(|info| info.rule_name == by && info.reason.contains(reason))
        })
        .await
    }

    /// Makes a set with more said in its spec, and waits until all its Pods serve.
    ///
    /// # Errors
    ///
    /// If it is refused, or that takes too long.
    pub async fn create_and_wait(&self, name: &str, replicas: i32, more: &Value) -> anyhow::Result<()> {
        self.create_with(name, usize::try_from(replicas)?, "nginx:1", more).await?;
        self.wait_for_replicas(name, [replicas; 4]).await
    }

    /// Merges a change into a set.
    ///
    /// # Errors
    ///
    /// If it is refused.
    pub async fn patch(&self, name: &str, spec: Value) -> anyhow::Result<()> {
        self.sets()
            .patch(name, &PatchParams::default(), &Patch::Merge(json!({ "spec": spec })))
            .await?;
        Ok(())
    }

    /// Gives a set another image.
    ///
    /// # Errors
    ///
    /// If it is refused.
    pub async fn set_image(&self, name: &str, image: &str) -> anyhow::Result<()> {
        let containers = json!([{ "name": "web", "image": image }]);
        self.patch(name, json!({ "template": { "spec": { "containers": containers } } })).await
    }

    /// Waits until the set's status is of its current spec and `holds`.
    ///
    /// # Errors
    ///
    /// If that takes too long; the error is the status.
    pub async fn wait_for_status(
        &self,
        name: &str,
        within: Duration,
        holds: impl Fn(&CollaSetStatus) -> bool,
    ) -> anyhow::Result<()> {
        let waited = eventually(within, async || {
            let set = self.sets().get(name).await?;
            let current =
                |s: &CollaSetStatus| Some(s.observed_generation) == set.metadata.generation;
            Ok(set.status.as_ref().is_some_and(|s| current(s) && holds(s)))
        });
        if waited.await.is_err() {
            bail!("{name} after {within:?}: {:#?}", self.sets().get(name).await?.status);
        }
        Ok(())
    }

    /// Waits for replicas, ready, available and updated of a set's status, and for as many live Pods:
    /// what the peer's own suite waits for.
    ///
    /// # Errors
    ///
    /// If that takes too long; the error is the status.
    pub async fn wait_for_replicas(&self, name: &str, expected: [i32; 4]) -> anyhow::Result<()> {
        let are = |s: &CollaSetStatus| {
            [s.replicas, s.ready_replicas, s.available_replicas, s.updated_replicas] == expected
        };
        self.wait_for_status(name, TIMEOUT, are).await?;
        let live = async || {
            let pods = self.pods_of(name).await?;
            let live = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).count();
            Ok(i32::try_from(live)? == expected[0])
        };
        eventually(TIMEOUT, live).await.with_context(|| format!("waiting for {expected:?} Pods"))
    }

    /// Merges a change into a Pod's metadata.
    ///
    /// # Errors
    ///
    /// If it is refused.
    pub async fn patch_pod_metadata(&self, name: &str, metadata: Value) -> anyhow::Result<()> {
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        self.pods().patch(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Waits until a Pod is as it should be.
    ///
    /// # Errors
    ///
    /// If that takes too long; the error is the Pod.
    pub async fn wait_for_pod(&self, name: &str, holds: impl Fn(&Pod) -> bool) -> anyhow::Result<()> {
        let waited = eventually(TIMEOUT, async || Ok(holds(&self.pods().get(name).await?))).await;
        if waited.is_err() {
            bail!("{name} after {TIMEOUT:?}: {:#?}", self.pods().get(name).await?);
        }
        Ok(())
    }

    /// Waits until a Pod is gone.
    ///
    /// # Errors
    ///
    /// If that takes too long.
    pub async fn wait_until_deleted(&self, name: &str) -> anyhow::Result<()> {
        let gone = async || Ok(self.pods().get_opt(name).await?.is_none());
        eventually(TIMEOUT, gone).await.with_context(|| format!("waiting for the end of {name}"))
    }

    /// Waits until an object was told of in an event with this reason.
    ///
    /// # Errors
    ///
    /// If that takes too long.
    pub async fn wait_for_event(&self, object: &str, reason: &str) -> anyhow::Result<()> {
        let events: Api<Event> = self.api();
        let told = async || {
            let events = events.list(&ListParams::default()).await?.items;
            Ok(events.iter().any(|event| {
                let regarding = event.regarding.as_ref().and_then(|r| r.name.as_deref());
                event.reason.as_deref() == Some(reason) && regarding == Some(object)
            }))
        };
        let waited = eventually(TIMEOUT, told).await;
        waited.with_context(|| format!("waiting for the event {reason} of {object}"))
    }

    /// Waits until all of a set's Pods are of its template and serve.
    ///
    /// # Errors
    ///
    /// If that takes too long.
    pub async fn wait_until_rolled_out(&self, name: &str, replicas: i32, within: Duration) -> anyhow::Result<()> {
        self.wait_for_status(name, within, |status| is_rolled_out(status, replicas)).await
    }
}

/// The top of this repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The image of a Pod's first container.
#[must_use]
pub fn image(pod: &Pod) -> &str {
    let first = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    first.and_then(|container| container.image.as_deref()).unwrap_or_default()
}

/// The selector of the Pods of a set that [`TestCluster::create`] makes.
#[must_use]
pub fn app(set: &str) -> Value {
    json!({ "matchLabels": { "app": set } })
}

/// Whether all of a set's Pods are of its template and serve, and nothing is under way.
#[must_use]
pub fn is_rolled_out(status: &CollaSetStatus, replicas: i32) -> bool {
    status.replicas == replicas
        && status.updated_available_replicas == replicas
        && status.operating_replicas == 0
        && status.terminating_replicas == 0
}

/// Where the operators' programs are, for a test: beside the folder that tests are built into.
///
/// # Errors
///
/// If the test is nowhere.
pub fn programs() -> anyhow::Result<PathBuf> {
    let test = std::env::current_exe()?;
    Ok(test.ancestors().nth(2).context("the test is nowhere")?.to_owned())
}

/// Asks again and again until something holds.
///
/// # Errors
///
/// If it does not in time, or asking fails.
pub async fn eventually(
    within: Duration,
    holds: impl AsyncFn() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let until = Instant::now() + within;
    while !holds().await? {
        if Instant::now() > until {
            bail!("not within {within:?}");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}
