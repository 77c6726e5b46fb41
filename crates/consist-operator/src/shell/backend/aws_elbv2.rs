//! Calls of backend `aws-elbv2` to AWS Elastic Load Balancing.

use std::{
    collections::BTreeMap,
    num::NonZeroU32,
    time::{Duration, Instant},
};

use aws_config::{BehaviorVersion, Region, SdkConfig, retry::RetryConfig, timeout::TimeoutConfig};
use aws_sdk_elasticloadbalancingv2::{
    Client,
    error::{DisplayErrorContext, ProvideErrorMetadata, SdkError},
    types::{TargetDescription, TargetHealthDescription, TargetHealthStateEnum},
};
use aws_smithy_http_client::{
    Builder,
    tls::{Provider, rustls_provider::CryptoMode},
};
use tokio::sync::Mutex;

use super::{Backend, SyncFuture, call_endpoint, rate_limiter::RateLimiter};
use crate::backends::{
    BackendError, DesiredMember, Employer, SyncResult,
    aws_elbv2::{
        CallFailure, Changes, Params, Registrations, TARGETS_MAX, Target, TargetId, changes,
        sync_result,
    },
    circuit_breaker::CircuitBreaker,
    exclusive_backends::ExclusiveBackends,
};

/// Timeout of one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The backend `aws-elbv2`.
pub struct AwsElbV2 {
    /// Target groups that employers may use, as patterns.
    allowed: Vec<String>,
    rate_limiter: RateLimiter,
    exclusive_backends: ExclusiveBackends,
    circuit_breaker: parking_lot::Mutex<CircuitBreaker>,
    /// Clients by region, created on first use.
    clients: Mutex<BTreeMap<String, Client>>,
}

impl AwsElbV2 {
    /// Creates the backend for these target groups, as `<namespace>/<ARN>`, with a limit in calls
    /// per second. Credentials are loaded by AWS's default chain on first use.
    #[must_use]
    pub fn new(allowed: Vec<String>, rate: NonZeroU32) -> Self {
        Self {
            allowed,
            rate_limiter: RateLimiter::new(rate),
            exclusive_backends: ExclusiveBackends::default(),
            circuit_breaker: parking_lot::Mutex::default(),
            clients: Mutex::default(),
        }
    }

    /// Returns the client of a region.
    async fn client(&self, region: &str) -> Client {
        let mut clients = self.clients.lock().await;
        if let Some(client) = clients.get(region) {
            return client.clone();
        }
        let client = Client::new(&config(region).await);
        clients.insert(region.to_owned(), client.clone());
        client
    }

    async fn sync_targets(
        &self,
        employer: &Employer,
        members: &[DesiredMember],
    ) -> Result<SyncResult, BackendError> {
        let params = Params::read(employer, &self.allowed)?;
        let arn = &params.target_group;
        let region = params.region()?;
        let client = self.client(region).await;
        if !params.observe_only {
            self.exclusive_backends.claim(employer, std::slice::from_ref(arn), Instant::now())?;
        }
        let namespace = &employer.namespace;
        // Not part of the call, whose duration the circuit breaker measures.
        self.rate_limiter.acquire(namespace).await;
        let targets =
            call_endpoint(&self.circuit_breaker, region, self.describe(&client, arn)).await?;
        let changes = changes(&targets, &params, members);
        if params.observe_only || changes.is_empty() {
            return Ok(sync_result(&targets, members, None));
        }
        let applied = self.change(&client, namespace, arn, &changes).await;
        self.rate_limiter.acquire(namespace).await;
        // A rejected target must not prevent the observation of the others.
        Ok(match self.describe(&client, arn).await {
            Ok(targets) => sync_result(&targets, members, applied.err()),
            Err(error) => SyncResult::unobserved(members, error),
        })
    }

    /// Deregisters and registers targets.
    ///
    /// # Errors
    ///
    /// The first error; the remaining calls are made nevertheless.
    async fn change(
        &self,
        client: &Client,
        namespace: &str,
        arn: &str,
        changes: &Changes,
    ) -> Result<(), BackendError> {
        let mut result = Ok(());
        for batch in changes.deregister.chunks(TARGETS_MAX) {
            self.rate_limiter.acquire(namespace).await;
            let call = client.deregister_targets().target_group_arn(arn);
            let response = call.set_targets(Some(batch.iter().map(to_sdk).collect())).send().await;
            result = result.and(response.map(drop).map_err(|error| backend_error(&error)));
        }
        let mut registrations = Registrations::new(&changes.register);
        while let Some(batch) = registrations.next_batch() {
            self.rate_limiter.acquire(namespace).await;
            let call = client.register_targets().target_group_arn(arn);
            let response = call.set_targets(Some(batch.iter().map(to_sdk).collect())).send().await;
            let registered = response.map(drop).map_err(|error| backend_error(&error));
            result = result.and(registrations.record(&batch, registered));
        }
        result
    }

    /// Returns the registered targets with their health.
    async fn describe(&self, client: &Client, arn: &str) -> Result<Vec<Target>, BackendError> {
        let call = client.describe_target_health().target_group_arn(arn);
        let response = call.send().await.map_err(|error| backend_error(&error))?;
        let targets = response.target_health_descriptions.ok_or_else(|| {
            BackendError::InvalidResponse("AWS: response without targets".to_owned())
        })?;
        Ok(targets.into_iter().filter_map(from_sdk).collect())
    }
}

impl Backend for AwsElbV2 {
    fn release_claims(&self, employer: &str) {
        self.exclusive_backends.release(employer);
    }

    fn sync<'a>(&'a self, employer: &'a Employer, members: &'a [DesiredMember]) -> SyncFuture<'a> {
        Box::pin(async move { self.sync_targets(employer, members).await.into() })
    }
}

async fn config(region: &str) -> SdkConfig {
    // The same TLS provider as the rest of the operator.
    let http = Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https();
    aws_config::defaults(BehaviorVersion::latest())
        .region(Region::new(region.to_owned()))
        .http_client(http)
        // Retries are up to the reconciles, which have their own backoff.
        .retry_config(RetryConfig::disabled())
        .timeout_config(TimeoutConfig::builder().operation_timeout(CALL_TIMEOUT).build())
        .load()
        .await
}

/// Classifies the error of a call.
fn backend_error<E, R>(error: &SdkError<E, R>) -> BackendError
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
    R: std::fmt::Debug,
{
    let code = error.as_service_error().and_then(ProvideErrorMetadata::code);
    let message = error.as_service_error().and_then(ProvideErrorMetadata::message);
    let text = match (code, message) {
        (Some(code), message) => format!("AWS: {code}: {}", message.unwrap_or_default()),
        (None, _) => format!("AWS: {}", DisplayErrorContext(error)),
    };
    let failure = if matches!(error, SdkError::ResponseError(_)) {
        CallFailure::InvalidResponse
    } else if error.as_service_error().is_some() {
        CallFailure::Service { code }
    } else {
        CallFailure::NoResponse
    };
    failure.into_error(&text)
}

fn from_sdk(health: TargetHealthDescription) -> Option<Target> {
    let target = health.target?;
    let state = health.target_health.and_then(|health| health.state);
    let id = TargetId {
        id: target.id?,
        port: target.port,
        availability_zone: target.availability_zone,
        quic_server_id: target.quic_server_id,
    };
    Target::new(id, state.as_ref().map(TargetHealthStateEnum::as_str))
}

fn to_sdk(target: &TargetId) -> TargetDescription {
    TargetDescription::builder()
        .id(&target.id)
        .set_port(target.port)
        .set_availability_zone(target.availability_zone.clone())
        .set_quic_server_id(target.quic_server_id.clone())
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_sdk_elasticloadbalancingv2::types::TargetHealth;

    /// The pure part names health states as AWS's API does.
    #[test]
    fn health_states_and_ids_survive_the_conversion() {
        for state in [TargetHealthStateEnum::Draining, TargetHealthStateEnum::Healthy] {
            let target = TargetDescription::builder().id("10.0.0.1").port(80).build();
            let health = TargetHealth::builder().state(state.clone()).build();
            let described = TargetHealthDescription::builder();
            let read = from_sdk(described.target(target).target_health(health).build());
            let id = TargetId {
                id: "10.0.0.1".to_owned(),
                port: Some(80),
                availability_zone: None,
                quic_server_id: None,
            };
            assert_eq!(to_sdk(&id).port, Some(80));
            assert_eq!(read, Target::new(id, Some(state.as_str())));
        }
    }
}
