//! Adapter protocol: consist-operator's interface to programs in any language that control a load
//! balancer, proxy or registry. The verbs are the same over gRPC and, with JSON, over HTTP.

pub mod client;
pub mod conformance;
pub mod https;

/// Messages, client and server of the gRPC service, generated from the `.proto` file.
#[allow(missing_docs, unreachable_pub, clippy::pedantic, clippy::unwrap_used, reason = "generated")]
pub mod v1 {
    tonic::include_proto!("consist.adapter.v1");
}

/// Version of the protocol.
pub const VERSION: &str = "v1";

/// Desired state of a member: traffic is routed to it.
pub const SERVE: &str = "Serve";
/// Desired state of a member: no new traffic.
pub const OFF: &str = "Off";
/// Observed state of a member: it receives traffic.
pub const SERVING: &str = "Serving";
/// Observed state of a member: it is enabled, but fails its health checks.
pub const UNHEALTHY: &str = "Unhealthy";
/// Observed state of a member: no new traffic; requests may be in flight.
pub const DRAINING: &str = "Draining";
/// Observed state of a member: no traffic.
pub const ABSENT: &str = "Absent";
/// Outcome of apply for a member: impossible, a retry does not help.
pub const INVALID: &str = "Invalid";
