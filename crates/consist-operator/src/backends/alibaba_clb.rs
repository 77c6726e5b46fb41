//! Backend `alibaba-clb`: signed requests to Classic Load Balancers of Alibaba Cloud, and the
//! traffic of Pods by the health that they report, as Kuperator reads it.
//!
//! Read-only; the cloud's own controller registers and deregisters Pods.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
};

use hmac::{Hmac, KeyInit as _, Mac as _};
use http::{Method, Request, StatusCode};
use jiff::Timestamp;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::{BackendError, DesiredMember, Employer, SyncResult, TrafficByPod};
use crate::traffic::Traffic;

/// Label of a Service with the ID of its load balancer, set by the cloud's controller.
const LOAD_BALANCER: &str = "service.k8s.alibaba/loadbalancer-id";
/// API action of the only call.
const ACTION: &str = "DescribeHealthStatus";
/// API version.
const VERSION: &str = "2014-05-15";
/// Algorithm of version 3 of the signature.
const ALGORITHM: &str = "ACS3-HMAC-SHA256";
/// Prefixes of error codes that only an edit of the configuration clears.
const INVALID_CODES: [&str; 3] = ["InvalidLoadBalancerId", "InvalidAccessKeyId", "Forbidden"];
/// Maximum length of an unexpected response in a message, in characters.
const MESSAGE_MAX: usize = 200;

/// Content of the annotation `backend-params`; every field is optional.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Params {
    /// Ports of the listeners that must all route traffic to a Pod; if empty, any listener is
    /// enough.
    listeners: BTreeSet<u16>,
    /// True if a Pod with health `unavailable`, as without health checks, does not serve.
    require_healthy: bool,
}

/// Credentials and endpoint of an account.
#[derive(Clone, Debug)]
pub struct Account {
    key: String,
    secret: String,
    /// `https://<host>`, or `http://<host>` if configured so.
    endpoint: String,
}

/// Reasons for which the credentials cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAccount {
    /// Some of them are not set.
    #[error("set all of ALIYUN_SLB_AK_KEY, ALIYUN_SLB_AK_SECRET, ALIYUN_SLB_ENDPOINT or none")]
    Incomplete,
}

impl Account {
    /// Returns the account of these credentials: key, secret and endpoint. `None` without key and
    /// secret; empty texts are treated as not set.
    ///
    /// # Errors
    ///
    /// [`InvalidAccount`] if only some of them are set.
    pub fn read(credentials: [Option<String>; 3]) -> Result<Option<Self>, InvalidAccount> {
        match credentials.map(|value| value.filter(|value| !value.is_empty())) {
            [Some(key), Some(secret), Some(endpoint)] => {
                let scheme = if endpoint.contains("://") { "" } else { "https://" };
                let endpoint = format!("{scheme}{}", endpoint.trim_end_matches('/'));
                Ok(Some(Self { key, secret, endpoint }))
            }
            [None, None, _] => Ok(None),
            _ => Err(InvalidAccount::Incomplete),
        }
    }

    /// Returns the configured account.
    ///
    /// # Errors
    ///
    /// [`BackendError::InvalidParams`] without an account.
    pub fn configured(account: Option<&Self>) -> Result<&Self, BackendError> {
        account.ok_or_else(|| {
            BackendError::InvalidParams(
                "operator has no Alibaba Cloud credentials; set ALIYUN_SLB_AK_KEY".to_owned(),
            )
        })
    }

    /// Returns `https://<host>`, or `http://<host>` if configured so.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }
}

/// Returns the ID of an employer's load balancer; `None` if the cloud's controller has not assigned
/// one yet, or has removed it.
#[must_use]
pub fn load_balancer(employer: &Employer) -> Option<&str> {
    employer.labels.get(LOAD_BALANCER).map(String::as_str)
}

/// Returns the result for an employer without a load balancer.
#[must_use]
pub fn without_load_balancer(members: &[DesiredMember]) -> SyncResult {
    let absent = members.iter().map(|member| (member.uid.clone(), Traffic::Absent));
    SyncResult::complete(absent.collect())
}

/// Body of an error response.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct ErrorResponse {
    code: String,
    message: String,
}

/// Body of a successful response; a missing or malformed list is an error, not an empty list.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Health {
    backend_servers: Servers,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Servers {
    backend_server: Vec<Server>,
}

/// A server behind a listener.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Server {
    #[serde(rename = "ServerIp")]
    address: Option<String>,
    listener_port: Option<u16>,
    #[serde(rename = "ServerHealthStatus")]
    health: Option<String>,
}

/// Parses the response to [`Call::health`]: the servers of all listeners.
///
/// # Errors
///
/// [`BackendError`] if the call failed, or the response is invalid.
pub fn read_servers(status: StatusCode, body: &[u8]) -> Result<Vec<Server>, BackendError> {
    if !status.is_success() {
        let error: ErrorResponse = serde_json::from_slice(body).unwrap_or_default();
        let message = format!("Alibaba Cloud: {status}: {}: {}", error.code, error.message);
        let is_invalid = INVALID_CODES.iter().any(|code| error.code.starts_with(code));
        return Err(if is_invalid {
            BackendError::InvalidParams(message)
        } else {
            BackendError::Unreachable(message)
        });
    }
    let health: Health = serde_json::from_slice(body).map_err(|error| {
        let excerpt: String = String::from_utf8_lossy(body).chars().take(MESSAGE_MAX).collect();
        BackendError::InvalidResponse(format!("Alibaba Cloud: {error}: {excerpt:?}"))
    })?;
    Ok(health.backend_servers.backend_server)
}

impl Params {
    /// Returns the traffic of all Pods.
    #[must_use]
    pub fn observe(&self, servers: &[Server], members: &[DesiredMember]) -> TrafficByPod {
        members.iter().map(|pod| (pod.uid.clone(), self.traffic(servers, pod))).collect()
    }

    /// Returns the traffic of a Pod, combined over the listeners.
    fn traffic(&self, servers: &[Server], pod: &DesiredMember) -> Traffic {
        let own = servers.iter().filter(|server| {
            let address: Option<IpAddr> = server.address.as_deref().and_then(|a| a.parse().ok());
            address.is_some_and(|address| pod.addresses.contains(&address))
        });
        let mut listeners = BTreeMap::<u16, bool>::new();
        for server in own {
            let in_service = self.is_in_service(server.health.as_deref().unwrap_or_default());
            let listener = listeners.entry(server.listener_port.unwrap_or_default()).or_default();
            *listener |= in_service;
        }
        let all = if self.listeners.is_empty() {
            listeners.values().any(|in_service| *in_service)
        } else {
            self.listeners.iter().all(|port| listeners.get(port).copied().unwrap_or_default())
        };
        match (listeners.is_empty(), all) {
            (true, _) => Traffic::Absent,
            (false, true) => Traffic::Serving,
            // Some listeners route traffic to it, or soon will.
            (false, false) => Traffic::Unhealthy,
        }
    }

    /// Returns whether a server of this health gets traffic; without health checks it is
    /// `unavailable` and does.
    fn is_in_service(&self, health: &str) -> bool {
        health != "abnormal" && (health == "normal" || !self.require_healthy)
    }
}

/// A request to Alibaba Cloud's API, without a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// API action.
    pub action: &'static str,
    /// API version.
    pub version: &'static str,
    /// Query of the URL, sorted by key.
    pub query: String,
}

impl Call {
    /// Returns the request for the health of a load balancer's servers.
    ///
    /// # Errors
    ///
    /// [`BackendError::InvalidParams`] if `load_balancer` is not an ID.
    pub fn health(load_balancer: &str) -> Result<Self, BackendError> {
        if !load_balancer.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
            return Err(BackendError::InvalidParams(format!(
                "label {LOAD_BALANCER}: invalid load balancer ID {load_balancer}"
            )));
        }
        let query = format!("LoadBalancerId={load_balancer}");
        Ok(Self { action: ACTION, version: VERSION, query })
    }
}

/// Returns a signed request.
///
/// # Errors
///
/// [`BackendError::Unreachable`] if the endpoint is not a URL.
pub fn request(
    account: &Account,
    call: &Call,
    nonce: &str,
    now: Timestamp,
) -> Result<Request<()>, BackendError> {
    let uri = format!("{}/?{}", account.endpoint, call.query);
    let mut request = Request::builder().method(Method::POST).uri(uri);
    for (name, value) in sign(account, call, nonce, now) {
        request = request.header(name, value);
    }
    request.body(()).map_err(unreachable)
}

/// Returns the error of a call without a response.
#[must_use]
pub fn unreachable(reason: impl fmt::Display) -> BackendError {
    BackendError::Unreachable(format!("Alibaba Cloud: {reason}"))
}

/// Returns the headers of a request, signed with version 3 of the signature.
fn sign(
    account: &Account,
    call: &Call,
    nonce: &str,
    now: Timestamp,
) -> BTreeMap<&'static str, String> {
    let host = account.endpoint.split_once("://").map_or(account.endpoint.as_str(), |(_, h)| h);
    let empty = hex::encode(Sha256::digest(b""));
    let mut headers = BTreeMap::from([
        ("host", host.to_owned()),
        ("x-acs-action", call.action.to_owned()),
        ("x-acs-content-sha256", empty.clone()),
        ("x-acs-date", now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()),
        ("x-acs-signature-nonce", nonce.to_owned()),
        ("x-acs-version", call.version.to_owned()),
    ]);
    let names = headers.keys().copied().collect::<Vec<_>>().join(";");
    let canonical = canonical_request(&call.query, &headers, &names, &empty);
    let to_sign = format!("{ALGORITHM}\n{}", hex::encode(Sha256::digest(canonical.as_bytes())));
    let signature = hmac_sha256(&account.secret, &to_sign);
    let authorization = format!(
        "{ALGORITHM} Credential={},SignedHeaders={names},Signature={signature}",
        account.key
    );
    headers.insert("authorization", authorization);
    headers
}

/// Returns the text of a request that is hashed and signed; `body_hash` is in hexadecimal.
fn canonical_request(
    query: &str,
    headers: &BTreeMap<&'static str, String>,
    names: &str,
    body_hash: &str,
) -> String {
    let lines: Vec<String> =
        headers.iter().map(|(name, value)| format!("{name}:{value}")).collect();
    let headers = lines.join("\n");
    format!("POST\n/\n{query}\n{headers}\n\n{names}\n{body_hash}")
}

/// Returns the HMAC of a text, in hexadecimal.
fn hmac_sha256(key: &str, text: &str) -> String {
    let signature = Hmac::<Sha256>::new_from_slice(key.as_bytes()).map(|mut mac| {
        mac.update(text.as_bytes());
        hex::encode(mac.finalize().into_bytes())
    });
    // Cannot fail, because HMAC accepts keys of any length.
    signature.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use podops_api::ids::{PodName, Uid};

    use super::*;
    use crate::traffic::DesiredTraffic;

    /// The example in Alibaba Cloud's documentation of the signature.
    #[test]
    fn the_signature_matches_the_documented_example() {
        let account = Account {
            key: "YourAccessKeyId".to_owned(),
            secret: "YourAccessKeySecret".to_owned(),
            endpoint: "https://ecs.cn-shanghai.aliyuncs.com".to_owned(),
        };
        let query =
            "ImageId=win2019_1809_x64_dtc_zh-cn_40G_alibase_20230811.vhd&RegionId=cn-shanghai";
        let call = Call { action: "RunInstances", version: "2014-05-26", query: query.to_owned() };
        let at: Timestamp = "2023-10-26T10:22:32Z".parse().unwrap();
        let nonce = "3156853299f313e23d1673dc12e1703d";
        let signed = sign(&account, &call, nonce, at);
        let signature = "06563a9e1b43f5dfe96b81484da74bceab24a1d853912eee15083a6f0f3283c0";
        assert!(signed["authorization"].ends_with(signature), "{}", signed["authorization"]);
    }

    fn traffic(params: &str, servers: &[(&str, u16, &str)]) -> Traffic {
        let server = |(ip, port, health): &(&str, u16, &str)| Server {
            address: Some((*ip).to_owned()),
            listener_port: Some(*port),
            health: Some((*health).to_owned()),
        };
        let servers: Vec<Server> = servers.iter().map(server).collect();
        let addresses = vec!["10.0.0.1".parse().unwrap()];
        let pod = DesiredMember {
            name: PodName::default(),
            uid: Uid::default(),
            addresses,
            traffic: DesiredTraffic::Serve,
        };
        serde_json::from_str::<Params>(params).unwrap().traffic(&servers, &pod)
    }

    /// Kuperator's known defect W16 (docs/KUPERATOR.md#known-defects).
    #[test]
    fn listeners_and_health_decide_traffic() {
        use Traffic::{Absent, Serving, Unhealthy};
        assert_eq!(traffic("{}", &[("10.0.0.2", 80, "normal")]), Absent);
        assert_eq!(traffic("{}", &[("", 80, "normal")]), Absent);
        assert_eq!(traffic("{}", &[("10.0.0.1", 80, "normal")]), Serving);
        assert_eq!(traffic("{}", &[("10.0.0.1", 80, "abnormal")]), Unhealthy);
        assert_eq!(traffic("{}", &[("10.0.0.1", 80, "unavailable")]), Serving);
        let strict = r#"{"requireHealthy":true}"#;
        assert_eq!(traffic(strict, &[("10.0.0.1", 80, "unavailable")]), Unhealthy);
        let both = r#"{"listeners":[80,443]}"#;
        assert_eq!(traffic(both, &[("10.0.0.1", 80, "normal")]), Unhealthy);
        let two = [("10.0.0.1", 80, "normal"), ("10.0.0.1", 443, "normal")];
        assert_eq!(traffic(both, &two), Serving);
        assert!(serde_json::from_str::<Health>("{}").is_err(), "a missing list is an error");
        let no_address = r#"{"BackendServers":{"BackendServer":[{"ListenerPort":80}]}}"#;
        assert!(serde_json::from_str::<Health>(no_address).is_ok());
    }
}
