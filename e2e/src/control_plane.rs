//! A real etcd, kube-apiserver and kube-controller-manager on 127.0.0.1, with real certificates and
//! the audit log on.

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, bail};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tokio::process::{Child, Command};

/// The Kubernetes version that is built when none is found; `e2e/controlplane/go.mod` pins it.
const VERSION: &str = "v1.36.3";

const AUDIT_POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  nonResourceURLs: ['*']
- level: Metadata
";

/// Where the programs are.
pub struct Programs {
    etcd: PathBuf,
    apiserver: PathBuf,
    controller_manager: PathBuf,
    /// kubectl.
    pub kubectl: PathBuf,
}

impl Programs {
    /// Finds the programs: in `KUBEBUILDER_ASSETS`, on `PATH`, in their own cache; else builds them
    /// from Go modules into the cache, which takes some minutes.
    ///
    /// # Errors
    ///
    /// If one is found nowhere and cannot be built.
    pub fn find() -> anyhow::Result<Self> {
        Ok(Self {
            etcd: find("etcd", "go.etcd.io/etcd/server/v3")?,
            apiserver: find("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver")?,
            controller_manager: find(
                "kube-controller-manager",
                "k8s.io/kubernetes/cmd/kube-controller-manager",
            )?,
            kubectl: find("kubectl", "k8s.io/kubernetes/cmd/kubectl")?,
        })
    }
}

fn find(name: &str, package: &str) -> anyhow::Result<PathBuf> {
    let assets = std::env::var_os("KUBEBUILDER_ASSETS").map(|dir| PathBuf::from(dir).join(name));
    if let Some(found) = assets.filter(|path| path.is_file()) {
        return Ok(found);
    }
    if let Ok(found) = which::which(name) {
        return Ok(found);
    }
    let home = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))
        .context("neither XDG_CACHE_HOME nor HOME is set")?;
    let cached = home.join("podops").join(VERSION).join(name);
    if !cached.is_file() {
        build(package, &cached)?;
    }
    Ok(cached)
}

/// Builds a program next to its place and moves it there, so that a build that is cut off leaves
/// nothing that looks like a program.
fn build(package: &str, to: &Path) -> anyhow::Result<()> {
    eprintln!("==> building {package} from Go modules; this is done once and takes some minutes");
    let at = Path::new(env!("CARGO_MANIFEST_DIR")).join("controlplane");
    std::fs::create_dir_all(to.parent().context("the cache has no parent")?)?;
    let partial = to.with_extension("partial");
    let version = "k8s.io/component-base/version";
    let flags = format!(
        "-s -w -X {version}.gitVersion={VERSION} -X {version}.gitMajor=1 -X {version}.gitMinor=36"
    );
    let status = std::process::Command::new("go")
        .current_dir(at)
        .args(["build", "-trimpath", "-ldflags", &flags, "-o"])
        .arg(&partial)
        .arg(package)
        .status()
        .context("starting go")?;
    if !status.success() {
        bail!("go build {package} failed");
    }
    Ok(std::fs::rename(partial, to)?)
}

/// A running control plane; it ends when it is dropped.
pub struct ControlPlane {
    /// Where its files are.
    pub dir: tempfile::TempDir,
    /// The programs it runs.
    pub programs: Programs,
    /// The API server's address.
    pub server: String,
    /// The client of an administrator.
    pub admin: Client,
    _children: Vec<Child>,
}

impl ControlPlane {
    /// Starts one.
    ///
    /// # Errors
    ///
    /// If a program is missing or does not get ready.
    #[allow(clippy::too_many_lines, reason = "most of them are flags")]
    pub async fn start() -> anyhow::Result<Self> {
        let programs = tokio::task::spawn_blocking(Programs::find).await??;
        let mut dir = tempfile::tempdir()?;
        // For looking at what went wrong: logs, the audit log and kubeconfigs stay.
        dir.disable_cleanup(std::env::var_os("PODOPS_KEEP").is_some());
        let at = |name: &str| dir.path().join(name).display().to_string();
        issue_certificates(dir.path())?;
        std::fs::write(dir.path().join("audit-policy.yaml"), AUDIT_POLICY)?;
        let [clients, peers, port] = free_ports()?;
        let etcd = format!("http://127.0.0.1:{clients}");
        let peer = format!("http://127.0.0.1:{peers}");
        let server = format!("https://127.0.0.1:{port}");
        write_kubeconfig(&dir.path().join("admin.kubeconfig"), dir.path(), &server, None)?;
        let mut children = Vec::new();
        children.push(spawn(
            &programs.etcd,
            dir.path(),
            &[
                ("data-dir", &at("etcd")),
                ("listen-client-urls", &etcd),
                ("advertise-client-urls", &etcd),
                ("listen-peer-urls", &peer),
                ("initial-advertise-peer-urls", &peer),
                ("initial-cluster", &format!("default={peer}")),
                ("unsafe-no-fsync", "true"),
                ("log-level", "warn"),
            ],
        )?);
        children.push(spawn(
            &programs.apiserver,
            dir.path(),
            &[
                ("etcd-servers", &etcd),
                ("secure-port", &port.to_string()),
                ("bind-address", "127.0.0.1"),
                ("tls-cert-file", &at("server.crt")),
                ("tls-private-key-file", &at("server.key")),
                ("client-ca-file", &at("ca.crt")),
                ("cert-dir", &at("certs")),
                ("service-account-issuer", "https://podops.test"),
                ("service-account-key-file", &at("sa.pub")),
                ("service-account-signing-key-file", &at("sa.key")),
                ("authorization-mode", "RBAC"),
                ("service-cluster-ip-range", "10.0.0.0/16"),
                ("audit-policy-file", &at("audit-policy.yaml")),
                ("audit-log-path", &at("audit.log")),
                ("max-requests-inflight", "2000"),
                ("max-mutating-requests-inflight", "1000"),
            ],
        )?);
        let admin = connect(&dir.path().join("admin.kubeconfig")).await?;
        if let Err(error) = wait_ready(&admin).await {
            let said =
                std::fs::read_to_string(dir.path().join("kube-apiserver.log")).unwrap_or_default();
            let end: Vec<&str> = said.lines().rev().take(5).collect();
            return Err(error
                .context(format!("waiting for kube-apiserver, which said: {}", end.join(" | "))));
        }
        children.push(spawn(
            &programs.controller_manager,
            dir.path(),
            &[
                ("kubeconfig", &at("admin.kubeconfig")),
                ("leader-elect", "false"),
                ("secure-port", "0"),
                ("controllers", "*,-node-lifecycle-controller,-node-ipam-controller"),
                ("service-account-private-key-file", &at("sa.key")),
                ("root-ca-file", &at("ca.crt")),
                ("kube-api-qps", "500"),
                ("kube-api-burst", "1000"),
            ],
        )?);
        Ok(Self { dir, programs, server, admin, _children: children })
    }

    /// A kubeconfig for a bearer token.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn kubeconfig(&self, name: &str, token: &str) -> anyhow::Result<PathBuf> {
        let path = self.dir.path().join(format!("{name}.kubeconfig"));
        write_kubeconfig(&path, self.dir.path(), &self.server, Some(token))?;
        Ok(path)
    }

    /// Runs kubectl as an administrator.
    ///
    /// # Errors
    ///
    /// If it fails; the error is what it said.
    pub async fn kubectl(&self, args: &[&str]) -> anyhow::Result<String> {
        let mut command = Command::new(&self.programs.kubectl);
        command.arg("--kubeconfig").arg(self.dir.path().join("admin.kubeconfig")).args(args);
        let output = command.output().await?;
        if !output.status.success() {
            bail!("kubectl {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

fn spawn(program: &Path, dir: &Path, flags: &[(&str, &str)]) -> anyhow::Result<Child> {
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let log = std::fs::File::create(dir.join(format!("{name}.log")))?;
    let mut command = Command::new(program);
    command.args(flags.iter().map(|(flag, value)| format!("--{flag}={value}")));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).kill_on_drop(true);
    command.spawn().with_context(|| format!("starting {name}"))
}

/// Three ports that nobody listens on; taken together, so that they differ.
fn free_ports() -> anyhow::Result<[u16; 3]> {
    let bind = || TcpListener::bind("127.0.0.1:0");
    let held = [bind()?, bind()?, bind()?];
    let port = |listener: &TcpListener| listener.local_addr().map(|address| address.port());
    Ok([port(&held[0])?, port(&held[1])?, port(&held[2])?])
}

/// Connects as a kubeconfig says.
///
/// # Errors
///
/// If it cannot be read.
pub async fn connect(kubeconfig: &Path) -> anyhow::Result<Client> {
    let options = KubeConfigOptions::default();
    let config =
        Config::from_custom_kubeconfig(Kubeconfig::read_from(kubeconfig)?, &options).await?;
    Ok(Client::try_from(config)?)
}

async fn wait_ready(client: &Client) -> anyhow::Result<()> {
    for _ in 0..300 {
        if client.request_text(http::Request::get("/readyz").body(Vec::new())?).await.is_ok() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    bail!("not ready within a minute")
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
    for (name, params) in [("server", server), ("admin", admin)] {
        let key = KeyPair::generate()?;
        std::fs::write(dir.join(format!("{name}.crt")), params.signed_by(&key, &issuer)?.pem())?;
        std::fs::write(dir.join(format!("{name}.key")), key.serialize_pem())?;
    }
    let accounts = KeyPair::generate()?;
    std::fs::write(dir.join("sa.pub"), accounts.public_key_pem())?;
    Ok(std::fs::write(dir.join("sa.key"), accounts.serialize_pem())?)
}

fn write_kubeconfig(
    path: &Path,
    dir: &Path,
    server: &str,
    token: Option<&str>,
) -> anyhow::Result<()> {
    let at = |name: &str| dir.join(name).display().to_string();
    let user = token.map_or_else(
        || serde_json::json!({ "client-certificate": at("admin.crt"), "client-key": at("admin.key") }),
        |token| serde_json::json!({ "token": token }),
    );
    let config = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "podops",
        "clusters": [{ "name": "podops", "cluster": { "server": server, "certificate-authority": at("ca.crt") } }],
        "users": [{ "name": "podops", "user": user }],
        "contexts": [{ "name": "podops", "context": { "cluster": "podops", "user": "podops" } }],
    });
    Ok(std::fs::write(path, serde_json::to_string_pretty(&config)?)?)
}
