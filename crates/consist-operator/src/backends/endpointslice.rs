//! Backend `endpointslice`: traffic of Pods by the EndpointSlices of a Service, by which
//! kube-proxy, ingresses and meshes route traffic. Read-only; Kubernetes itself removes Pods that
//! are not Ready.
//!
//! Proxies converge some time after a Pod was removed from the slices, which cannot be observed;
//! `minSeconds` of the drain policy covers that time.

use std::collections::BTreeMap;

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use podops_api::{consist, ids::Uid};

use super::{BackendError, DesiredMember, Employer, TrafficByPod};
use crate::traffic::Traffic;

/// Name of the backend.
pub const NAME: &str = "endpointslice";
/// Label of an EndpointSlice with the name of its Service.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Returns the label selector of an employer's slices.
///
/// # Errors
///
/// [`BackendError::InvalidParams`] if the employer is not a Service.
pub fn slice_selector(employer: &Employer) -> Result<String, BackendError> {
    if employer.kind != consist::SERVICE {
        return Err(BackendError::InvalidParams(format!(
            "{} has no EndpointSlices; set another backend",
            employer.kind
        )));
    }
    Ok(format!("{SERVICE_NAME}={}", employer.name))
}

/// Returns the traffic of all Pods by the slices of their Service.
#[must_use]
pub fn observe(slices: &[EndpointSlice], members: &[DesiredMember]) -> TrafficByPod {
    let by_uid = traffic_by_uid(slices);
    let observed = members.iter().map(|member| {
        let traffic = by_uid.get(&member.uid).copied().unwrap_or(Traffic::Absent);
        (member.uid.clone(), traffic)
    });
    observed.collect()
}

/// Returns the traffic of each Pod in the slices, by UID. A Pod that is ready in any slice has
/// traffic.
fn traffic_by_uid(slices: &[EndpointSlice]) -> BTreeMap<Uid, Traffic> {
    let mut observed = BTreeMap::new();
    for endpoint in slices.iter().flat_map(|slice| slice.endpoints.iter().flatten()) {
        let reference = endpoint.target_ref.as_ref();
        let Some(uid) = reference.and_then(|pod| pod.uid.as_deref()).map(Uid::from) else {
            continue;
        };
        if is_ready(endpoint) {
            observed.insert(uid, Traffic::Serving);
        } else {
            observed.entry(uid).or_insert(Traffic::Absent);
        }
    }
    observed
}

fn is_ready(endpoint: &Endpoint) -> bool {
    // An unset condition means ready, by the API's definition.
    endpoint.conditions.as_ref().and_then(|c| c.ready).unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_has_traffic_while_it_is_ready_in_any_slice() {
        let endpoint = |uid: &str, conditions: serde_json::Value| {
            let target = json!({ "kind": "Pod", "uid": uid });
            json!({ "addresses": ["10.0.0.1"], "targetRef": target, "conditions": conditions })
        };
        let slice = |endpoints: serde_json::Value| -> EndpointSlice {
            serde_json::from_value(json!({ "addressType": "IPv4", "endpoints": endpoints }))
                .unwrap()
        };
        let slices = [
            slice(json!([
                endpoint("a", json!({ "ready": true })),
                endpoint("b", json!({ "ready": false, "serving": true, "terminating": true })),
                { "addresses": ["10.0.0.9"] },
            ])),
            slice(json!([endpoint("a", json!({ "ready": false })), endpoint("c", json!({})),])),
            slice(json!(null)),
        ];
        let on = Traffic::Serving;
        let off = Traffic::Absent;
        let expected =
            [("a", on), ("b", off), ("c", on)].map(|(uid, traffic)| (uid.into(), traffic));
        assert_eq!(traffic_by_uid(&slices), BTreeMap::from(expected));
    }
}
