//! What only this operator is told at its start.

use std::{net::SocketAddr, num::NonZeroU32, path::PathBuf};

use clap::Args;

use super::employer::ENDPOINTSLICE;

/// What only this operator is told at its start.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Traffic")]
pub struct ConsistArgs {
    /// The backend of Services that name none
    #[arg(long, env = "PODOPS_DEFAULT_BACKEND", default_value = ENDPOINTSLICE, value_name = "NAME")]
    pub default_backend: String,
    /// Kinds beside Services whose objects send traffic to Pods: a YAML file, a list of `apiVersion`,
    /// `kind`, `podSelector` (a JSON path) and `labelSelector`
    #[arg(long, env = "PODOPS_EMPLOYER_KINDS", value_name = "FILE")]
    pub employer_kinds: Option<PathBuf>,
    /// The Runtime APIs of HAProxy that employers may name, as `<namespace>/tcp://<address>:<port>` or
    /// `<namespace>/unix://<path>`; a `*` at the end of either part stands for the rest
    #[arg(long, env = "PODOPS_HAPROXY_INSTANCES", value_delimiter = ',', value_name = "INSTANCES")]
    pub haproxy_instances: Vec<String>,
    /// The target groups of AWS that employers may name, as `<namespace>/<ARN>`; a `*` at the end of
    /// either part stands for the rest
    #[arg(long, env = "PODOPS_AWS_TARGET_GROUPS", value_delimiter = ',', value_name = "ARNS")]
    pub aws_target_groups: Vec<String>,
    /// How many calls a second are made to a cloud's account
    #[arg(long, env = "PODOPS_CLOUD_API_QPS", default_value = "10", value_name = "CALLS")]
    pub cloud_api_qps: NonZeroU32,
    /// Alibaba Cloud's access key: given by the environment, as it is to Kuperator
    #[arg(hide = true, long, env = "ALIYUN_SLB_AK_KEY", hide_env_values = true)]
    aliyun_slb_ak_key: Option<String>,
    /// Its secret
    #[arg(hide = true, long, env = "ALIYUN_SLB_AK_SECRET", hide_env_values = true)]
    aliyun_slb_ak_secret: Option<String>,
    /// Where its API is
    #[arg(long, env = "ALIYUN_SLB_ENDPOINT", value_name = "HOST")]
    aliyun_slb_endpoint: Option<String>,
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

impl ConsistArgs {
    /// Alibaba Cloud's key, secret and endpoint.
    pub(super) fn aliyun(&self) -> [Option<String>; 3] {
        [&self.aliyun_slb_ak_key, &self.aliyun_slb_ak_secret, &self.aliyun_slb_endpoint]
            .map(Clone::clone)
    }
}
