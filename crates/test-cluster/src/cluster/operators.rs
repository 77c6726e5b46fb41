//! Operators of a test cluster: their settings, starts, leaders and addresses.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use k8s_openapi::api::{
    coordination::v1::{Lease, LeaseSpec},
    core::v1::ServiceAccount,
};
use kube::{Api, api::PostParams};
use serde_json::json;

use super::{OPERATORS, TIMEOUT, TestCluster, eventually};
use crate::{
    operator_processes::shipped_env,
    process::{Signal, Spec, SupervisedProcess},
};

/// Operators with admission webhooks.
pub(super) const WITH_WEBHOOKS: [&str; 2] = ["lifecycle-operator", "transition-rule-operator"];

/// Leader election of operators with a standby, which waits for a Lease to expire. Under load, a
/// Lease with so short timeouts is lost: requests of the leader are cancelled, and it restarts.
const WITH_STANDBY: &[&str] = &[
    "--leader-elect-lease-duration=4s",
    "--leader-elect-renew-deadline=3s",
    "--leader-elect-retry-period=750ms",
];

/// Identity of the second instance of an operator.
const STANDBY: &str = "standby";

impl TestCluster {
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

    /// Sets a memory limit, in MiB, that differs from the one in the operator's shipped Deployment,
    /// as for a cluster of more objects than that one is for.
    pub fn set_memory_limit(&mut self, operator: &'static str, mebibytes: f64) {
        self.operators.limits.insert(operator, mebibytes);
    }

    /// Uses short leader election timeouts, from the operators' next start on, so that a standby
    /// soon takes over.
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

    /// Lets webhook rules call only the addresses that the shipped flags permit, from the next
    /// start of transition-rule-operator on; otherwise also those of the tests' services.
    pub fn restrict_webhooks(&mut self) {
        self.are_webhooks_restricted = true;
    }

    /// Makes admission webhooks require the API server's client certificate, from the operators'
    /// next start on.
    pub fn require_client_certificates(&mut self) {
        let ca = self.plane.dir.path().join("ca.crt").display().to_string();
        for operator in WITH_WEBHOOKS {
            self.add_env(operator, &[("PODOPS_ADMISSION_CLIENT_CA_FILE", ca.clone())]);
        }
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

    pub(super) async fn wait_for_leader(&self, name: &str) -> anyhow::Result<()> {
        let leads = async || Ok(!self.leader(name).await?.is_empty());
        let waited = eventually(TIMEOUT, leads).await;
        waited.with_context(|| format!("waiting for a leader of {name}"))
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
    pub(super) async fn spec(&self, name: &'static str) -> anyhow::Result<Spec> {
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
}
