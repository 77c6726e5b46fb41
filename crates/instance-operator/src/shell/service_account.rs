//! Clients that act as the ServiceAccount of an Instance.

use std::collections::BTreeMap;

use http::{HeaderName, HeaderValue, Request, header::InvalidHeaderValue};
use kube::{Client, client::Body};
use parking_lot::Mutex;
use tower::service_fn;

/// Header with the user that a request is made for. The API server adds the groups of a ServiceAccount.
const IMPERSONATE_USER: HeaderName = HeaderName::from_static("impersonate-user");
/// Number of clients above which those known are forgotten.
const CAPACITY: usize = 256;

/// Clients by user.
pub(super) struct ServiceAccounts {
    client: Client,
    known: Mutex<BTreeMap<String, Client>>,
}

impl ServiceAccounts {
    /// The clients send their requests by `client`.
    pub(super) fn new(client: Client) -> Self {
        Self { client, known: Mutex::default() }
    }

    /// Returns a client whose requests are made for a ServiceAccount.
    ///
    /// # Errors
    ///
    /// If the name cannot be part of a header; admission rejects such names.
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
