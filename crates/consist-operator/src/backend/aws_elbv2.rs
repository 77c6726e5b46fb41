//! Target groups of AWS's Elastic Load Balancing: Pods are registered and deregistered by address, and
//! AWS itself says how long one drains.

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
    Answer, Backend, BackendError, CircuitBreaker, Employer, ExclusiveBackends, SyncResult, Wanted,
    permit, rate_limiter::RateLimiter, together,
};
use crate::{plan::Want, view::Traffic};

/// How long one call may take.
const CALL: Duration = Duration::from_secs(10);
/// Codes of refusals that may be none the next time: too many calls, or a fault of AWS's own.
const PASSES: [&str; 13] = [
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
/// How many targets go into one call.
const TARGETS_MAX: usize = 200;
/// How much of a refusal is shown to people.
const SHOWN_MAX: usize = 300;

/// The annotation's content.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Params {
    /// The ARN of the target group, of type `ip`.
    target_group: String,
    /// The port of the Pods.
    port: u16,
    /// Whether somebody else registers the Pods, such as the AWS Load Balancer Controller.
    #[serde(default)]
    observe_only: bool,
    /// Where the Pods are, if not in the load balancer's own network: `all`.
    availability_zone: Option<String>,
}

/// Drives target groups.
pub struct AwsElbV2 {
    /// Which target groups employers may name, as [`permit`] has it: the operator's account may have
    /// others' too.
    allowed: Vec<String>,
    rate_limiter: RateLimiter,
    exclusive_backends: ExclusiveBackends,
    circuit_breaker: CircuitBreaker,
    clients: Mutex<BTreeMap<String, Client>>,
}

impl AwsElbV2 {
    /// Drives these target groups, with so many calls a second; credentials are looked for as AWS's own
    /// tools do, once somebody needs them.
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

    /// The client of a region.
    async fn client(&self, region: &str) -> Client {
        let mut clients = self.clients.lock().await;
        if let Some(client) = clients.get(region) {
            return client.clone();
        }
        let client = Client::new(&config(region).await);
        clients.insert(region.to_owned(), client.clone());
        client
    }

    async fn at(&self, employer: &Employer, wanted: &[Wanted]) -> Result<SyncResult, BackendError> {
        let params: Params = employer.params()?;
        let arn = &params.target_group;
        permit(&self.allowed, &employer.namespace, arn, "target groups")?;
        let region = arn.split(':').nth(3).filter(|region| !region.is_empty());
        let region = region
            .ok_or_else(|| BackendError::Params(format!("backend-params: {arn} is no ARN")))?;
        let client = self.client(region).await;
        if !params.observe_only {
            self.exclusive_backends.claim(employer, std::slice::from_ref(arn))?;
        }
        let (mut targets, mut refusal) =
            (self.circuit_breaker.ask(region, self.look(&client, &params)).await?, None);
        let changes = changes(&targets, &params, wanted);
        if !params.observe_only && !changes.is_empty() {
            let refused = self.change(&client, arn, &changes).await;
            // What one of them is refused keeps nobody from looking at the others.
            targets = match self.look(&client, &params).await {
                Ok(targets) => targets,
                Err(fault) => return Ok(SyncResult::blind(wanted, fault)),
            };
            refusal = refused.err();
        }
        let observed = wanted.iter().map(|pod| (pod.uid.clone(), traffic(&targets, pod)));
        // What AWS refuses it does not do; of anything else nobody knows what will come of it yet.
        let known = matches!(refusal, Some(BackendError::Params(_)));
        let (unfulfilled, fault) = if known { (refusal, None) } else { (None, refusal) };
        Ok(SyncResult { observed: observed.collect(), fault, unfulfilled })
    }

    /// Deregisters and registers, as far as it goes: the first refusal is told.
    async fn change(
        &self,
        client: &Client,
        arn: &str,
        changes: &Changes,
    ) -> Result<(), BackendError> {
        let mut first = Ok(());
        for batch in changes.deregister.chunks(TARGETS_MAX) {
            self.rate_limiter.turn().await;
            let call = client.deregister_targets().target_group_arn(arn);
            let done = call.set_targets(Some(batch.to_vec())).send().await;
            first = first.and(done.map(drop).map_err(|error| fault(&error)));
        }
        let mut batches: Vec<_> = changes.register.chunks(TARGETS_MAX).collect();
        while let Some(batch) = batches.pop() {
            self.rate_limiter.turn().await;
            let call = client.register_targets().target_group_arn(arn);
            let done = call.set_targets(Some(batch.to_vec())).send().await;
            let done = done.map(drop).map_err(|error| fault(&error));
            // AWS refuses all for one that it cannot take: the others are not to wait for it.
            if matches!(done, Err(BackendError::Params(_))) && batch.len() > 1 {
                let (one, other) = batch.split_at(batch.len() / 2);
                batches.extend([one, other]);
                continue;
            }
            first = first.and(done);
        }
        first
    }

    async fn look(&self, client: &Client, params: &Params) -> Result<Vec<Target>, BackendError> {
        self.rate_limiter.turn().await;
        let call = client.describe_target_health().target_group_arn(&params.target_group);
        let told = call.send().await.map_err(|error| fault(&error))?;
        let told = told.target_health_descriptions;
        let told =
            told.ok_or_else(|| BackendError::Garbage("AWS: an answer without targets".to_owned()))?;
        Ok(told.iter().filter_map(read).collect())
    }
}

impl Backend for AwsElbV2 {
    fn release(&self, employer: &str) {
        self.exclusive_backends.release(employer);
    }

    fn sync<'a>(&'a self, employer: &'a Employer, wanted: &'a [Wanted]) -> Answer<'a> {
        Box::pin(async move { self.at(employer, wanted).await.into() })
    }
}

async fn config(region: &str) -> SdkConfig {
    // One TLS for everything.
    let http = Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https();
    aws_config::defaults(BehaviorVersion::latest())
        .region(Region::new(region.to_owned()))
        .http_client(http)
        // Whoever waits asks again, with pauses of its own.
        .retry_config(RetryConfig::disabled())
        .timeout_config(TimeoutConfig::builder().operation_timeout(CALL).build())
        .load()
        .await
}

/// Why a call came to nothing.
fn fault<E, R>(error: &SdkError<E, R>) -> BackendError
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
    R: std::fmt::Debug,
{
    let code = error.as_service_error().and_then(ProvideErrorMetadata::code);
    let words = error.as_service_error().and_then(ProvideErrorMetadata::message);
    let told = match (code, words) {
        (Some(code), words) => format!("AWS: {code}: {}", words.unwrap_or_default()),
        (None, _) => format!("AWS: {}", DisplayErrorContext(error)),
    };
    let told: String = told.chars().take(SHOWN_MAX).collect();
    match (error, code) {
        (SdkError::ResponseError(_), _) => BackendError::Garbage(told),
        (SdkError::ServiceError(_), Some(code)) if !PASSES.contains(&code) => {
            BackendError::Params(told)
        }
        _ => BackendError::Unreachable(told),
    }
}

/// A registered target.
#[derive(Clone, Debug, PartialEq)]
struct Target {
    address: IpAddr,
    state: Traffic,
    /// As AWS describes it.
    itself: TargetDescription,
}

fn read(told: &TargetHealthDescription) -> Option<Target> {
    let target = told.target.as_ref()?;
    let state = told.target_health.as_ref().and_then(|health| health.state.as_ref());
    let address = target.id.as_deref()?.parse().ok()?;
    Some(Target { address, state: state_of(state), itself: target.clone() })
}

/// What AWS's word for a target means.
fn state_of(state: Option<&TargetHealthStateEnum>) -> Traffic {
    match state {
        // Nobody checks its health, and it gets traffic whatever that is.
        Some(TargetHealthStateEnum::Healthy | TargetHealthStateEnum::Unavailable) => {
            Traffic::Serving
        }
        // AWS ends it when no request is left, or after the group's deregistration delay.
        Some(TargetHealthStateEnum::Draining | TargetHealthStateEnum::UnhealthyDraining) => {
            Traffic::Draining(Some(1))
        }
        // New, failing its checks, in a group that no listener uses, or a word of tomorrow.
        _ => Traffic::Unhealthy,
    }
}

/// What has to be said so that what is wanted comes about.
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

fn changes(targets: &[Target], params: &Params, wanted: &[Wanted]) -> Changes {
    let describe = |address: IpAddr| {
        let target = TargetDescription::builder().id(address.to_string()).port(params.port.into());
        target.set_availability_zone(params.availability_zone.clone()).build()
    };
    let is_registered = |target: &&Target| !matches!(target.state, Traffic::Draining(_));
    let fits = |target: &Target, pod: &Wanted| {
        target.itself.port == Some(params.port.into()) && pod.addresses.contains(&target.address)
    };
    let serving =
        |target: &Target| wanted.iter().any(|pod| pod.want == Want::Serve && fits(target, pod));
    let registered =
        |pod: &&Wanted| targets.iter().filter(is_registered).any(|target| fits(target, pod));
    let serve = wanted.iter().filter(|pod| pod.want == Want::Serve && !registered(pod));
    // Pods that are to have no traffic, and who is nobody's: a Pod that is gone.
    let leave = targets.iter().filter(is_registered).filter(|target| !serving(target));
    Changes {
        register: serve.filter_map(|pod| pod.addresses.first().copied()).map(describe).collect(),
        deregister: leave.map(|target| target.itself.clone()).collect(),
    }
}

fn traffic(targets: &[Target], pod: &Wanted) -> Traffic {
    // At another port, or in another zone, it may be there as well.
    let own = targets.iter().filter(|target| pod.addresses.contains(&target.address));
    let serves = pod.want == Want::Serve;
    own.fold(Traffic::Absent, |one, target| together(one, target.state, serves))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(last: u8, want: Want) -> Wanted {
        let addresses = vec![IpAddr::from([10, 0, 0, last])];
        Wanted { name: last.to_string(), uid: last.to_string(), addresses, want }
    }

    fn at(last: u8, port: i32, state: Traffic) -> Target {
        let address = IpAddr::from([10, 0, 0, last]);
        let itself = TargetDescription::builder().id(address.to_string()).port(port).build();
        Target { address, state, itself }
    }

    fn target(last: u8, state: Traffic) -> Target {
        at(last, 80, state)
    }

    fn said(targets: &[Target], wanted: &[Wanted]) -> (Vec<String>, Vec<String>) {
        let params = Params {
            target_group: String::new(),
            port: 80,
            observe_only: false,
            availability_zone: None,
        };
        let changes = changes(targets, &params, wanted);
        let ids = |of: Vec<TargetDescription>| of.into_iter().filter_map(|t| t.id).collect();
        (ids(changes.register), ids(changes.deregister))
    }

    #[test]
    fn pods_are_registered_and_deregistered_once_and_strangers_go() {
        let draining = Traffic::Draining(Some(1));
        let here =
            [target(1, Traffic::Serving), target(2, draining), target(9, Traffic::Unhealthy)];
        let wanted = [pod(1, Want::Off), pod(2, Want::Off), pod(3, Want::Serve)];
        let ids = |last: &[u8]| last.iter().map(|l| format!("10.0.0.{l}")).collect::<Vec<_>>();
        assert_eq!(said(&here, &wanted), (ids(&[3]), ids(&[1, 9])));
        // One that drains is wanted again.
        assert_eq!(said(&here[1..2], &[pod(2, Want::Serve)]), (ids(&[2]), ids(&[])));
        assert_eq!(said(&here[..1], &[pod(1, Want::Serve)]), (ids(&[]), ids(&[])));
        // What was registered at another port goes, and counts until then.
        let before = [at(1, 79, Traffic::Serving)];
        assert_eq!(said(&before, &[pod(1, Want::Serve)]), (ids(&[1]), ids(&[1])));
        assert_eq!(traffic(&before, &pod(1, Want::Off)), Traffic::Serving);
    }

    #[test]
    fn a_target_that_drains_is_not_gone_before_aws_says_so() {
        let states = |state: TargetHealthStateEnum| state_of(Some(&state));
        assert_eq!(states(TargetHealthStateEnum::Draining), Traffic::Draining(Some(1)));
        assert_eq!(states(TargetHealthStateEnum::UnhealthyDraining), Traffic::Draining(Some(1)));
        assert_eq!(states(TargetHealthStateEnum::Initial), Traffic::Unhealthy);
        assert_eq!(states(TargetHealthStateEnum::Unused), Traffic::Unhealthy);
        assert_eq!(states(TargetHealthStateEnum::Healthy), Traffic::Serving);
        assert_eq!(traffic(&[], &pod(1, Want::Off)), Traffic::Absent);
    }
}
