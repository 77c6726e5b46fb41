//! Runs etcd, kube-apiserver and kube-controller-manager on 127.0.0.1, with TLS, RBAC and an audit
//! log; or connects to an existing cluster.

use std::{
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        LazyLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, bail};
use kube::{
    Client, Config,
    config::{AuthInfo, KubeConfigOptions, Kubeconfig, NamedAuthInfo},
};
use podops_test_programs::Programs;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::Value;
use tokio::process::{Child, Command};

use crate::{
    process::{self, signal},
    relay::Relay,
};

/// File name of the administrator's kubeconfig.
const ADMIN: &str = "admin.kubeconfig";

const AUDIT_POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  nonResourceURLs: ['*']
- level: Metadata
";

/// Directory with the state of etcd.
const ETCD: &str = "etcd";
/// Directory with the last backup of etcd.
const BACKUP: &str = "etcd-backup";

/// Control plane; dropping it stops the processes started for it.
pub struct ControlPlane {
    /// Directory with configuration, certificates and logs.
    pub dir: Directory,
    /// Client with administrator permissions.
    pub admin: Client,
    kubectl: PathBuf,
    kubeconfig: Kubeconfig,
    local: Option<LocalProcesses>,
}

/// Number of attempts to start the control plane: its ports are chosen before the programs bind
/// them, so that another process may take one in between.
const START_ATTEMPTS: usize = 3;

/// Processes of a locally started control plane.
struct LocalProcesses {
    apiserver: Server,
    etcd: Server,
    /// `None` once it was stopped.
    controllers: Option<Server>,
}

impl ControlPlane {
    /// Starts a control plane.
    ///
    /// # Errors
    ///
    /// If a program is missing or does not become ready.
    pub async fn start() -> anyhow::Result<Self> {
        let programs = tokio::task::spawn_blocking(Programs::find).await??;
        let mut attempt = 1;
        loop {
            match Self::start_once(&programs).await {
                Err(error) if attempt < START_ATTEMPTS => {
                    eprintln!("==> starting the control plane again: {error:#}");
                    attempt += 1;
                }
                started => return started,
            }
        }
    }

    async fn start_once(programs: &Programs) -> anyhow::Result<Self> {
        let dir = Directory::create()?;
        issue_certificates(dir.path())?;
        std::fs::write(dir.path().join("audit-policy.yaml"), AUDIT_POLICY)?;
        configure_webhook_client(dir.path())?;
        let [clients, peers, port] = free_ports()?;
        let (etcd, peer) =
            (format!("http://127.0.0.1:{clients}"), format!("http://127.0.0.1:{peers}"));
        let server = format!("https://127.0.0.1:{port}");
        let kubeconfig = admin_kubeconfig(dir.path(), &server)?;
        write(&kubeconfig, &dir.path().join(ADMIN))?;
        let store =
            Server::start(&programs.etcd, dir.path(), etcd_flags(dir.path(), &etcd, &peer))?;
        let mut flags = apiserver_flags(dir.path(), &etcd, port);
        let gates = feature_gates(programs.apiserver_minor()?);
        flags.push(("feature-gates", gates.to_owned()));
        let mut apiserver = Server::start(&programs.apiserver, dir.path(), flags)?;
        let admin = connect(&kubeconfig).await?;
        apiserver.wait_ready(&admin).await?;
        let flags = controller_manager_flags(dir.path());
        let controllers = Server::start(&programs.controller_manager, dir.path(), flags)?;
        let local = Some(LocalProcesses { apiserver, etcd: store, controllers: Some(controllers) });
        Ok(Self { dir, admin, kubectl: programs.kubectl.clone(), kubeconfig, local })
    }

    /// Connects to the cluster of a context in the user's kubeconfig.
    ///
    /// # Errors
    ///
    /// If the context does not exist or the API server cannot be reached.
    pub async fn existing(context: &str) -> anyhow::Result<Self> {
        let kubectl = tokio::task::spawn_blocking(Programs::find_kubectl).await??;
        let dir = Directory::create()?;
        let mut kubeconfig = Kubeconfig::read().context("reading the kubeconfig")?;
        kubeconfig.current_context = Some(context.to_owned());
        write(&kubeconfig, &dir.path().join(ADMIN))?;
        let admin = connect(&kubeconfig).await?;
        admin.apiserver_version().await.with_context(|| format!("reaching {context}"))?;
        Ok(Self { dir, admin, kubectl, kubeconfig, local: None })
    }

    fn local(&self) -> anyhow::Result<&LocalProcesses> {
        self.local.as_ref().context("the control plane was not started by this process")
    }

    fn local_mut(&mut self) -> anyhow::Result<&mut LocalProcesses> {
        self.local.as_mut().context("the control plane was not started by this process")
    }

    /// Ends kube-controller-manager, for a test whose operators need none of its controllers, and
    /// whose objects would keep it busy.
    ///
    /// # Errors
    ///
    /// If the control plane was not started by this process.
    pub fn stop_controllers(&mut self) -> anyhow::Result<()> {
        self.local_mut()?.controllers = None;
        Ok(())
    }

    /// Kills the API server with SIGKILL, and waits until it has exited.
    ///
    /// # Errors
    ///
    /// If it cannot be killed.
    pub async fn kill_apiserver(&mut self) -> anyhow::Result<()> {
        Ok(self.local_mut()?.apiserver.child.kill().await?)
    }

    /// Restarts the API server, and waits until it is ready.
    ///
    /// # Errors
    ///
    /// If it does not become ready.
    pub async fn start_apiserver(&mut self) -> anyhow::Result<()> {
        let restarted = self.local()?.apiserver.restart(self.dir.path())?;
        let admin = self.admin.clone();
        let local = self.local_mut()?;
        local.apiserver = restarted;
        local.apiserver.wait_ready(&admin).await
    }

    /// Copies the state of etcd, as a backup does.
    ///
    /// # Errors
    ///
    /// If it cannot be copied.
    pub fn back_up(&self) -> anyhow::Result<()> {
        let etcd = self.local()?.etcd.child.id();
        signal(etcd, process::Signal::STOP)?;
        let copied = self.copy_state(ETCD, BACKUP);
        signal(etcd, process::Signal::CONT)?;
        copied
    }

    /// Restores the last backup of etcd, and restarts the programs of the control plane.
    ///
    /// # Errors
    ///
    /// If there is no backup, or a program does not start.
    pub async fn restore(&mut self) -> anyhow::Result<()> {
        let local = self.local_mut()?;
        let mut controllers = local.controllers.take().context("no controllers run")?;
        for server in [&mut controllers, &mut local.apiserver, &mut local.etcd] {
            server.child.kill().await?;
        }
        self.copy_state(BACKUP, ETCD)?;
        let etcd = self.local()?.etcd.restart(self.dir.path())?;
        self.local_mut()?.etcd = etcd;
        self.start_apiserver().await?;
        let restarted = controllers.restart(self.dir.path())?;
        self.local_mut()?.controllers = Some(restarted);
        Ok(())
    }

    /// Replaces a directory of etcd's state by a copy of another one.
    fn copy_state(&self, from: &str, to: &str) -> anyhow::Result<()> {
        let [from, to] = [from, to].map(|name| self.dir.path().join(name));
        let mut copy = std::process::Command::new("cp");
        if to.exists() {
            std::fs::remove_dir_all(&to)?;
        }
        let status = copy.arg("-r").args([from, to]).status()?;
        anyhow::ensure!(status.success(), "copying the state of etcd: {status}");
        Ok(())
    }

    /// Suspends the API server with SIGSTOP: connections stay open, requests get no response.
    ///
    /// # Errors
    ///
    /// If it is not running.
    pub fn suspend_apiserver(&self) -> anyhow::Result<()> {
        signal(self.local()?.apiserver.child.id(), process::Signal::STOP)
    }

    /// Resumes a suspended API server.
    ///
    /// # Errors
    ///
    /// If it is not running.
    pub fn resume_apiserver(&self) -> anyhow::Result<()> {
        signal(self.local()?.apiserver.child.id(), process::Signal::CONT)
    }

    /// Administrator's client that does not retry requests, unlike kube's default client.
    ///
    /// # Errors
    ///
    /// If it cannot be configured.
    pub async fn client_without_retries(&self) -> anyhow::Result<Client> {
        let options = KubeConfigOptions::default();
        let mut config = Config::from_custom_kubeconfig(self.kubeconfig.clone(), &options).await?;
        config.default_retry = false;
        Ok(Client::try_from(config)?)
    }

    /// Client of another user, by impersonation.
    ///
    /// # Errors
    ///
    /// If it cannot be configured.
    pub async fn client_as(&self, user: &str) -> anyhow::Result<Client> {
        let options = KubeConfigOptions::default();
        let mut config = Config::from_custom_kubeconfig(self.kubeconfig.clone(), &options).await?;
        config.auth_info.impersonate = Some(user.to_owned());
        Ok(Client::try_from(config)?)
    }

    /// Starts a relay between the API server and the users of kubeconfigs that are written later.
    ///
    /// # Errors
    ///
    /// If the kubeconfig names no address, or no loopback address is free.
    pub async fn start_relay(&mut self) -> anyhow::Result<Relay> {
        let relay = Relay::start(self.server()?).await?;
        let clusters = self.kubeconfig.clusters.iter_mut();
        for cluster in clusters.filter_map(|named| named.cluster.as_mut()) {
            cluster.server = Some(format!("https://{}", relay.address));
        }
        Ok(relay)
    }

    /// Address of the API server.
    ///
    /// # Errors
    ///
    /// If the kubeconfig names no IP address.
    pub fn server(&self) -> anyhow::Result<SocketAddr> {
        let mut clusters =
            self.kubeconfig.clusters.iter().filter_map(|named| named.cluster.as_ref());
        let server = clusters.find_map(|cluster| cluster.server.as_deref()).context("no server")?;
        Ok(server.strip_prefix("https://").context("no address")?.parse()?)
    }

    /// Writes a kubeconfig for a bearer token, and returns its path.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn kubeconfig(&self, name: &str, token: &str) -> anyhow::Result<PathBuf> {
        let mut kubeconfig = self.kubeconfig.clone();
        let current = kubeconfig.current_context.as_deref();
        let context = kubeconfig.contexts.iter_mut().find(|c| Some(c.name.as_str()) == current);
        let context = context.and_then(|c| c.context.as_mut()).context("no current context")?;
        context.user = Some(name.to_owned());
        kubeconfig.auth_infos = vec![NamedAuthInfo {
            name: name.to_owned(),
            auth_info: Some(AuthInfo {
                token: Some(token.to_owned().into()),
                ..AuthInfo::default()
            }),
            ..NamedAuthInfo::default()
        }];
        let path = self.dir.path().join(format!("{name}.kubeconfig"));
        write(&kubeconfig, &path)?;
        Ok(path)
    }

    /// Shell commands that use the cluster with kubectl.
    #[must_use]
    pub fn usage(&self, namespace: &str) -> String {
        format!(
            "\n    export KUBECONFIG={}\n    {} -n {namespace} get collasets,pods",
            self.dir.path().join(ADMIN).display(),
            self.kubectl.display()
        )
    }

    /// Path of the administrator's kubeconfig.
    #[must_use]
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.dir.path().join(ADMIN)
    }

    /// Runs a shell script as administrator, in the root directory of the repository, with kubectl
    /// and these programs in its path; returns its stdout.
    ///
    /// # Errors
    ///
    /// If a command fails; the error contains stdout and stderr.
    pub async fn shell(&self, script: &str, programs: &Path) -> anyhow::Result<String> {
        let kubectl = self.kubectl.parent().context("kubectl has a directory")?;
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        let known = [kubectl.to_owned(), programs.to_owned()];
        let path =
            std::env::join_paths(known.into_iter().chain(std::env::split_paths(&inherited)))?;
        let mut command = Command::new("sh");
        command.args(["-euc", script]).env("PATH", path);
        command.env("KUBECONFIG", self.dir.path().join(ADMIN));
        command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
        let output = command.output().await?;
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            bail!("{script}: {stdout}{}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(stdout)
    }

    /// Creates the object of a manifest, or those of a List, as administrator.
    ///
    /// # Errors
    ///
    /// If the API server rejects one.
    pub async fn create(&self, manifest: &Value) -> anyhow::Result<()> {
        self.create_with(manifest, &[]).await
    }

    /// Creates the object of a manifest, or those of a List, with more flags of kubectl.
    ///
    /// # Errors
    ///
    /// If the API server rejects one; the error contains its message.
    pub async fn create_with(&self, manifest: &Value, flags: &[&str]) -> anyhow::Result<()> {
        let path = tempfile::NamedTempFile::with_suffix_in(".json", self.dir.path())?;
        std::fs::write(&path, manifest.to_string())?;
        let path = path.path().to_str().context("a path that is no text")?;
        self.kubectl(&[&["create", "-f", path], flags].concat()).await?;
        Ok(())
    }

    /// Runs kubectl as administrator, and returns its stdout.
    ///
    /// # Errors
    ///
    /// If kubectl fails; the error contains its stderr.
    pub async fn kubectl(&self, args: &[&str]) -> anyhow::Result<String> {
        let mut command = Command::new(&self.kubectl);
        command.arg("--kubeconfig").arg(self.dir.path().join(ADMIN)).args(args);
        let output = command.output().await?;
        if !output.status.success() {
            bail!("kubectl {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// Controllers to run: all except those that the fake nodes simulate.
const CONTROLLERS: &str = "*,-node-lifecycle-controller,-node-ipam-controller,\
    -persistentvolume-binder-controller,-persistentvolume-attach-detach-controller,\
    -persistentvolume-expander-controller";

type Flags = Vec<(&'static str, String)>;

fn etcd_flags(dir: &Path, etcd: &str, peer: &str) -> Flags {
    vec![
        ("data-dir", at(dir, ETCD)),
        ("listen-client-urls", etcd.to_owned()),
        ("advertise-client-urls", etcd.to_owned()),
        ("listen-peer-urls", peer.to_owned()),
        ("initial-advertise-peer-urls", peer.to_owned()),
        ("initial-cluster", format!("default={peer}")),
        ("unsafe-no-fsync", "true".to_owned()),
        // 10,000 objects of each kind, some of them of a megabyte, do not fit into the default of 2
        // GiB.
        ("quota-backend-bytes", (8_u64 << 30).to_string()),
        ("log-level", "warn".to_owned()),
    ]
}

fn apiserver_flags(dir: &Path, etcd: &str, port: u16) -> Flags {
    vec![
        ("etcd-servers", etcd.to_owned()),
        ("secure-port", port.to_string()),
        ("bind-address", "127.0.0.1".to_owned()),
        ("tls-cert-file", at(dir, "server.crt")),
        ("tls-private-key-file", at(dir, "server.key")),
        ("client-ca-file", at(dir, "ca.crt")),
        ("cert-dir", at(dir, "certs")),
        ("service-account-issuer", "https://podops.test".to_owned()),
        ("service-account-key-file", at(dir, "sa.pub")),
        ("service-account-signing-key-file", at(dir, "sa.key")),
        ("authorization-mode", "RBAC".to_owned()),
        ("service-cluster-ip-range", "10.0.0.0/16".to_owned()),
        ("audit-policy-file", at(dir, "audit-policy.yaml")),
        ("admission-control-config-file", at(dir, "admission.json")),
        ("audit-log-path", at(dir, "audit.log")),
        // No rotation, because the log is read by offset.
        ("audit-log-maxsize", "100000".to_owned()),
        ("allow-privileged", "true".to_owned()),
        ("max-requests-inflight", "2000".to_owned()),
        ("max-mutating-requests-inflight", "1000".to_owned()),
    ]
}

/// Feature gates of kube-apiserver 1.`minor`.
const fn feature_gates(minor: u32) -> &'static str {
    if minor < 34 {
        // Otherwise, it opens commands in containers by SPDY, which the simulated kubelets do not
        // serve.
        "TranslateStreamCloseWebsocketRequests=false"
    } else {
        // The comparison of the caches with etcd lists everything every five minutes: a third of a
        // CPU with 200,000 objects.
        "DetectCacheInconsistency=false"
    }
}

fn controller_manager_flags(dir: &Path) -> Flags {
    vec![
        ("kubeconfig", at(dir, ADMIN)),
        ("leader-elect", "false".to_owned()),
        ("secure-port", "0".to_owned()),
        ("controllers", CONTROLLERS.to_owned()),
        // As in production clusters, each controller has its own ServiceAccount and role.
        ("use-service-account-credentials", "true".to_owned()),
        ("service-account-private-key-file", at(dir, "sa.key")),
        ("root-ca-file", at(dir, "ca.crt")),
        ("kube-api-qps", "500".to_owned()),
        ("kube-api-burst", "1000".to_owned()),
        ("horizontal-pod-autoscaler-sync-period", "2s".to_owned()),
    ]
}

fn at(dir: &Path, name: &str) -> String {
    dir.join(name).display().to_string()
}

/// Running control plane program.
struct Server {
    program: PathBuf,
    flags: Flags,
    child: Child,
}

impl Server {
    fn start(program: &Path, dir: &Path, flags: Flags) -> anyhow::Result<Self> {
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let log = process::log(&dir.join(format!("{name}.log")))?;
        let mut command = Command::new(program);
        command.args(flags.iter().map(|(flag, value)| format!("--{flag}={value}")));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).kill_on_drop(true);
        // With Go's default of 100, a quarter of the API server's CPU time is garbage collection,
        // because its heap is small in tests.
        command.env("GOGC", "400");
        // Above this, as with 100,000 objects, memory matters more. Much below the size of 200,000
        // random objects, garbage collection takes all of the time.
        command.env("GOMEMLIMIT", "14GiB");
        let child = command.spawn().with_context(|| format!("starting {name}"))?;
        Ok(Self { program: program.to_owned(), flags, child })
    }

    /// Starts the program again with the same flags.
    fn restart(&self, dir: &Path) -> anyhow::Result<Self> {
        Self::start(&self.program, dir, self.flags.clone())
    }

    /// Waits until the API server reports ready.
    async fn wait_ready(&mut self, client: &Client) -> anyhow::Result<()> {
        for _ in 0..300 {
            if let Some(status) = self.child.try_wait()? {
                bail!("kube-apiserver exited before it was ready: {status}");
            }
            if client.request_text(http::Request::get("/readyz").body(Vec::new())?).await.is_ok() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        bail!("kube-apiserver not ready after 60s")
    }
}

/// Ports that [`free_ports`] returns: outside the range from which outgoing connections take
/// theirs, because a server may bind its port seconds later.
const PORTS: std::ops::Range<u16> = 10_000..32_000;

/// Number of ports tried so far, beginning at another one in each process.
static TRIED: LazyLock<AtomicUsize> =
    LazyLock::new(|| AtomicUsize::new(std::process::id() as usize * 97));

/// Unused ports, each of which is returned once in a process.
///
/// # Errors
///
/// If there are none.
pub fn free_ports<const COUNT: usize>() -> anyhow::Result<[u16; COUNT]> {
    let mut ports = [0; COUNT];
    let mut missing = ports.iter_mut();
    let mut next = missing.next();
    for _ in PORTS {
        let Some(port) = next else { return Ok(ports) };
        let tried = TRIED.fetch_add(1, Ordering::Relaxed) % PORTS.len();
        let candidate = PORTS.start + u16::try_from(tried)?;
        next = if TcpListener::bind(("127.0.0.1", candidate)).is_ok() {
            *port = candidate;
            missing.next()
        } else {
            Some(port)
        };
    }
    bail!("no free ports")
}

async fn connect(kubeconfig: &Kubeconfig) -> anyhow::Result<Client> {
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig.clone(), &options).await?;
    Ok(Client::try_from(config)?)
}

/// True if directories of control planes remain when they end.
static KEEPS_DIRECTORIES: AtomicBool = AtomicBool::new(false);

/// Keeps the directories of the control planes of this process, with logs, audit logs and
/// kubeconfigs, because a scenario has failed.
pub fn keep_directories() {
    KEEPS_DIRECTORIES.store(true, Ordering::Relaxed);
}

/// Temporary directory of a control plane, which is removed on drop unless `PODOPS_KEEP` is set or
/// a scenario has failed.
pub struct Directory(tempfile::TempDir);

impl Directory {
    fn create() -> anyhow::Result<Self> {
        let directory = Self(tempfile::tempdir()?);
        eprintln!("==> logs: {}", directory.path().display());
        Ok(directory)
    }

    /// Path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let keep = KEEPS_DIRECTORIES.load(Ordering::Relaxed)
            || std::thread::panicking()
            || std::env::var_os("PODOPS_KEEP").is_some();
        self.0.disable_cleanup(keep);
    }
}

fn issue_certificates(dir: &Path) -> anyhow::Result<()> {
    let ca_key = KeyPair::generate()?;
    let mut ca = CertificateParams::default();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.distinguished_name.push(DnType::CommonName, "podops-test-ca");
    std::fs::write(dir.join("ca.crt"), ca.self_signed(&ca_key)?.pem())?;
    let issuer = Issuer::new(ca, ca_key);
    let mut server = CertificateParams::new(vec![
        "127.0.0.1".to_owned(),
        "localhost".to_owned(),
        "kubernetes.default.svc".to_owned(),
    ])?;
    server.distinguished_name.push(DnType::CommonName, "kube-apiserver");
    let mut admin = CertificateParams::default();
    admin.distinguished_name.push(DnType::CommonName, "admin");
    admin.distinguished_name.push(DnType::OrganizationName, "system:masters");
    let mut webhooks = CertificateParams::default();
    webhooks.distinguished_name.push(DnType::CommonName, "kube-apiserver-webhooks");
    for (name, params) in [("server", server), ("admin", admin), ("webhooks", webhooks)] {
        let key = KeyPair::generate()?;
        std::fs::write(dir.join(format!("{name}.crt")), params.signed_by(&key, &issuer)?.pem())?;
        std::fs::write(dir.join(format!("{name}.key")), key.serialize_pem())?;
    }
    let accounts = KeyPair::generate()?;
    std::fs::write(dir.join("sa.pub"), accounts.public_key_pem())?;
    Ok(std::fs::write(dir.join("sa.key"), accounts.serialize_pem())?)
}

/// Writes the configuration with which the API server presents a client certificate to webhooks
/// that request one.
fn configure_webhook_client(dir: &Path) -> anyhow::Result<()> {
    let client = serde_json::json!({
        "apiVersion": "v1", "kind": "Config",
        "users": [{ "name": "*", "user": {
            "client-certificate": at(dir, "webhooks.crt"), "client-key": at(dir, "webhooks.key"),
        } }],
    });
    std::fs::write(dir.join("webhooks.kubeconfig"), client.to_string())?;
    let configuration = serde_json::json!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "WebhookAdmissionConfiguration",
        "kubeConfigFile": at(dir, "webhooks.kubeconfig"),
    });
    let plugin = serde_json::json!({
        "name": "ValidatingAdmissionWebhook", "configuration": configuration,
    });
    let admission = serde_json::json!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration",
        "plugins": [plugin],
    });
    Ok(std::fs::write(dir.join("admission.json"), admission.to_string())?)
}

fn admin_kubeconfig(dir: &Path, server: &str) -> anyhow::Result<Kubeconfig> {
    let config = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "podops",
        "clusters": [{ "name": "podops", "cluster": { "server": server, "certificate-authority": at(dir, "ca.crt") } }],
        "users": [{ "name": "podops", "user": { "client-certificate": at(dir, "admin.crt"), "client-key": at(dir, "admin.key") } }],
        "contexts": [{ "name": "podops", "context": { "cluster": "podops", "user": "podops" } }],
    });
    Ok(serde_json::from_value(config)?)
}

fn write(kubeconfig: &Kubeconfig, path: &Path) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(kubeconfig)?;
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}
