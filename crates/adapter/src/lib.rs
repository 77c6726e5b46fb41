//! The protocol of adapters: programs in any language that stand for something which sends traffic to
//! Pods. The same verbs go over gRPC and, as JSON, over HTTP.

pub mod client;
pub mod conformance;
pub mod https;

/// The messages, and both ends of the gRPC service, as the protocol's file has them.
#[allow(missing_docs, unreachable_pub, clippy::pedantic, clippy::unwrap_used, reason = "generated")]
pub mod v1 {
    tonic::include_proto!("consist.adapter.v1");
}

/// The version of the protocol.
pub const VERSION: &str = "v1";

/// What is wanted of a member: traffic.
pub const SERVE: &str = "Serve";
/// What is wanted of a member: no new traffic.
pub const OFF: &str = "Off";
/// What is seen of a member: it gets traffic.
pub const SERVING: &str = "Serving";
/// What is seen of a member: it is to get traffic, and is found unfit.
pub const UNHEALTHY: &str = "Unhealthy";
/// What is seen of a member: it gets no new traffic.
pub const DRAINING: &str = "Draining";
/// What is seen of a member: it gets none.
pub const ABSENT: &str = "Absent";
/// What comes of applying: it cannot be done.
pub const INVALID: &str = "Invalid";
