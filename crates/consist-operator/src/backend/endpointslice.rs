//! Backend `endpointslice`: reads the EndpointSlices of a Service, by which kube-proxy, ingresses
//! and meshes route traffic. Read-only; Kubernetes itself removes Pods that are not Ready.
//!
//! Proxies converge some time after a Pod was removed from the slices, which cannot be observed;
//! `minSeconds` of the drain policy covers that time.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use kube::{Api, Client, api::ListParams};
use podops_api::consist;

use super::{Backend, BackendError, DesiredMember, Employer, SyncFuture, SyncResult};
use crate::view::Traffic;

/// Label of an EndpointSlice with the name of its Service.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Reads EndpointSlices from the API server.
pub struct EndpointSlices {
    client: Client,
}

impl EndpointSlices {
    /// Creates the backend with a client of the API server.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client }
    }
}

impl Backend for EndpointSlices {
    /// Lists the slices from the API server, because a stale cache could release a Pod that still
    /// has traffic.
    fn sync<'a>(&'a self, employer: &'a Employer, members: &'a [DesiredMember]) -> SyncFuture<'a> {
        Box::pin(async move {
            let slices: Api<EndpointSlice> =
                Api::namespaced(self.client.clone(), &employer.namespace);
            if employer.kind != consist::SERVICE {
                return BackendError::InvalidParams(format!(
                    "{} has no EndpointSlices; set another backend",
                    employer.kind
                ))
                .into();
            }
            let of_service =
                ListParams::default().labels(&format!("{SERVICE_NAME}={}", employer.name));
            let slices = match slices.list(&of_service).await {
                Ok(slices) => slices,
                Err(error) => {
                    return BackendError::Unreachable(format!("EndpointSlices: {error}")).into();
                }
            };
            let traffic_by_uid = traffic_by_uid(&slices.items);
            let traffic = |member: &DesiredMember| {
                traffic_by_uid.get(member.uid.as_str()).copied().unwrap_or(Traffic::Absent)
            };
            let observed =
                members.iter().map(|member| (member.uid.clone(), traffic(member))).collect();
            SyncResult::complete(observed)
        })
    }

    /// None, because the slices are watched.
    fn resync_interval(&self) -> Option<Duration> {
        None
    }
}

/// Returns the traffic of each Pod in the slices, by UID. A Pod that is ready in any slice has
/// traffic.
fn traffic_by_uid(slices: &[EndpointSlice]) -> BTreeMap<&str, Traffic> {
    let mut observed = BTreeMap::new();
    for endpoint in slices.iter().flat_map(|slice| slice.endpoints.iter().flatten()) {
        let Some(uid) = endpoint.target_ref.as_ref().and_then(|pod| pod.uid.as_deref()) else {
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
    // An unset condition counts as ready, by the API's definition.
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
        let (on, off) = (Traffic::Serving, Traffic::Absent);
        assert_eq!(traffic_by_uid(&slices), BTreeMap::from([("a", on), ("b", off), ("c", on)]));
    }
}
