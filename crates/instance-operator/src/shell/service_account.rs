//! Clients that act as the ServiceAccount of an Instance.

use http::{HeaderName, HeaderValue, Request, header::InvalidHeaderValue};
use kube::{Client, client::Body};
use tower::service_fn;

/// Header with the user that a request is made for. The API server adds the groups of a ServiceAccount.
const IMPERSONATE_USER: HeaderName = HeaderName::from_static("impersonate-user");

/// Returns a client whose requests are made for a ServiceAccount.
///
/// # Errors
///
/// If the name cannot be part of a header; admission rejects such names.
pub(super) fn client_for(
    client: &Client,
    namespace: &str,
    service_account: &str,
) -> Result<Client, InvalidHeaderValue> {
    let user = format!("system:serviceaccount:{namespace}:{service_account}");
    let user = HeaderValue::from_str(&user)?;
    let client = client.clone();
    let service = service_fn(move |mut request: Request<Body>| {
        request.headers_mut().insert(IMPERSONATE_USER, user.clone());
        let client = client.clone();
        async move { client.send(request).await }
    });
    Ok(Client::new(service, namespace))
}
