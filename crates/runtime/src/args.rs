//! Flags that all operators share; each can also be set by an environment variable.

use std::{net::SocketAddr, time::Duration};

use clap::{Args, ValueEnum};
use jiff::SignedDuration;

/// Flags that all operators share.
#[derive(Args, Clone, Debug)]
pub struct OperatorArgs {
    /// Format of log lines
    #[arg(long, value_enum, default_value_t = LogFormat::Text, env = "PODOPS_LOG_FORMAT", help_heading = "Logging")]
    pub log_format: LogFormat,

    /// Log filter: a level, or directives such as `info,kube=debug`
    #[arg(
        long,
        default_value = "info",
        env = "PODOPS_LOG",
        help_heading = "Logging",
        value_name = "FILTER"
    )]
    pub log: String,

    /// Address for /healthz, /livez, /readyz and /metrics
    #[arg(
        long,
        default_value = "0.0.0.0:8080",
        env = "PODOPS_METRICS_BIND_ADDRESS",
        help_heading = "Serving",
        value_name = "ADDRESS"
    )]
    pub metrics_bind_address: SocketAddr,

    /// URL of an OpenTelemetry collector that receives spans of operations by OTLP over HTTP, such
    /// as http://collector:4318; none are recorded by default
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", help_heading = "Traces", value_name = "URL")]
    pub otlp_endpoint: Option<String>,

    /// Maximum number of objects that are reconciled concurrently
    #[arg(
        long,
        default_value_t = 16,
        env = "PODOPS_MAX_CONCURRENT_RECONCILES",
        help_heading = "Work",
        value_name = "N"
    )]
    pub max_concurrent_reconciles: u16,

    /// Timeout of a reconcile; it is retried with backoff
    #[arg(long, default_value = "60s", value_parser = duration, env = "PODOPS_RECONCILE_TIMEOUT", help_heading = "Work", value_name = "DURATION")]
    pub reconcile_timeout: Duration,

    /// Grace period after SIGTERM for reconciles and admission requests in progress
    #[arg(long, default_value = "10s", value_parser = duration, env = "PODOPS_SHUTDOWN_GRACE", help_heading = "Work", value_name = "DURATION")]
    pub shutdown_grace: Duration,

    /// Leader election flags
    #[command(flatten)]
    pub lease: LeaseArgs,
}

/// Flags for leader election between replicas.
#[derive(Args, Clone, Debug)]
pub struct LeaseArgs {
    /// Reconcile only while holding the leader election Lease; `false` disables leader election
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, env = "PODOPS_LEADER_ELECT", help_heading = "Leader election", value_name = "BOOL")]
    pub leader_elect: bool,

    /// Namespace of the Lease
    #[arg(
        long,
        default_value = "podops-system",
        env = "PODOPS_LEADER_ELECT_RESOURCE_NAMESPACE",
        help_heading = "Leader election",
        value_name = "NAMESPACE"
    )]
    pub leader_elect_resource_namespace: String,

    /// Identity of this replica in the Lease; defaults to the hostname and the process ID
    #[arg(
        long,
        env = "PODOPS_LEADER_ELECT_IDENTITY",
        help_heading = "Leader election",
        value_name = "NAME"
    )]
    pub leader_elect_identity: Option<String>,

    /// Time that other replicas wait after the last renewal before they acquire the Lease
    #[arg(long, default_value = "15s", value_parser = duration, env = "PODOPS_LEADER_ELECT_LEASE_DURATION", help_heading = "Leader election", value_name = "DURATION")]
    pub leader_elect_lease_duration: Duration,

    /// Time without a successful renewal after which the leader exits; must be less than the lease
    /// duration
    #[arg(long, default_value = "10s", value_parser = duration, env = "PODOPS_LEADER_ELECT_RENEW_DEADLINE", help_heading = "Leader election", value_name = "DURATION")]
    pub leader_elect_renew_deadline: Duration,

    /// Interval between attempts to acquire or renew the Lease
    #[arg(long, default_value = "2s", value_parser = duration, env = "PODOPS_LEADER_ELECT_RETRY_PERIOD", help_heading = "Leader election", value_name = "DURATION")]
    pub leader_elect_retry_period: Duration,
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Human-readable text
    Text,
    /// One JSON object per line
    Json,
}

/// Parses a duration with a unit, such as `30s` or `2m`.
fn duration(text: &str) -> Result<Duration, jiff::Error> {
    Duration::try_from(text.parse::<SignedDuration>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_require_a_unit() {
        assert_eq!(duration("1500ms").unwrap(), Duration::from_millis(1500));
        assert_eq!(duration("2m").unwrap(), Duration::from_secs(120));
        assert!(duration("30").is_err());
        assert!(duration("-3s").is_err());
    }
}
