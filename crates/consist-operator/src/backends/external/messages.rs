//! Messages of the adapter protocol, to and from the types of planning.

use std::collections::BTreeSet;

use podops_adapter::{
    ABSENT, DRAINING, INVALID, OFF, SERVE, SERVING, UNHEALTHY,
    client::Error,
    v1::{self, ApplyRequest, ObserveRequest},
};
use podops_api::ids::Uid;

use crate::{
    backends::{BackendError, DesiredMember, Employer, TrafficByPod},
    traffic::{DesiredTraffic, InFlight, Traffic},
};

/// Returns an employer with the adapter's parameters.
#[must_use]
pub fn employer(employer: &Employer, params: String) -> v1::Employer {
    v1::Employer {
        kind: employer.kind.clone(),
        namespace: employer.namespace.clone(),
        name: employer.name.clone(),
        uid: employer.uid.to_string(),
        params,
    }
}

/// Returns the request for the traffic of an employer's Pods.
#[must_use]
pub fn observe_request(employer: &v1::Employer, members: &[DesiredMember]) -> ObserveRequest {
    ObserveRequest {
        employer: Some(employer.clone()),
        members: members.iter().map(member).collect(),
    }
}

/// Returns the request to apply the desired traffic of an employer's Pods.
#[must_use]
pub fn apply_request(
    employer: &v1::Employer,
    members: &[DesiredMember],
    generation: u64,
) -> ApplyRequest {
    ApplyRequest {
        employer: Some(employer.clone()),
        generation,
        members: members.iter().map(desired).collect(),
    }
}

/// Classifies the error of a call to the adapter of this pattern.
#[must_use]
pub fn backend_error(pattern: &str, error: &Error) -> BackendError {
    let message = format!("adapter {pattern}: {error}");
    match error {
        Error::Rejected(_) => BackendError::InvalidParams(message),
        Error::InvalidResponse(_) => BackendError::InvalidResponse(message),
        Error::Unreachable(_) => BackendError::Unreachable(message),
    }
}

/// Returns the identity of a Pod.
fn member(member: &DesiredMember) -> v1::Member {
    v1::Member {
        uid: member.uid.to_string(),
        name: member.name.to_string(),
        addresses: member.addresses.iter().map(ToString::to_string).collect(),
    }
}

/// Returns a Pod with its desired traffic.
fn desired(desired: &DesiredMember) -> v1::Wanted {
    let want = if desired.traffic == DesiredTraffic::Serve { SERVE } else { OFF };
    v1::Wanted { member: Some(member(desired)), want: want.to_owned() }
}

/// Returns the observed traffic of the requested Pods; `pattern` names the adapter.
///
/// # Errors
///
/// [`BackendError::InvalidResponse`] if a state is unknown.
pub fn traffic(
    response: v1::ObserveResponse,
    members: &[DesiredMember],
    pattern: &str,
) -> Result<TrafficByPod, BackendError> {
    let requested: BTreeSet<&Uid> = members.iter().map(|member| &member.uid).collect();
    let mut observed = TrafficByPod::new();
    for member in response.members {
        let uid = Uid::from(member.uid.as_str());
        if requested.contains(&uid) {
            let traffic = traffic_of(&member).ok_or_else(|| {
                let state = &member.state;
                BackendError::InvalidResponse(format!("adapter {pattern}: unknown state {state:?}"))
            })?;
            observed.insert(uid, traffic);
        }
    }
    Ok(observed)
}

fn traffic_of(observed: &v1::Observed) -> Option<Traffic> {
    match observed.state.as_str() {
        SERVING => Some(Traffic::Serving),
        UNHEALTHY => Some(Traffic::Unhealthy),
        DRAINING => Some(Traffic::Draining(
            observed.in_flight.map_or(InFlight::Unreported, |count| InFlight::Count(count.into())),
        )),
        ABSENT => Some(Traffic::Absent),
        _ => None,
    }
}

/// Returns the error of the first Pod that the adapter cannot apply.
#[must_use]
pub fn rejection(response: v1::ApplyResponse) -> Option<BackendError> {
    let mut outcomes = response.outcomes.into_iter();
    let invalid = outcomes.find(|outcome| outcome.outcome == INVALID)?;
    Some(BackendError::InvalidParams(invalid.message))
}
