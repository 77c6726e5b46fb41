//! Envoy: this operator serves it the endpoints of employers (EDS), so it is Envoy that asks. That an
//! endpoint drains is known when every Envoy has acknowledged it; what is still in flight, Envoy's load
//! reports (LRS) tell.

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
use super::{Answer, Backend, BackendError, ChangeNotifier, Coming, Employer, SyncResult, Wanted};
use crate::{plan::Want, view::Traffic};

/// The annotation's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Params {
    /// The port of the Pods.
    port: u16,
    /// How many Envoys there are. Untold, one is enough, and those that were there before this process
    /// get time to come back.
    proxies: Option<usize>,
    /// Whether Envoys tell of their requests in flight.
    #[serde(default = "yes")]
    load_reports: bool,
    /// How long a request may wait for a connection: Envoy counts none before it has one. Its own default.
    #[serde(default = "five")]
    connect_seconds: u32,
    /// How long a request may take: when all Pods leave at once, Envoy does not tell of what is in
    /// flight. Its own default.
    #[serde(default = "fifteen")]
    request_seconds: u32,
}

fn yes() -> bool {
    true
}

fn five() -> u32 {
    5
}

fn fifteen() -> u32 {
    15
}

/// Where Envoys are served.
#[derive(Clone, Debug)]
pub struct Served {
    /// The address.
    pub address: SocketAddr,
    /// A directory with `tls.crt`, `tls.key` and the `ca.crt` of the Envoys; plain without it.
    pub tls: Option<PathBuf>,
}

/// Serves Envoys.
pub struct Envoy {
    fleet: Arc<Shared>,
    /// Whether anybody is served at all.
    on: bool,
}

impl Envoy {
    /// Keeps what Envoys are served; `served` says whether they are.
    #[must_use]
    pub fn new(notifier: ChangeNotifier, served: bool) -> Self {
        Self { fleet: Arc::new(Shared::new(Fleet::new(Instant::now()), notifier)), on: served }
    }

    /// Serves Envoys for as long as it is polled, once the Lease is held: others would serve them
    /// what they do not know.
    pub fn serve(
        &self,
        at: Served,
        lease: Leadership,
    ) -> impl Future<Output = anyhow::Result<()>> + Send + use<> {
        let fleet = self.fleet.clone();
        async move {
            lease.wait().await;
            fleet.lock().begin(Instant::now());
            server::serve(at, fleet).await
        }
    }

    fn at(&self, employer: &Employer, wanted: &[Wanted]) -> Result<SyncResult, BackendError> {
        let params: Params = employer.params()?;
        if !self.on {
            return Err(BackendError::Params(
                "the operator serves no Envoy: --xds-address".to_owned(),
            ));
        }
        let sync = self.fleet.lock().sync(&employer.key(), &params, wanted, Instant::now());
        self.fleet.publish();
        Ok(sync)
    }
}

impl Backend for Envoy {
    fn sync<'a>(&'a self, employer: &'a Employer, wanted: &'a [Wanted]) -> Answer<'a> {
        Box::pin(std::future::ready(self.at(employer, wanted).into()))
    }

    /// Nobody but this process changes what Envoys are served.
    fn resync(&self) -> Option<Duration> {
        None
    }

    fn forget<'a>(&'a self, employer: &'a Employer) -> Coming<'a, ()> {
        self.fleet.lock().forget(&employer.key());
        Box::pin(std::future::ready(()))
    }
}
