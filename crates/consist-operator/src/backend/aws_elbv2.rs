//! Backend `aws-elbv2`: registers Pods in target groups of AWS Elastic Load Balancing by IP
//! address. AWS reports how long a deregistered target drains.

use std::{collections::BTreeMap, net::IpAddr, num::NonZeroU32, time::Duration};

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
use serde::Deserialize;
use tokio::sync::Mutex;

use super::{
    Backend, BackendError, CircuitBreaker, DesiredMember, Employer, ExclusiveBackends, SyncFuture,
    SyncResult, check_allowed, combine, rate_limiter::RateLimiter,
};
use crate::{plan::DesiredTraffic, view::Traffic};

/// Timeout of one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Error codes worth a retry: throttling, and failures on AWS's side.
const TRANSIENT_CODES: [&str; 13] = [
    "BandwidthLimitExceeded",
    "InternalError",
    "InternalFailure",
    "PriorRequestNotComplete",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
];
/// Maximum number of targets in one call.
const TARGETS_MAX: usize = 200;
/// Maximum length of AWS's error in a message, in characters.
const MESSAGE_MAX: usize = 300;

/// Content of the annotation `backend-params`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Params {
    /// ARN of a target group of type `ip`.
    target_group: String,
    /// Port of the Pods.
    port: u16,
    /// True if another controller registers the Pods, such as the AWS Load Balancer Controller;
    /// target health is then only read.
    #[serde(default)]
    observe_only: bool,
    /// `all` for Pods outside the load balancer's VPC.
    availability_zone: Option<String>,
}

/// The backend `aws-elbv2`.
pub struct AwsElbV2 {
    /// Target groups that employers may use, as patterns for [`check_allowed`]: the operator's
    /// account may contain others.
    allowed: Vec<String>,
    rate_limiter: RateLimiter,
    exclusive_backends: ExclusiveBackends,
    circuit_breaker: CircuitBreaker,
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
            circuit_breaker: CircuitBreaker::default(),
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
        let params: Params = employer.params()?;
        let arn = &params.target_group;
        check_allowed(&self.allowed, &employer.namespace, arn, "--aws-target-groups")?;
        let region = arn.split(':').nth(3).filter(|region| !region.is_empty());
        let region = region.ok_or_else(|| {
            BackendError::InvalidParams(format!("backend-params.targetGroup: invalid ARN {arn}"))
        })?;
        let client = self.client(region).await;
        if !params.observe_only {
            self.exclusive_backends.claim(employer, std::slice::from_ref(arn))?;
        }
        let (mut targets, mut rejection) =
            (self.circuit_breaker.call(region, self.describe(&client, &params)).await?, None);
        let changes = changes(&targets, &params, members);
        if !params.observe_only && !changes.is_empty() {
            let changed = self.change(&client, arn, &changes).await;
            // A rejected target must not prevent the observation of the others.
            targets = match self.describe(&client, &params).await {
                Ok(targets) => targets,
                Err(error) => return Ok(SyncResult::unobserved(members, error)),
            };
            rejection = changed.err();
        }
        let observed = members.iter().map(|pod| (pod.uid.clone(), traffic(&targets, pod)));
        // A rejected change has no effect; any other failed change may still take effect.
        let is_rejected = matches!(rejection, Some(BackendError::InvalidParams(_)));
        let (unfulfilled, error) = if is_rejected { (rejection, None) } else { (None, rejection) };
        Ok(SyncResult { observed: observed.collect(), error, unfulfilled })
    }

    /// Deregisters and registers targets.
    ///
    /// # Errors
    ///
    /// The first error; the remaining calls are made nevertheless.
    async fn change(
        &self,
        client: &Client,
        arn: &str,
        changes: &Changes,
    ) -> Result<(), BackendError> {
        let mut result = Ok(());
        for batch in changes.deregister.chunks(TARGETS_MAX) {
            self.rate_limiter.acquire().await;
            let call = client.deregister_targets().target_group_arn(arn);
            let response = call.set_targets(Some(batch.to_vec())).send().await;
            result = result.and(response.map(drop).map_err(|error| backend_error(&error)));
        }
        let mut batches: Vec<_> = changes.register.chunks(TARGETS_MAX).collect();
        while let Some(batch) = batches.pop() {
            self.rate_limiter.acquire().await;
            let call = client.register_targets().target_group_arn(arn);
            let response = call.set_targets(Some(batch.to_vec())).send().await;
            let registered = response.map(drop).map_err(|error| backend_error(&error));
            // AWS rejects a whole batch for one invalid target: halve it, so that the others do not
            // wait.
            if matches!(registered, Err(BackendError::InvalidParams(_))) && batch.len() > 1 {
                let (first, second) = batch.split_at(batch.len() / 2);
                batches.extend([first, second]);
                continue;
            }
            result = result.and(registered);
        }
        result
    }

    /// Returns the registered targets with their health.
    async fn describe(
        &self,
        client: &Client,
        params: &Params,
    ) -> Result<Vec<Target>, BackendError> {
        self.rate_limiter.acquire().await;
        let call = client.describe_target_health().target_group_arn(&params.target_group);
        let response = call.send().await.map_err(|error| backend_error(&error))?;
        let targets = response.target_health_descriptions.ok_or_else(|| {
            BackendError::InvalidResponse("AWS: response without targets".to_owned())
        })?;
        Ok(targets.iter().filter_map(read).collect())
    }
}

impl Backend for AwsElbV2 {
    fn release(&self, employer: &str) {
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
    let text: String = text.chars().take(MESSAGE_MAX).collect();
    match (error, code) {
        (SdkError::ResponseError(_), _) => BackendError::InvalidResponse(text),
        (SdkError::ServiceError(_), Some(code)) if !TRANSIENT_CODES.contains(&code) => {
            BackendError::InvalidParams(text)
        }
        _ => BackendError::Unreachable(text),
    }
}

/// A registered target.
#[derive(Clone, Debug, PartialEq)]
struct Target {
    address: IpAddr,
    traffic: Traffic,
    /// Target as described by AWS.
    description: TargetDescription,
}

/// Converts AWS's description; none for a target that is not an IP address.
fn read(health: &TargetHealthDescription) -> Option<Target> {
    let target = health.target.as_ref()?;
    let state = health.target_health.as_ref().and_then(|health| health.state.as_ref());
    let address = target.id.as_deref()?.parse().ok()?;
    Some(Target { address, traffic: traffic_of(state), description: target.clone() })
}

/// Returns the traffic of a target in this state.
fn traffic_of(state: Option<&TargetHealthStateEnum>) -> Traffic {
    match state {
        // `Unavailable`: health checks are disabled, so the target gets traffic.
        Some(TargetHealthStateEnum::Healthy | TargetHealthStateEnum::Unavailable) => {
            Traffic::Serving
        }
        // The state ends with the last request, or after the group's deregistration delay.
        Some(TargetHealthStateEnum::Draining | TargetHealthStateEnum::UnhealthyDraining) => {
            Traffic::Draining(Some(1))
        }
        // New, failing its health checks, in a group without listener, or an unknown state.
        _ => Traffic::Unhealthy,
    }
}

/// Changes that bring a target group to the desired state.
#[derive(Clone, Debug, Default, PartialEq)]
struct Changes {
    register: Vec<TargetDescription>,
    deregister: Vec<TargetDescription>,
}

impl Changes {
    fn is_empty(&self) -> bool {
        self.register.is_empty() && self.deregister.is_empty()
    }
}

fn changes(targets: &[Target], params: &Params, members: &[DesiredMember]) -> Changes {
    let describe = |address: IpAddr| {
        let target = TargetDescription::builder().id(address.to_string()).port(params.port.into());
        target.set_availability_zone(params.availability_zone.clone()).build()
    };
    let is_registered = |target: &&Target| !matches!(target.traffic, Traffic::Draining(_));
    let is_of = |target: &Target, pod: &DesiredMember| {
        target.description.port == Some(params.port.into())
            && pod.addresses.contains(&target.address)
    };
    let should_serve = |target: &Target| {
        members.iter().any(|pod| pod.traffic == DesiredTraffic::Serve && is_of(target, pod))
    };
    let has_target =
        |pod: &DesiredMember| targets.iter().filter(is_registered).any(|target| is_of(target, pod));
    let unregistered =
        members.iter().filter(|pod| pod.traffic == DesiredTraffic::Serve && !has_target(pod));
    // Targets of Pods that should be off, and targets without a member, as of a deleted Pod.
    let surplus = targets.iter().filter(is_registered).filter(|target| !should_serve(target));
    Changes {
        register: unregistered
            .filter_map(|pod| pod.addresses.first().copied())
            .map(describe)
            .collect(),
        deregister: surplus.map(|target| target.description.clone()).collect(),
    }
}

fn traffic(targets: &[Target], pod: &DesiredMember) -> Traffic {
    // At any port and in any zone, because both may have been changed.
    let own = targets.iter().filter(|target| pod.addresses.contains(&target.address));
    let serve = pod.traffic == DesiredTraffic::Serve;
    own.fold(Traffic::Absent, |combined, target| combine(combined, target.traffic, serve))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(last: u8, traffic: DesiredTraffic) -> DesiredMember {
        let addresses = vec![IpAddr::from([10, 0, 0, last])];
        DesiredMember { name: last.to_string(), uid: last.to_string(), addresses, traffic }
    }

    fn target_at(last: u8, port: i32, traffic: Traffic) -> Target {
        let address = IpAddr::from([10, 0, 0, last]);
        let description = TargetDescription::builder().id(address.to_string()).port(port).build();
        Target { address, traffic, description }
    }

    fn target(last: u8, traffic: Traffic) -> Target {
        target_at(last, 80, traffic)
    }

    /// Returns the IDs of the targets to register and to deregister.
    fn changed_ids(targets: &[Target], members: &[DesiredMember]) -> (Vec<String>, Vec<String>) {
        let params = Params {
            target_group: String::new(),
            port: 80,
            observe_only: false,
            availability_zone: None,
        };
        let changes = changes(targets, &params, members);
        let ids = |targets: Vec<TargetDescription>| {
            targets.into_iter().filter_map(|target| target.id).collect()
        };
        (ids(changes.register), ids(changes.deregister))
    }

    #[test]
    fn pods_are_registered_once_and_other_targets_deregistered() {
        let draining = Traffic::Draining(Some(1));
        let targets =
            [target(1, Traffic::Serving), target(2, draining), target(9, Traffic::Unhealthy)];
        let members = [
            pod(1, DesiredTraffic::Off),
            pod(2, DesiredTraffic::Off),
            pod(3, DesiredTraffic::Serve),
        ];
        let ids = |last: &[u8]| last.iter().map(|l| format!("10.0.0.{l}")).collect::<Vec<_>>();
        assert_eq!(changed_ids(&targets, &members), (ids(&[3]), ids(&[1, 9])));
        // A draining target is registered again.
        assert_eq!(
            changed_ids(&targets[1..2], &[pod(2, DesiredTraffic::Serve)]),
            (ids(&[2]), ids(&[]))
        );
        assert_eq!(
            changed_ids(&targets[..1], &[pod(1, DesiredTraffic::Serve)]),
            (ids(&[]), ids(&[]))
        );
        // A target at the previous port is deregistered, and counts until it is removed.
        let previous = [target_at(1, 79, Traffic::Serving)];
        assert_eq!(
            changed_ids(&previous, &[pod(1, DesiredTraffic::Serve)]),
            (ids(&[1]), ids(&[1]))
        );
        assert_eq!(traffic(&previous, &pod(1, DesiredTraffic::Off)), Traffic::Serving);
    }

    #[test]
    fn a_deregistered_target_drains_until_aws_removes_it() {
        let states = |state: TargetHealthStateEnum| traffic_of(Some(&state));
        assert_eq!(states(TargetHealthStateEnum::Draining), Traffic::Draining(Some(1)));
        assert_eq!(states(TargetHealthStateEnum::UnhealthyDraining), Traffic::Draining(Some(1)));
        assert_eq!(states(TargetHealthStateEnum::Initial), Traffic::Unhealthy);
        assert_eq!(states(TargetHealthStateEnum::Unused), Traffic::Unhealthy);
        assert_eq!(states(TargetHealthStateEnum::Healthy), Traffic::Serving);
        assert_eq!(traffic(&[], &pod(1, DesiredTraffic::Off)), Traffic::Absent);
    }
}
