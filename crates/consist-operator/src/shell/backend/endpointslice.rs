//! Calls of backend `endpointslice` to the API server.

use std::time::Duration;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, Client, api::ListParams};

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
        let slices: Api<EndpointSlice> = Api::namespaced(self.client.clone(), &employer.namespace);
        let of_service = ListParams::default().labels(&slice_selector(employer)?);
        let found = slices
            .list(&of_service)
            .await
            .map_err(|error| BackendError::Unreachable(format!("EndpointSlices: {error}")))?;
        Ok(SyncResult::complete(observe(&found.items, members)))
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
