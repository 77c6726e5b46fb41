//! Calls of backend `endpointslice` to the API server.

use std::time::Duration;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, Client, api::ListParams};
use podops_client::decode::Decoded;

use super::{Backend, SyncFuture};
use crate::backends::{
    BackendError, DesiredMember, Employer, SyncResult,
    endpointslice::{observe, slice_selector},
};

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

    async fn observe(
        &self,
        employer: &Employer,
        members: &[DesiredMember],
    ) -> Result<SyncResult, BackendError> {
        let slices: Api<Decoded<EndpointSlice>> =
            Api::namespaced(self.client.clone(), &employer.namespace);
        let of_service = ListParams::default().labels(&slice_selector(employer)?);
        let found = slices
            .list(&of_service)
            .await
            .map_err(|error| BackendError::Unreachable(format!("EndpointSlices: {error}")))?;
        let decoded = found.items.into_iter().map(Decoded::into_result);
        // A Pod in a slice that cannot be decoded may have traffic.
        let slices = decoded.collect::<Result<Vec<_>, _>>().map_err(|invalid| {
            let name = invalid.metadata.name.unwrap_or_default();
            BackendError::InvalidResponse(format!(
                "EndpointSlice {name} cannot be decoded; fix or delete it: {}",
                invalid.error
            ))
        })?;
        Ok(SyncResult::complete(observe(&slices, members)))
    }
}

impl Backend for EndpointSlices {
    /// Lists the slices from the API server, because a stale cache could release a Pod that still
    /// has traffic.
    fn sync<'a>(&'a self, employer: &'a Employer, members: &'a [DesiredMember]) -> SyncFuture<'a> {
        Box::pin(async move { self.observe(employer, members).await.into() })
    }

    /// None, because the slices are watched.
    fn resync_interval(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use kube::client::Body;
    use podops_api::consist;
    use serde_json::{Value, json};

    use super::*;

    /// Observes a Service whose only slice is this one.
    async fn observed(slice: Value) -> Result<SyncResult, BackendError> {
        let list = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSliceList",
            "metadata": {}, "items": [slice],
        });
        let server = tower::service_fn(move |_: http::Request<Body>| {
            let body = Body::from(list.to_string().into_bytes());
            std::future::ready(Ok::<_, tower::BoxError>(http::Response::new(body)))
        });
        let employer = Employer { kind: consist::SERVICE.to_owned(), ..Employer::default() };
        EndpointSlices::new(Client::new(server, "ns")).observe(&employer, &[]).await
    }

    #[tokio::test]
    async fn a_slice_that_cannot_be_decoded_holds_the_pods() {
        let managed = json!([{ "manager": "m", "time": "9999-12-31T23:59:59Z" }]);
        let metadata = json!({ "name": "web-1", "managedFields": managed });
        let mut slice = json!({ "metadata": metadata, "addressType": "IPv4", "endpoints": [] });
        let read = observed(slice.clone()).await.unwrap();
        assert_eq!(read.error, None, "managed fields are not read");
        slice["metadata"]["creationTimestamp"] = json!("9999-12-31T23:59:59Z");
        let error = observed(slice).await.unwrap_err().to_string();
        assert!(error.starts_with("EndpointSlice web-1 cannot be decoded"), "{error}");
    }
}
