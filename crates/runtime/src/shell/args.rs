//! The flags that every operator has; each has an environment variable too.

use std::{net::SocketAddr, time::Duration};

use clap::{Args, ValueEnum};

/// What every operator is told at its start.
#[derive(Args, Clone, Debug)]
pub struct OperatorArgs {
    /// How log lines look
    #[arg(long, value_enum, default_value_t = LogFormat::Text, env = "PODOPS_LOG_FORMAT", help_heading = "Logging")]
    pub log_format: LogFormat,

    /// Which log lines are written: a level, or directives such as `info,kube=debug`
    #[arg(
        long,
        default_value = "info",
        env = "PODOPS_LOG",
        help_heading = "Logging",
        value_name = "FILTER"
    )]
    pub log: String,

    /// Where /healthz, /livez, /readyz and /metrics are served
    #[arg(
        long,
        default_value = "0.0.0.0:8080",
        env = "PODOPS_METRICS_BIND_ADDRESS",
        help_heading = "Serving",
        value_name = "ADDRESS"
    )]
    pub metrics_bind_address: SocketAddr,

    /// How many objects are reconciled at a time
    #[arg(
        long,
        default_value_t = 16,
        env = "PODOPS_MAX_CONCURRENT_RECONCILES",
        help_heading = "Work",
        value_name = "N"
    )]
    pub max_concurrent_reconciles: u16,

    /// How long a reconcile may take before it is given up and tried again
    #[arg(long, default_value = "60s", value_parser = duration, env = "PODOPS_RECONCILE_TIMEOUT", help_heading = "Work", value_name = "DURATION")]
    pub reconcile_timeout: Duration,

    /// How long work under way may take to end after SIGTERM
    #[arg(long, default_value = "10s", value_parser = duration, env = "PODOPS_SHUTDOWN_GRACE", help_heading = "Work", value_name = "DURATION")]
    pub shutdown_grace: Duration,

    /// When leadership is decided, and how
    #[command(flatten)]
    pub lease: LeaseArgs,
}

/// How one of several replicas is chosen to act.
#[derive(Args, Clone, Debug)]
pub struct LeaseArgs {
    /// Act only while holding the Lease; `false` acts at once and always
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, env = "PODOPS_LEADER_ELECT", help_heading = "Leader election", value_name = "BOOL")]
    pub leader_elect: bool,

    /// The namespace of the Lease
    #[arg(
        long,
        default_value = "podops-system",
        env = "PODOPS_LEADER_ELECT_RESOURCE_NAMESPACE",
        help_heading = "Leader election",
        value_name = "NAMESPACE"
    )]
    pub leader_elect_resource_namespace: String,

    /// Who this replica is in the Lease; the host's name and the process ID by default
    #[arg(
        long,
        env = "PODOPS_LEADER_ELECT_IDENTITY",
        help_heading = "Leader election",
        value_name = "NAME"
    )]
    pub leader_elect_identity: Option<String>,

    /// How long others wait, after the last sign of the holder, before they take the Lease
    #[arg(long, default_value = "15s", value_parser = duration, env = "PODOPS_LEADER_ELECT_LEASE_DURATION", help_heading = "Leader election", value_name = "DURATION")]
    pub leader_elect_lease_duration: Duration,

    /// How long the holder may fail to renew before it steps down; less than the duration
    #[arg(long, default_value = "10s", value_parser = duration, env = "PODOPS_LEADER_ELECT_RENEW_DEADLINE", help_heading = "Leader election", value_name = "DURATION")]
    pub leader_elect_renew_deadline: Duration,

    /// How often the Lease is renewed, or looked at
    #[arg(long, default_value = "2s", value_parser = duration, env = "PODOPS_LEADER_ELECT_RETRY_PERIOD", help_heading = "Leader election", value_name = "DURATION")]
    pub leader_elect_retry_period: Duration,
}

/// Where an operator answers the API server, if it is to be asked about requests.
#[derive(Args, Clone, Debug, Default)]
pub struct AdmissionArgs {
    /// Where admission reviews are answered, over TLS; without it they are not
    #[arg(
        long,
        env = "PODOPS_ADMISSION_ADDRESS",
        help_heading = "Admission",
        value_name = "ADDRESS"
    )]
    pub admission_address: Option<SocketAddr>,

    /// What the API server calls this operator: names or addresses; by default the Service's name
    #[arg(
        long,
        env = "PODOPS_ADMISSION_HOSTS",
        value_delimiter = ',',
        help_heading = "Admission",
        value_name = "HOSTS"
    )]
    pub admission_hosts: Vec<String>,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people
    Text,
    /// One JSON object a line
    Json,
}

/// Reads a duration that carries its unit, such as `30s` or `2m`.
fn duration(text: &str) -> Result<Duration, String> {
    let read: jiff::SignedDuration = text.parse().map_err(|e: jiff::Error| e.to_string())?;
    Duration::try_from(read).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_carry_units() {
        assert_eq!(duration("1500ms"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert!(duration("30").is_err());
        assert!(duration("-3s").is_err());
    }
}
