//! Starts HAProxy and Envoy in front of the container processes.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::Context as _;
use podops_api::consist;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};
use serde_json::{Value, json};
use tokio::{
    net::TcpStream,
    process::{Child, Command},
};

use crate::{
    cluster::{TIMEOUT, eventually},
    control_plane::free_ports,
    server,
};

/// Load balancer process; dropping it kills the process.
pub struct Balancer {
    /// Address that accepts requests.
    pub front: SocketAddr,
    program: PathBuf,
    args: Vec<String>,
    log: PathBuf,
    child: Child,
}

impl Balancer {
    async fn start(
        program: PathBuf,
        args: Vec<String>,
        front: SocketAddr,
        log: PathBuf,
    ) -> anyhow::Result<Self> {
        let child = spawn(&program, &args, &log)?;
        let balancer = Self { front, program, args, log, child };
        balancer.wait_until_listening().await?;
        Ok(balancer)
    }

    async fn wait_until_listening(&self) -> anyhow::Result<()> {
        let listens = async || Ok(TcpStream::connect(self.front).await.is_ok());
        let waited = eventually(TIMEOUT, listens).await;
        waited.with_context(|| {
            format!("{} does not listen; log file: {}", self.program.display(), self.log.display())
        })
    }

    /// Kills the process.
    ///
    /// # Errors
    ///
    /// If it cannot be killed.
    pub async fn stop(&mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }

    /// Kills the process and starts it again with its initial configuration.
    ///
    /// # Errors
    ///
    /// If it does not listen in time.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        self.stop().await?;
        self.child = spawn(&self.program, &self.args, &self.log)?;
        self.wait_until_listening().await
    }
}

fn spawn(program: &Path, args: &[String], log: &Path) -> anyhow::Result<Child> {
    let log = crate::process::log(log)?;
    let mut command = Command::new(program);
    command.args(args).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    command.spawn().with_context(|| format!("starting {}", program.display()))
}

/// Unused local address.
///
/// # Errors
///
/// If no port can be bound.
pub fn free_address() -> anyhow::Result<SocketAddr> {
    let [port] = free_ports()?;
    Ok(local(port))
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// Number of servers for which HAProxy has room.
const SLOTS: usize = 20;

/// HAProxy with free server slots.
pub struct Haproxy {
    /// Process and front address.
    pub balancer: Balancer,
    /// Address of the Runtime API.
    pub runtime: SocketAddr,
}

impl Haproxy {
    /// Starts HAProxy with its configuration and log in `dir`.
    ///
    /// # Errors
    ///
    /// If it does not listen in time.
    pub async fn start(dir: &Path) -> anyhow::Result<Self> {
        Self::with_slots(dir, SLOTS).await
    }

    /// As [`start`](Self::start), with room for this number of servers.
    ///
    /// # Errors
    ///
    /// If it does not listen in time.
    pub async fn with_slots(dir: &Path, slots: usize) -> anyhow::Result<Self> {
        let [front, runtime] = free_ports()?.map(local);
        // Without retries, so that every failed request is counted.
        let config = format!(
            "global\n  stats socket ipv4@{runtime} level admin\n  maxconn 4000\n\
             defaults\n  mode http\n  retries 0\n  timeout connect 1s\n  timeout client 20s\n  timeout server 20s\n\
             frontend web\n  bind {front}\n  default_backend web\n\
             backend web\n  balance roundrobin\n  server-template web 1-{slots} 127.0.0.1:{} disabled\n",
            server::PORT
        );
        let path = dir.join(format!("haproxy-{}.cfg", front.port()));
        std::fs::write(&path, config)?;
        let args = vec!["-db".to_owned(), "-f".to_owned(), path.display().to_string()];
        let log = path.with_extension("log");
        let balancer = Balancer::start(PathBuf::from("haproxy"), args, front, log).await?;
        Ok(Self { balancer, runtime })
    }

    /// Annotations of a Service whose traffic goes through the instances with these Runtime APIs.
    #[must_use]
    pub fn annotations(runtimes: &[SocketAddr]) -> Value {
        let instances: Vec<String> =
            runtimes.iter().map(|address| format!("tcp://{address}")).collect();
        let params = json!({ "instances": instances, "backend": "web", "port": server::PORT });
        json!({ consist::BACKEND: "haproxy", consist::BACKEND_PARAMS: params.to_string() })
    }
}

/// The xDS server, and the certificates with which Envoys connect to it.
pub struct Xds {
    /// Address of the server.
    pub address: SocketAddr,
    /// Directory with the server's `tls.crt` and `tls.key`, and the `ca.crt` of all certificates.
    pub certificates: PathBuf,
}

impl Xds {
    /// Selects a free address and issues certificates for the server and, under `clients/<name>`,
    /// for Envoys of the namespaces with these names.
    ///
    /// # Errors
    ///
    /// If a certificate cannot be issued or written.
    pub fn new(dir: &Path, namespaces: &[&str]) -> anyhow::Result<Self> {
        let xds = Self { address: free_address()?, certificates: dir.join("xds") };
        let ca_key = KeyPair::generate()?;
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // A leaf with the name of its issuer would be taken for self-signed.
        ca.distinguished_name.push(DnType::CommonName, "podops-test-ca");
        std::fs::create_dir_all(&xds.certificates)?;
        std::fs::write(xds.certificates.join("ca.crt"), ca.self_signed(&ca_key)?.pem())?;
        let issuer = Issuer::new(ca, ca_key);
        let server = SanType::IpAddress(xds.address.ip());
        issue(&issuer, server, &xds.certificates)?;
        for namespace in namespaces {
            let id = format!("spiffe://podops.test/ns/{namespace}/sa/envoy");
            issue(&issuer, SanType::URI(id.try_into()?), &xds.client(namespace))?;
        }
        Ok(xds)
    }

    /// Directory with the client certificate for a namespace.
    fn client(&self, namespace: &str) -> PathBuf {
        self.certificates.join("clients").join(namespace)
    }
}

fn issue(issuer: &Issuer<'_, KeyPair>, name: SanType, into: &Path) -> anyhow::Result<()> {
    let mut params = CertificateParams::default();
    params.subject_alt_names.push(name);
    let key = KeyPair::generate()?;
    std::fs::create_dir_all(into)?;
    std::fs::write(into.join("tls.crt"), params.signed_by(&key, issuer)?.pem())?;
    Ok(std::fs::write(into.join("tls.key"), key.serialize_pem())?)
}

/// Starts an Envoy of `namespace` that subscribes to the endpoints of the Service `default/web`,
/// over ADS if `aggregated` or else over a separate EDS stream.
///
/// # Errors
///
/// If it does not listen in time.
pub async fn envoy(xds: &Xds, namespace: &str, aggregated: bool) -> anyhow::Result<Balancer> {
    let front = free_address()?;
    let path = xds.certificates.join(format!("envoy-{}.json", front.port()));
    std::fs::write(&path, envoy_config(front, xds, namespace, aggregated).to_string())?;
    let args = ["--concurrency", "2", "--use-dynamic-base-id", "--log-level", "warning", "-c"];
    let mut args: Vec<String> = args.map(ToOwned::to_owned).to_vec();
    args.push(path.display().to_string());
    Balancer::start(podops_test_programs::envoy()?, args, front, path.with_extension("log")).await
}

fn envoy_config(front: SocketAddr, xds: &Xds, namespace: &str, aggregated: bool) -> Value {
    let client = xds.client(namespace);
    let ca = xds.certificates.join("ca.crt");
    let tls = json!({ "common_tls_context": {
        "tls_certificates": [{
            "certificate_chain": { "filename": client.join("tls.crt") },
            "private_key": { "filename": client.join("tls.key") },
        }],
        "validation_context": { "trusted_ca": { "filename": ca } },
    } });
    let at = |address: SocketAddr| json!({ "socket_address": { "address": address.ip().to_string(), "port_value": address.port() } });
    let typed = |name: &str, rest: Value| {
        let mut typed = rest;
        typed["@type"] = json!(format!("type.googleapis.com/envoy.extensions.{name}"));
        typed
    };
    let fast_retry = json!({ "retry_back_off": { "base_interval": "0.1s", "max_interval": "1s" } });
    let operator =
        json!([{ "envoy_grpc": { "cluster_name": "podops", "retry_policy": fast_retry } }]);
    let source =
        json!({ "api_type": "GRPC", "transport_api_version": "V3", "grpc_services": operator });
    let router = typed("filters.http.router.v3.Router", json!({}));
    // Without retries, so that every failed request is counted.
    let manager = json!({
        "stat_prefix": "web",
        "route_config": { "virtual_hosts": [{ "name": "web", "domains": ["*"], "routes": [
            { "match": { "prefix": "/" }, "route": { "cluster": "web", "timeout": "20s" } },
        ] }] },
        "http_filters": [{ "name": "envoy.filters.http.router", "typed_config": router }],
    });
    let manager =
        typed("filters.network.http_connection_manager.v3.HttpConnectionManager", manager);
    let tls = typed("transport_sockets.tls.v3.UpstreamTlsContext", tls);
    let http2 = json!({ "explicit_http_config": { "http2_protocol_options": {} } });
    let http2 = typed("upstreams.http.v3.HttpProtocolOptions", http2);
    let endpoints = if aggregated {
        json!({ "resource_api_version": "V3", "ads": {} })
    } else {
        json!({ "resource_api_version": "V3", "api_config_source": source })
    };
    let dynamic = if aggregated { json!({ "ads_config": source }) } else { json!({}) };
    json!({
        "dynamic_resources": dynamic,
        "node": { "id": format!("envoy-{}", front.port()), "cluster": "lab" },
        "cluster_manager": { "load_stats_config": source.clone() },
        "static_resources": {
            "listeners": [{ "name": "web", "address": at(front), "filter_chains": [{ "filters": [
                { "name": "envoy.filters.network.http_connection_manager", "typed_config": manager },
            ] }] }],
            "clusters": [
                {
                    "name": "web", "type": "EDS", "connect_timeout": "1s",
                    "eds_cluster_config": {
                        "service_name": "Service/default/web",
                        "eds_config": endpoints,
                    },
                },
                {
                    "name": "podops", "type": "STATIC", "connect_timeout": "1s",
                    "transport_socket": { "name": "envoy.transport_sockets.tls", "typed_config": tls },
                    "typed_extension_protocol_options":
                        { "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http2 },
                    "load_assignment": { "cluster_name": "podops", "endpoints": [
                        { "lb_endpoints": [{ "endpoint": { "address": at(xds.address) } }] },
                    ] },
                },
            ],
        },
    })
}
