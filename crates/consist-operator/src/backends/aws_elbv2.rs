//! Backend `aws-elbv2`: targets of a target group of AWS Elastic Load Balancing, and the changes
//! that bring them to the desired state.
//!
//! Pods are registered by IP address. AWS reports how long a deregistered target drains.

use std::net::IpAddr;

use serde::Deserialize;

use super::{BackendError, DesiredMember, Employer, SyncResult, check_allowed};
use crate::traffic::{DesiredTraffic, InFlight, Traffic};

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
/// Maximum length of AWS's error in a message, in characters.
const MESSAGE_MAX: usize = 300;

/// Content of the annotation `backend-params`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Params {
    /// ARN of a target group of type `ip`.
    pub target_group: String,
    /// Port of the Pods.
    pub port: u16,
    /// True if another controller registers the Pods, such as the AWS Load Balancer Controller;
    /// target health is then only read.
    #[serde(default)]
    pub observe_only: bool,
    /// `all` for Pods outside the load balancer's VPC.
    pub availability_zone: Option<String>,
}

impl Params {
    /// Parses the parameters of an employer. `allowed` are the target groups that employers may
    /// use, as patterns for [`check_allowed`]: the operator's account may contain others.
    ///
    /// # Errors
    ///
    /// [`BackendError::InvalidParams`] if they are invalid or not allowed.
    pub fn read(employer: &Employer, allowed: &[String]) -> Result<Self, BackendError> {
        let params: Self = employer.params()?;
        check_allowed(allowed, &employer.namespace, &params.target_group, "--aws-target-groups")?;
        Ok(params)
    }

    /// Returns the region of the target group.
    ///
    /// # Errors
    ///
    /// [`BackendError::InvalidParams`] if the ARN contains none.
    pub fn region(&self) -> Result<&str, BackendError> {
        let arn = &self.target_group;
        let region = arn.split(':').nth(3).filter(|region| !region.is_empty());
        region.ok_or_else(|| {
            BackendError::InvalidParams(format!("backend-params.targetGroup: invalid ARN {arn}"))
        })
    }
}

/// Maximum number of targets in one call.
pub const TARGETS_MAX: usize = 200;

/// Targets that are still to be registered, in batches.
#[derive(Debug)]
pub struct Registrations(Vec<Vec<TargetId>>);

impl Registrations {
    /// Splits the targets into batches of [`TARGETS_MAX`].
    #[must_use]
    pub fn new(targets: &[TargetId]) -> Self {
        Self(targets.chunks(TARGETS_MAX).map(<[_]>::to_vec).collect())
    }

    /// Takes the next batch.
    pub fn next_batch(&mut self) -> Option<Vec<TargetId>> {
        self.0.pop()
    }

    /// Records the result of a batch, and returns it unless the batch is tried again: AWS rejects a
    /// whole batch for one invalid target, so it is halved, and the others do not wait.
    ///
    /// # Errors
    ///
    /// The error of the batch.
    pub fn record(
        &mut self,
        batch: &[TargetId],
        result: Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        if matches!(result, Err(BackendError::InvalidParams(_))) && batch.len() > 1 {
            let (first, second) = batch.split_at(batch.len() / 2);
            self.0.extend([first.to_vec(), second.to_vec()]);
            return Ok(());
        }
        result
    }
}

/// A failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFailure<'a> {
    /// The response cannot be parsed.
    InvalidResponse,
    /// AWS returned an error with this code.
    Service {
        /// Error code, if the response contains one.
        code: Option<&'a str>,
    },
    /// No response.
    NoResponse,
}

impl CallFailure<'_> {
    /// Classifies the failure; AWS's `message` is truncated.
    #[must_use]
    pub fn into_error(self, message: &str) -> BackendError {
        let text: String = message.chars().take(MESSAGE_MAX).collect();
        match self {
            Self::InvalidResponse => BackendError::InvalidResponse(text),
            Self::Service { code: Some(code) } if !TRANSIENT_CODES.contains(&code) => {
                BackendError::InvalidParams(text)
            }
            Self::Service { .. } | Self::NoResponse => BackendError::Unreachable(text),
        }
    }
}

/// Identity of a target in its group, as AWS describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetId {
    /// IP address; another ID in a group of another type.
    pub id: String,
    /// Port, if it is not the group's.
    pub port: Option<i32>,
    /// Availability zone, or `all`.
    pub availability_zone: Option<String>,
    /// QUIC server ID, which no target registered here has.
    pub quic_server_id: Option<String>,
}

/// A registered target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    address: IpAddr,
    traffic: Traffic,
    id: TargetId,
}

impl Target {
    /// Returns a target with its health state; `None` if it is not an IP address.
    #[must_use]
    pub fn new(id: TargetId, state: Option<&str>) -> Option<Self> {
        let address = id.id.parse().ok()?;
        Some(Self { address, traffic: traffic_of(state), id })
    }

    /// Returns whether the target is registered. A deregistered one is listed while it drains.
    fn is_registered(&self) -> bool {
        !matches!(self.traffic, Traffic::Draining(_))
    }

    fn is_of(&self, pod: &DesiredMember, port: u16) -> bool {
        self.id.port == Some(port.into()) && pod.addresses.contains(&self.address)
    }

    /// Returns whether a Pod that should serve has this target.
    fn should_serve(&self, members: &[DesiredMember], port: u16) -> bool {
        let mut serving = members.iter().filter(|pod| pod.traffic == DesiredTraffic::Serve);
        serving.any(|pod| self.is_of(pod, port))
    }
}

/// Returns the traffic of a target in this health state.
fn traffic_of(state: Option<&str>) -> Traffic {
    match state {
        // `unavailable`: health checks are disabled, so the target gets traffic.
        Some("healthy" | "unavailable") => Traffic::Serving,
        // The state ends with the last request, or after the group's deregistration delay.
        Some("draining" | "unhealthy.draining") => Traffic::Draining(InFlight::Uncounted),
        // New, failing its health checks, in a group without listener, or an unknown state.
        _ => Traffic::Unhealthy,
    }
}

/// Changes that bring a target group to the desired state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Targets to register.
    pub register: Vec<TargetId>,
    /// Targets to deregister.
    pub deregister: Vec<TargetId>,
}

impl Changes {
    /// Returns whether nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.register.is_empty() && self.deregister.is_empty()
    }
}

/// Decides which targets to register and to deregister.
#[must_use]
pub fn changes(targets: &[Target], params: &Params, members: &[DesiredMember]) -> Changes {
    let registered: Vec<&Target> = targets.iter().filter(|target| target.is_registered()).collect();
    let unregistered = members.iter().filter(|pod| {
        pod.traffic == DesiredTraffic::Serve
            && !registered.iter().any(|target| target.is_of(pod, params.port))
    });
    // Targets of Pods that should be off, and targets without a member, as of a deleted Pod.
    let surplus = registered.iter().filter(|target| !target.should_serve(members, params.port));
    Changes {
        register: unregistered
            .filter_map(|pod| pod.addresses.first())
            .map(|address| target_id(*address, params))
            .collect(),
        deregister: surplus.map(|target| target.id.clone()).collect(),
    }
}

fn target_id(address: IpAddr, params: &Params) -> TargetId {
    TargetId {
        id: address.to_string(),
        port: Some(params.port.into()),
        availability_zone: params.availability_zone.clone(),
        quic_server_id: None,
    }
}

/// Returns the result of a sync that observed these targets, after changes of which one may have
/// failed.
#[must_use]
pub fn sync_result(
    targets: &[Target],
    members: &[DesiredMember],
    failure: Option<BackendError>,
) -> SyncResult {
    let observed = members.iter().map(|pod| (pod.uid.clone(), traffic(targets, pod))).collect();
    let result = SyncResult::complete(observed);
    // A rejected change has no effect; any other failed change may still take effect.
    if matches!(failure, Some(BackendError::InvalidParams(_))) {
        SyncResult { unfulfilled: failure, ..result }
    } else {
        SyncResult { error: failure, ..result }
    }
}

fn traffic(targets: &[Target], pod: &DesiredMember) -> Traffic {
    // At any port and in any zone, because both may have been changed.
    let own = targets.iter().filter(|target| pod.addresses.contains(&target.address));
    own.map(|target| target.traffic).fold(Traffic::Absent, Traffic::combine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rejected_batch_is_halved_until_the_invalid_target_is_alone() {
        let target = |id: usize| TargetId {
            id: id.to_string(),
            port: None,
            availability_zone: None,
            quic_server_id: None,
        };
        let targets: Vec<TargetId> = (0..TARGETS_MAX + 50).map(target).collect();
        let mut registrations = Registrations::new(&targets);
        let mut registered = 0;
        let mut errors = 0;
        while let Some(batch) = registrations.next_batch() {
            assert!(batch.len() <= TARGETS_MAX);
            let is_invalid = batch.contains(&target(77));
            let invalid = BackendError::InvalidParams("77".to_owned());
            let result = if is_invalid { Err(invalid) } else { Ok(()) };
            registered += if is_invalid { 0 } else { batch.len() };
            errors += usize::from(registrations.record(&batch, result).is_err());
        }
        assert_eq!((registered, errors), (targets.len() - 1, 1));
    }

    const DRAINING: Traffic = Traffic::Draining(InFlight::Uncounted);

    fn pod(last: u8, traffic: DesiredTraffic) -> DesiredMember {
        let addresses = vec![IpAddr::from([10, 0, 0, last])];
        DesiredMember {
            name: last.to_string().into(),
            uid: last.to_string().into(),
            addresses,
            traffic,
        }
    }

    fn target_at(last: u8, port: i32, traffic: Traffic) -> Target {
        let address = IpAddr::from([10, 0, 0, last]);
        let id = TargetId {
            id: address.to_string(),
            port: Some(port),
            availability_zone: None,
            quic_server_id: None,
        };
        Target { address, traffic, id }
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
        let ids = |targets: Vec<TargetId>| targets.into_iter().map(|target| target.id).collect();
        (ids(changes.register), ids(changes.deregister))
    }

    #[test]
    fn pods_are_registered_once_and_other_targets_deregistered() {
        let targets =
            [target(1, Traffic::Serving), target(2, DRAINING), target(9, Traffic::Unhealthy)];
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
        for (state, traffic) in [
            ("draining", DRAINING),
            ("unhealthy.draining", DRAINING),
            ("initial", Traffic::Unhealthy),
            ("unused", Traffic::Unhealthy),
            ("healthy", Traffic::Serving),
            ("unavailable", Traffic::Serving),
        ] {
            assert_eq!(traffic_of(Some(state)), traffic, "{state}");
        }
        assert_eq!(traffic(&[], &pod(1, DesiredTraffic::Off)), Traffic::Absent);
    }
}
