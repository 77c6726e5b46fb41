//! Checks before the rights of the operator itself are used for an Instance, which is the case for
//! Instances without ServiceAccount.

use std::{
    collections::BTreeMap,
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

/// Maximum number of cached results.
const CAPACITY: usize = 256;

/// Message for an Instance whose CRD lacks the field.
pub(super) const INCOMPLETE_CRD: &str = "\
    the CustomResourceDefinition instances.kudo.dev does not have spec.serviceAccountName, so the API \
    server drops it, and the Instance would get the rights of the operator; apply the CRDs of this \
    release";

/// Checks of the operator's rights, and their recent results.
pub(super) struct OwnRights {
    client: Client,
    stores_service_account: AtomicBool,
    /// Results of access reviews, by name of the Namespace; `None` is all of them.
    namespaces: Mutex<BTreeMap<Option<String>, (Instant, bool)>>,
}

impl OwnRights {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            stores_service_account: AtomicBool::new(false),
            namespaces: Mutex::default(),
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

    /// Returns whether tasks may read a Namespace, or all of them. The operator reads Namespaces for
    /// itself, so tasks need another right, which only the component `package-admin` grants.
    ///
    /// # Errors
    ///
    /// If the API server does not review the access.
    pub(super) async fn may_read_namespace(&self, name: Option<&str>) -> kube::Result<bool> {
        let name = name.map(str::to_owned);
        let known = self.namespaces.lock().get(&name).copied();
        if let Some((_, is_allowed)) = known.filter(|(since, _)| since.elapsed() < REVIEWED) {
            return Ok(is_allowed);
        }
        let attributes = ResourceAttributes {
            verb: Some("patch".to_owned()),
            resource: Some("namespaces".to_owned()),
            name: name.clone(),
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
        let mut namespaces = self.namespaces.lock();
        namespaces.retain(|_, (since, _)| since.elapsed() < REVIEWED);
        if namespaces.len() < CAPACITY {
            namespaces.insert(name, (Instant::now(), is_allowed));
        }
        Ok(is_allowed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, atomic::AtomicUsize};

    use http::Response;
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    /// Returns a client whose API server stores the field from the second request on.
    fn client(requests: Arc<AtomicUsize>) -> Client {
        let service = tower::service_fn(move |_: Request<Body>| {
            let number = requests.fetch_add(1, Ordering::Relaxed);
            async move {
                let field = if number == 0 { "replicas" } else { "serviceAccountName" };
                let spec = json!({ "properties": { field: { "type": "string" } } });
                let instance = json!({ "properties": { "spec": spec } });
                let schemas = json!({ "components": { "schemas": { "dev.kudo.v1beta1.Instance": instance } } });
                let body = Body::from(schemas.to_string().into_bytes());
                Ok::<_, tower::BoxError>(Response::new(body))
            }
        });
        Client::new(service, "default")
    }

    #[tokio::test]
    async fn a_definition_without_the_field_is_read_again() {
        let requests = Arc::<AtomicUsize>::default();
        let own = OwnRights::new(client(requests.clone()));
        assert!(!own.is_service_account_stored().await.unwrap());
        assert!(own.is_service_account_stored().await.unwrap(), "the definition is complete now");
        assert!(own.is_service_account_stored().await.unwrap());
        assert_eq!(requests.load(Ordering::Relaxed), 2, "the result is kept");
    }
}
