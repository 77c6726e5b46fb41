//! Clients that act as the ServiceAccount of an Instance.

use std::collections::BTreeMap;

use http::{HeaderName, HeaderValue, Request, header::InvalidHeaderValue};
use kube::{Client, client::Body};
use parking_lot::Mutex;
use tower::service_fn;

/// Header with the impersonated user. The API server adds the groups of a ServiceAccount.
const IMPERSONATE_USER: HeaderName = HeaderName::from_static("impersonate-user");
/// Number of cached clients at which the cache is cleared.
const CAPACITY: usize = 256;

/// Clients by user.
pub(super) struct ServiceAccounts {
    client: Client,
    known: Mutex<BTreeMap<String, Client>>,
}

impl ServiceAccounts {
    /// Creates an empty cache, whose clients send requests through `client`.
    pub(super) fn new(client: Client) -> Self {
        Self { client, known: Mutex::default() }
    }

    /// Returns a client that impersonates a ServiceAccount.
    ///
    /// # Errors
    ///
    /// If the name is not valid in a header; admission rejects such names.
    pub(super) fn client(
        &self,
        namespace: &str,
        service_account: &str,
    ) -> Result<Client, InvalidHeaderValue> {
        let user = format!("system:serviceaccount:{namespace}:{service_account}");
        let mut known = self.known.lock();
        if let Some(client) = known.get(&user) {
            return Ok(client.clone());
        }
        let client = impersonating(&self.client, namespace, &user)?;
        if known.len() >= CAPACITY {
            known.clear();
        }
        known.insert(user, client.clone());
        Ok(client)
    }
}

fn impersonating(
    client: &Client,
    namespace: &str,
    user: &str,
) -> Result<Client, InvalidHeaderValue> {
    let user = HeaderValue::from_str(user)?;
    let client = client.clone();
    let service = service_fn(move |mut request: Request<Body>| {
        request.headers_mut().insert(IMPERSONATE_USER, user.clone());
        let client = client.clone();
        async move { client.send(request).await }
    });
    Ok(Client::new(service, namespace))
}
