//! Backend `envoy`: state of the xDS server that serves employers' endpoints to Envoys (EDS).
//!
//! An endpoint drains once every Envoy has acknowledged its new state; Envoys' load reports (LRS)
//! count the requests in flight.

pub mod access;
mod cluster;
pub mod fleet;
mod messages;
pub mod stream;
mod traffic;

use serde::Deserialize;

/// Content of the annotation `backend-params`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Params {
    /// Port of the Pods.
    pub port: u16,
    /// Number of Envoys that must be connected. If unset, one is enough, and after a restart the
    /// operator waits for Envoys to reconnect.
    pub proxies: Option<usize>,
    /// True if Envoys report their requests in flight.
    #[serde(default = "default_load_reports")]
    pub load_reports: bool,
    /// Maximum time of a request without a connection, in seconds: Envoy does not count such
    /// requests. Defaults to Envoy's `connect_timeout`.
    #[serde(default = "default_connect_seconds")]
    pub connect_seconds: u32,
    /// Maximum duration of a request, in seconds: when all Pods leave at once, Envoy does not
    /// report requests in flight. Defaults to Envoy's route timeout.
    #[serde(default = "default_request_seconds")]
    pub request_seconds: u32,
}

fn default_load_reports() -> bool {
    true
}

fn default_connect_seconds() -> u32 {
    5
}

fn default_request_seconds() -> u32 {
    15
}
