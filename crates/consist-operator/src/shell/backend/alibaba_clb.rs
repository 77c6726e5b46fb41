//! Calls of backend `alibaba-clb` to Alibaba Cloud's API.

use std::{num::NonZeroU32, time::Duration};

use http_body_util::Full;
use parking_lot::Mutex;
use podops_adapter::https;
use podops_client::{error::Chain, shell::clock};
use tokio::time::timeout;
use uuid::Uuid;

use super::{Backend, SyncFuture, call_endpoint, rate_limiter::RateLimiter};
use crate::backends::{
    BackendError, DesiredMember, Employer, SyncResult,
    alibaba_clb::{
        Account, Call, Params, Server, load_balancer, read_servers, request, unreachable,
        without_load_balancer,
    },
    circuit_breaker::CircuitBreaker,
};
use crate::config_error::ConfigError;

/// Timeout of one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The backend `alibaba-clb`.
pub struct AlibabaClb {
    /// None without credentials; every sync then fails.
    account: Option<Account>,
    client: https::Client,
    rate_limiter: RateLimiter,
    circuit_breaker: Mutex<CircuitBreaker>,
}

impl AlibabaClb {
    /// Creates the backend with these credentials: key, secret and endpoint.
    ///
    /// # Errors
    ///
    /// If only some of them are set, or TLS cannot be initialized.
    pub fn new(credentials: [Option<String>; 3], rate: NonZeroU32) -> Result<Self, ConfigError> {
        Ok(Self {
            account: Account::read(credentials)?,
            client: https::client().map_err(|error| ConfigError::Tls(Box::new(error)))?,
            rate_limiter: RateLimiter::new(rate),
            circuit_breaker: Mutex::default(),
        })
    }

    async fn observe(
        &self,
        employer: &Employer,
        members: &[DesiredMember],
    ) -> Result<SyncResult, BackendError> {
        let params: Params = employer.params()?;
        let Some(id) = load_balancer(employer) else {
            return Ok(without_load_balancer(members));
        };
        let account = Account::configured(self.account.as_ref())?;
        let call = Call::health(id)?;
        // Not part of the call, whose duration the circuit breaker measures.
        self.rate_limiter.acquire(&employer.namespace).await;
        let servers =
            call_endpoint(&self.circuit_breaker, account.endpoint(), self.describe(account, &call))
                .await?;
        Ok(SyncResult::complete(params.observe(&servers, members)))
    }

    /// Returns the servers of all listeners of a load balancer.
    async fn describe(&self, account: &Account, call: &Call) -> Result<Vec<Server>, BackendError> {
        let nonce = Uuid::new_v4().simple().to_string();
        let request = request(account, call, &nonce, clock::now())?.map(|()| Full::default());
        let exchange = timeout(CALL_TIMEOUT, https::exchange(&self.client, request)).await;
        let response =
            exchange.map_err(|_| unreachable(format!("timeout after {CALL_TIMEOUT:?}")))?;
        let (status, body) = response.map_err(|error| unreachable(Chain(&error)))?;
        read_servers(status, &body)
    }
}

impl Backend for AlibabaClb {
    fn sync<'a>(&'a self, employer: &'a Employer, members: &'a [DesiredMember]) -> SyncFuture<'a> {
        Box::pin(async move { self.observe(employer, members).await.into() })
    }

    /// None, because the backend changes nothing that could be lost.
    fn resync_interval(&self) -> Option<Duration> {
        None
    }
}
