//! Flags of the admission server.

use std::net::SocketAddr;

use clap::Args;

/// Flags for the admission webhook server.
#[derive(Args, Clone, Debug, Default)]
pub struct AdmissionArgs {
    /// Address of the admission webhook server (TLS); if unset, admission webhooks are disabled
    #[arg(
        long,
        env = "PODOPS_ADMISSION_ADDRESS",
        help_heading = "Admission",
        value_name = "ADDRESS"
    )]
    pub admission_address: Option<SocketAddr>,

    /// DNS names or IP addresses under which the API server reaches the webhook server; defaults to
    /// the name of the Service
    #[arg(
        long,
        env = "PODOPS_ADMISSION_HOSTS",
        value_delimiter = ',',
        help_heading = "Admission",
        value_name = "HOSTS"
    )]
    pub admission_hosts: Vec<String>,
}
