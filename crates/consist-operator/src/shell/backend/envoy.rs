//! Backend `envoy`: the xDS server, and the fleet that it shares with syncs.

mod server;
mod shared_fleet;
mod source_limits;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use podops_runtime::lease::Leadership;

use self::shared_fleet::SharedFleet;
use super::{Backend, BoxFuture, ChangeNotifier, SyncFuture};
use crate::backends::{
    BackendError, DesiredMember, Employer, SyncResult,
    envoy::{Params, access::XdsListener, fleet::Fleet},
};
use crate::config_error::ConfigError;

/// The backend `envoy`.
pub struct Envoy {
    fleet: Arc<SharedFleet>,
    /// True if the xDS server is enabled.
    is_enabled: bool,
}

impl Envoy {
    /// Creates the backend; `is_enabled` is true if the xDS server will be started.
    #[must_use]
    pub fn new(notifier: ChangeNotifier, is_enabled: bool) -> Self {
        Self { fleet: Arc::new(SharedFleet::new(Fleet::new(Instant::now()), notifier)), is_enabled }
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
    ) -> impl Future<Output = Result<(), ConfigError>> + Send + use<> {
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
