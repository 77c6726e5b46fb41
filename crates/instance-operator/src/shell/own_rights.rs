//! Checks before the rights of the operator itself are used for an Instance, which is the case for
//! Instances without ServiceAccount.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use http::Request;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::{Api, Client, api::PostParams};
use parking_lot::Mutex;
use serde_json::Value;

/// Path of the schemas of the API version of Instances.
const SCHEMAS: &str = "/openapi/v3/apis/kudo.dev/v1beta1";
/// Pointer to the schema of `spec.serviceAccountName` in these schemas.
const SERVICE_ACCOUNT: &str =
    "/components/schemas/dev.kudo.v1beta1.Instance/properties/spec/properties/serviceAccountName";
/// Time for which the result of an access review is used.
const REVIEWED: Duration = Duration::from_secs(60);

/// Message for an Instance whose CRD lacks the field.
pub(super) const INCOMPLETE_CRD: &str = "the CustomResourceDefinition instances.kudo.dev does not have spec.serviceAccountName, so the \
     API server drops it, and the Instance would get the rights of the operator; apply the CRDs of \
     this release";

/// What the operator knows about its own rights.
pub(super) struct OwnRights {
    client: Client,
    stores_service_account: AtomicBool,
    namespaces: Mutex<Option<(Instant, bool)>>,
}

impl OwnRights {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            stores_service_account: AtomicBool::new(false),
            namespaces: Mutex::new(None),
        }
    }

    /// Returns whether the API server stores `spec.serviceAccountName`. Without it, as with the CRDs
    /// of KUDO, an Instance that names a ServiceAccount is read as one without.
    ///
    /// # Errors
    ///
    /// If the schemas cannot be read.
    pub(super) async fn is_service_account_stored(&self) -> kube::Result<bool> {
        if self.stores_service_account.load(Ordering::Relaxed) {
            return Ok(true);
        }
        let request = Request::get(SCHEMAS).body(Vec::new()).map_err(kube::Error::HttpError)?;
        let schemas: Value = self.client.request(request).await?;
        let is_stored = schemas.pointer(SERVICE_ACCOUNT).is_some();
        self.stores_service_account.store(is_stored, Ordering::Relaxed);
        Ok(is_stored)
    }

    /// Returns whether tasks may read Namespaces. The operator reads them for itself, so it needs a
    /// right that only the component `package-admin` grants.
    ///
    /// # Errors
    ///
    /// If the API server does not review the access.
    pub(super) async fn may_read_namespaces(&self) -> kube::Result<bool> {
        let known = self.namespaces.lock().filter(|(since, _)| since.elapsed() < REVIEWED);
        if let Some((_, is_allowed)) = known {
            return Ok(is_allowed);
        }
        let attributes = ResourceAttributes {
            verb: Some("patch".to_owned()),
            resource: Some("namespaces".to_owned()),
            ..ResourceAttributes::default()
        };
        let spec = SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            ..SelfSubjectAccessReviewSpec::default()
        };
        let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
        let reviews: Api<SelfSubjectAccessReview> = Api::all(self.client.clone());
        let reviewed = reviews.create(&PostParams::default(), &review).await?;
        let is_allowed = reviewed.status.is_some_and(|status| status.allowed);
        *self.namespaces.lock() = Some((Instant::now(), is_allowed));
        Ok(is_allowed)
    }
}
