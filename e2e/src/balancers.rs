//! Real load balancers in front of real containers.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::Context as _;
use podops_api::consist;
use serde_json::{Value, json};
use tokio::{
    net::TcpStream,
    process::{Child, Command},
};

use crate::{
    cluster::{TIMEOUT, eventually},
    control_plane::free_ports,
    programs, server,
};

/// A load balancer; it ends with this.
pub struct Balancer {
    /// Where it takes requests.
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
        balancer.until_up().await?;
        Ok(balancer)
    }

    async fn until_up(&self) -> anyhow::Result<()> {
        let listens = async || Ok(TcpStream::connect(self.front).await.is_ok());
        let up = eventually(TIMEOUT, listens).await;
        up.with_context(|| {
            format!("{} does not listen; its log: {}", self.program.display(), self.log.display())
        })
    }

    /// Kills it.
    ///
    /// # Errors
    ///
    /// If it cannot be.
    pub async fn stop(&mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }

    /// Kills it and starts it anew, with all forgotten that it was told.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        self.stop().await?;
        self.child = spawn(&self.program, &self.args, &self.log)?;
        self.until_up().await
    }
}

fn spawn(program: &Path, args: &[String], log: &Path) -> anyhow::Result<Child> {
    let log = crate::process::log(log)?;
    let mut command = Command::new(program);
    command.args(args).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    command.spawn().with_context(|| format!("starting {}", program.display()))
}

/// An address where nobody listens.
///
/// # Errors
///
/// If there is none.
pub fn free_address() -> anyhow::Result<SocketAddr> {
    let [port] = free_ports()?;
    Ok(local(port))
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// HAProxy with free slots.
pub struct Haproxy {
    /// The process.
    pub balancer: Balancer,
    /// Where its Runtime API is.
    pub runtime: SocketAddr,
}

impl Haproxy {
    /// Starts one that keeps its files in `dir`.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub async fn start(dir: &Path) -> anyhow::Result<Self> {
        let [front, runtime] = free_ports()?.map(local);
        // No retries: what fails, fails.
        let config = format!(
            "global\n  stats socket ipv4@{runtime} level admin\n  maxconn 4000\n\
             defaults\n  mode http\n  retries 0\n  timeout connect 1s\n  timeout client 20s\n  timeout server 20s\n\
             frontend web\n  bind {front}\n  default_backend web\n\
             backend web\n  balance roundrobin\n  server-template web 1-20 127.0.0.1:{} disabled\n",
            server::PORT
        );
        let path = dir.join(format!("haproxy-{}.cfg", front.port()));
        std::fs::write(&path, config)?;
        let args = vec!["-db".to_owned(), "-f".to_owned(), path.display().to_string()];
        let log = path.with_extension("log");
        let balancer = Balancer::start(PathBuf::from("haproxy"), args, front, log).await?;
        Ok(Self { balancer, runtime })
    }

    /// What a Service says whose traffic goes through these.
    #[must_use]
    pub fn annotations(runtimes: &[SocketAddr]) -> Value {
        let instances: Vec<String> = runtimes.iter().map(|at| format!("tcp://{at}")).collect();
        let params = json!({ "instances": instances, "backend": "web", "port": server::PORT });
        json!({ consist::BACKEND: "haproxy", consist::BACKEND_PARAMS: params.to_string() })
    }
}

/// Starts an Envoy that asks `xds` for the endpoints of a Service called `web`, by a stream of its own or
/// by an aggregated one.
///
/// # Errors
///
/// If it does not come up.
pub async fn envoy(dir: &Path, xds: SocketAddr, aggregated: bool) -> anyhow::Result<Balancer> {
    let front = free_address()?;
    let path = dir.join(format!("envoy-{}.json", front.port()));
    std::fs::write(&path, envoy_config(front, xds, aggregated).to_string())?;
    let args = [
        "--max-concurrent-reconciles",
        "2",
        "--use-dynamic-base-id",
        "--log-level",
        "warning",
        "-c",
    ];
    let mut args: Vec<String> = args.map(ToOwned::to_owned).to_vec();
    args.push(path.display().to_string());
    Balancer::start(programs::envoy()?, args, front, path.with_extension("log")).await
}

fn envoy_config(front: SocketAddr, xds: SocketAddr, aggregated: bool) -> Value {
    let at = |address: SocketAddr| json!({ "socket_address": { "address": address.ip().to_string(), "port_value": address.port() } });
    let typed = |name: &str, rest: Value| {
        let mut typed = rest;
        typed["@type"] = json!(format!("type.googleapis.com/envoy.extensions.{name}"));
        typed
    };
    let often = json!({ "retry_back_off": { "base_interval": "0.1s", "max_interval": "1s" } });
    let operator = json!([{ "envoy_grpc": { "cluster_name": "podops", "retry_policy": often } }]);
    let asks =
        json!({ "api_type": "GRPC", "transport_api_version": "V3", "grpc_services": operator });
    let router = typed("filters.http.router.v3.Router", json!({}));
    // No retries: what fails, fails.
    let manager = json!({
        "stat_prefix": "web",
        "route_config": { "virtual_hosts": [{ "name": "web", "domains": ["*"], "routes": [
            { "match": { "prefix": "/" }, "route": { "cluster": "web", "timeout": "20s" } },
        ] }] },
        "http_filters": [{ "name": "envoy.filters.http.router", "typed_config": router }],
    });
    let manager =
        typed("filters.network.http_connection_manager.v3.HttpConnectionManager", manager);
    let http2 = json!({ "explicit_http_config": { "http2_protocol_options": {} } });
    let http2 = typed("upstreams.http.v3.HttpProtocolOptions", http2);
    let endpoints = if aggregated {
        json!({ "resource_api_version": "V3", "ads": {} })
    } else {
        json!({ "resource_api_version": "V3", "api_config_source": asks })
    };
    let dynamic = if aggregated { json!({ "ads_config": asks }) } else { json!({}) };
    json!({
        "dynamic_resources": dynamic,
        "node": { "id": format!("envoy-{}", front.port()), "cluster": "lab" },
        "cluster_manager": { "load_stats_config": asks.clone() },
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
                    "typed_extension_protocol_options":
                        { "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http2 },
                    "load_assignment": { "cluster_name": "podops", "endpoints": [
                        { "lb_endpoints": [{ "endpoint": { "address": at(xds) } }] },
                    ] },
                },
            ],
        },
    })
}
