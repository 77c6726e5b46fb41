//! The EndpointSlices of a Service: what kube-proxy, ingresses and meshes send traffic by. Only looked
//! at; Kubernetes itself takes Pods off that are not Ready.
//!
//! That a Pod is in no slice is not that every proxy has heard of it: `minSeconds` of the drain policy
//! is the time which that takes.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use kube::{Api, Client, api::ListParams};
use podops_api::consist;

use super::{Answer, Backend, BackendError, Employer, SyncResult, Wanted};
use crate::view::Traffic;

/// The label that says whose slice it is.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Looks at EndpointSlices.
pub struct EndpointSlices {
    client: Client,
}

impl EndpointSlices {
    /// Looks with this client.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client }
    }
}

impl Backend for EndpointSlices {
    /// Lists the slices: a cache could show what was, and a Pod would be let go while it has traffic.
    fn sync<'a>(&'a self, employer: &'a Employer, wanted: &'a [Wanted]) -> Answer<'a> {
        Box::pin(async move {
            let slices: Api<EndpointSlice> =
                Api::namespaced(self.client.clone(), &employer.namespace);
            if employer.kind != consist::SERVICE {
                let told = format!("{} has no EndpointSlices; name another backend", employer.kind);
                return BackendError::Params(told).into();
            }
            let of_service =
                ListParams::default().labels(&format!("{SERVICE_NAME}={}", employer.name));
            let listed = match slices.list(&of_service).await {
                Ok(listed) => listed,
                Err(error) => {
                    return BackendError::Unreachable(format!("EndpointSlices: {error}")).into();
                }
            };
            let observed = look(&listed.items);
            let told =
                |w: &Wanted| observed.get(w.uid.as_str()).copied().unwrap_or(Traffic::Absent);
            let observed = wanted.iter().map(|w| (w.uid.clone(), told(w))).collect();
            SyncResult::of(observed)
        })
    }

    /// The slices are watched.
    fn resync(&self) -> Option<Duration> {
        None
    }
}

/// What slices say of Pods, by UID. One that is ready in any slice has traffic.
fn look(slices: &[EndpointSlice]) -> BTreeMap<&str, Traffic> {
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
    // Nothing said is yes, by the API's own definition.
    endpoint.conditions.as_ref().and_then(|c| c.ready).unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_has_traffic_while_any_slice_says_that_it_is_ready() {
        let endpoint = |uid: &str, conditions: serde_json::Value| json!({ "addresses": ["10.0.0.1"], "targetRef": { "kind": "Pod", "uid": uid }, "conditions": conditions });
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
        assert_eq!(look(&slices), BTreeMap::from([("a", on), ("b", off), ("c", on)]));
    }
}
