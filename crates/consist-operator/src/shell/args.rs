//! What only this operator is told at its start.

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;

/// What only this operator is told at its start.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Traffic")]
pub struct ConsistArgs {
    /// Kinds beside Services whose objects send traffic to Pods: a YAML file, a list of `apiVersion`,
    /// `kind`, `podSelector` (a JSON path) and `labelSelector`
    #[arg(long, env = "PODOPS_EMPLOYER_KINDS", value_name = "FILE")]
    pub employer_kinds: Option<PathBuf>,
    /// The Runtime APIs of HAProxy that employers may name, as `<namespace>/tcp://<address>:<port>` or
    /// `<namespace>/unix://<path>`; a `*` at the end of either part stands for the rest
    #[arg(long, env = "PODOPS_HAPROXY_INSTANCES", value_delimiter = ',', value_name = "INSTANCES")]
    pub haproxy_instances: Vec<String>,
    /// Where Envoys are served the endpoints of employers; nowhere without it
    #[arg(long, env = "PODOPS_XDS_ADDRESS", value_name = "ADDRESS")]
    pub xds_address: Option<SocketAddr>,
    /// A directory with `tls.crt` and `tls.key` of this end, and the `ca.crt` that Envoys' certificates
    /// are checked by; Envoys are served in plain text without it
    #[arg(long, env = "PODOPS_XDS_TLS", value_name = "DIRECTORY", requires = "xds_address")]
    pub xds_tls: Option<PathBuf>,
    /// Adapters that employers may name, as `<namespace>/<adapter>=<address>`, with a `*` at the end of
    /// the namespace for the rest; an address is `grpc://<host>:<port>`, `unix://<path>` (gRPC),
    /// `http://…` or `https://…`
    #[arg(long, env = "PODOPS_ADAPTERS", value_delimiter = ',', value_name = "ADAPTERS")]
    pub adapters: Vec<String>,
}
