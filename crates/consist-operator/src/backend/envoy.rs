//! Backend `envoy`: an xDS server that serves employers' endpoints to Envoys (EDS).
//!
//! An endpoint drains once every Envoy has acknowledged its new state; Envoys' load reports (LRS)
//! count the requests in flight.

mod fleet;
mod server;

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use podops_runtime::shell::lease::Leadership;
use serde::Deserialize;
use tokio::time::Instant;

use self::fleet::{Fleet, Shared};
use super::{
    Backend, BackendError, BoxFuture, ChangeNotifier, DesiredMember, Employer, SyncFuture,
    SyncResult,
};
use crate::{plan::DesiredTraffic, view::Traffic};

/// Content of the annotation `backend-params`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Params {
    /// Port of the Pods.
    port: u16,
    /// Number of Envoys that must be connected. If unset, one is enough, and after a restart the
    /// operator waits for Envoys to reconnect.
    proxies: Option<usize>,
    /// True if Envoys report their requests in flight.
    #[serde(default = "default_load_reports")]
    load_reports: bool,
    /// Maximum time of a request without a connection, in seconds: Envoy does not count such
    /// requests. Defaults to Envoy's `connect_timeout`.
    #[serde(default = "default_connect_seconds")]
    connect_seconds: u32,
    /// Maximum duration of a request, in seconds: when all Pods leave at once, Envoy does not
    /// report requests in flight. Defaults to Envoy's route timeout.
    #[serde(default = "default_request_seconds")]
    request_seconds: u32,
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

/// Address and certificates of the xDS server.
#[derive(Clone, Debug)]
pub struct XdsListener {
    /// Address to listen on.
    pub address: SocketAddr,
    /// Directory with `tls.crt`, `tls.key` and the `ca.crt` of the Envoys; plain text if unset.
    pub tls: Option<PathBuf>,
}

/// The backend `envoy`.
pub struct Envoy {
    fleet: Arc<Shared>,
    /// True if the xDS server is enabled.
    is_enabled: bool,
}

impl Envoy {
    /// Creates the backend; `is_enabled` is true if the xDS server will be started.
    #[must_use]
    pub fn new(notifier: ChangeNotifier, is_enabled: bool) -> Self {
        Self { fleet: Arc::new(Shared::new(Fleet::new(Instant::now()), notifier)), is_enabled }
    }

    /// Runs the xDS server, once this replica is the leader: other replicas do not know the
    /// endpoints.
    ///
    /// # Errors
    ///
    /// If the address cannot be bound, or a certificate cannot be read.
    pub fn serve(
        &self,
        listener: XdsListener,
        leadership: Leadership,
    ) -> impl Future<Output = anyhow::Result<()>> + Send + use<> {
        let fleet = self.fleet.clone();
        async move {
            leadership.wait().await;
            fleet.lock().start(Instant::now());
            server::serve(listener, fleet).await
        }
    }

    fn sync_endpoints(
        &self,
        employer: &Employer,
        members: &[DesiredMember],
    ) -> Result<SyncResult, BackendError> {
        let params: Params = employer.params()?;
        if !self.is_enabled {
            return Err(BackendError::InvalidParams(
                "xDS server is disabled; start the operator with --xds-address".to_owned(),
            ));
        }
        let sync = self.fleet.lock().sync(&employer.key(), &params, members, Instant::now());
        self.fleet.signal_change();
        Ok(sync)
    }
}

impl Backend for Envoy {
    fn sync<'a>(&'a self, employer: &'a Employer, members: &'a [DesiredMember]) -> SyncFuture<'a> {
        Box::pin(std::future::ready(self.sync_endpoints(employer, members).into()))
    }

    /// None, because only this process changes the endpoints of the xDS server.
    fn resync_interval(&self) -> Option<Duration> {
        None
    }

    fn forget<'a>(&'a self, employer: &'a Employer) -> BoxFuture<'a, ()> {
        self.fleet.lock().forget(&employer.key());
        Box::pin(std::future::ready(()))
    }
}
