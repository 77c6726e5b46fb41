//! Flags of the admission server.

use std::{net::SocketAddr, path::PathBuf};

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

    /// PEM file of the CA that issued the API server's client certificate for webhooks; requests
    /// without a certificate of this CA are rejected
    #[arg(
        long,
        env = "PODOPS_ADMISSION_CLIENT_CA_FILE",
        help_heading = "Admission",
        value_name = "FILE"
    )]
    pub admission_client_ca_file: Option<PathBuf>,
}
