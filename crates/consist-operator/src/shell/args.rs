//! Flags of consist-operator.

use std::{net::SocketAddr, num::NonZeroU32, path::PathBuf};

use clap::Args;

use crate::backends::endpointslice;

/// Flags that only this operator has.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Traffic")]
pub struct ConsistArgs {
    /// Backend of Services without the backend annotation
    #[arg(long, env = "PODOPS_DEFAULT_BACKEND", default_value = endpointslice::NAME, value_name = "NAME")]
    pub default_backend: String,
    /// YAML file with further kinds of employers beside Services: a list of `apiVersion`, `kind`,
    /// `podSelector` (a JSONPath) and `labelSelector`
    #[arg(long, env = "PODOPS_EMPLOYER_KINDS", value_name = "FILE")]
    pub employer_kinds: Option<PathBuf>,
    /// HAProxy backends that employers may use, as `<namespace>/tcp://<address>:<port>/<backend>`
    /// or `<namespace>/unix://<path>/<backend>`; the namespace and the rest may end with the
    /// wildcard `*`
    #[arg(long, env = "PODOPS_HAPROXY_BACKENDS", value_delimiter = ',', value_name = "BACKENDS")]
    pub haproxy_backends: Vec<String>,
    /// AWS target groups that employers may use, as `<namespace>/<ARN>`; both parts may end with
    /// the wildcard `*`
    #[arg(long, env = "PODOPS_AWS_TARGET_GROUPS", value_delimiter = ',', value_name = "ARNS")]
    pub aws_target_groups: Vec<String>,
    /// Maximum number of API calls per second to a cloud account
    #[arg(long, env = "PODOPS_CLOUD_API_QPS", default_value = "10", value_name = "CALLS")]
    pub cloud_api_qps: NonZeroU32,
    /// Access key ID for Alibaba Cloud, set by the same environment variable as for Kuperator
    #[arg(hide = true, long, env = "ALIYUN_SLB_AK_KEY", hide_env_values = true)]
    aliyun_slb_ak_key: Option<String>,
    /// Access key secret for Alibaba Cloud
    #[arg(hide = true, long, env = "ALIYUN_SLB_AK_SECRET", hide_env_values = true)]
    aliyun_slb_ak_secret: Option<String>,
    /// Endpoint of the Alibaba Cloud load balancer API
    #[arg(long, env = "ALIYUN_SLB_ENDPOINT", value_name = "HOST")]
    aliyun_slb_endpoint: Option<String>,
    /// Listen address of the xDS server that sends employers' endpoints to Envoy; disabled if unset
    #[arg(long, env = "PODOPS_XDS_ADDRESS", value_name = "ADDRESS")]
    pub xds_address: Option<SocketAddr>,
    /// Directory with the xDS server's `tls.crt` and `tls.key`, and the `ca.crt` that verifies
    /// client certificates of Envoy
    #[arg(long, env = "PODOPS_XDS_TLS", value_name = "DIRECTORY", requires = "xds_address")]
    pub xds_tls: Option<PathBuf>,
    /// Envoys that may use the endpoints of a namespace, as `<namespace>/<identity>`; either part
    /// may end with `*`. The identity is a DNS name or URI in the client certificate; a SPIFFE ID
    /// of a ServiceAccount may always use the endpoints of its namespace
    #[arg(long, env = "PODOPS_XDS_CLIENTS", value_delimiter = ',', value_name = "CLIENTS")]
    pub xds_clients: Vec<String>,
    /// Serve xDS without TLS: any client that reaches the port may use all endpoints
    #[arg(long, env = "PODOPS_XDS_INSECURE", requires = "xds_address", conflicts_with = "xds_tls")]
    pub xds_insecure: bool,
    /// Adapters that employers may use, as `<namespace>/<adapter>=<address>`; the namespace may end
    /// with the wildcard `*`, and an address is `grpc://<host>:<port>`, `unix://<path>` (gRPC),
    /// `http://…` or `https://…`
    #[arg(long, env = "PODOPS_ADAPTERS", value_delimiter = ',', value_name = "ADAPTERS")]
    pub adapters: Vec<String>,
}

impl ConsistArgs {
    /// Returns access key ID, access key secret and endpoint for Alibaba Cloud.
    pub(super) fn aliyun(&self) -> [Option<String>; 3] {
        [&self.aliyun_slb_ak_key, &self.aliyun_slb_ak_secret, &self.aliyun_slb_endpoint]
            .map(Clone::clone)
    }
}
