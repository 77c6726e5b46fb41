//! Backend `alibaba-clb`: observes Classic Load Balancers of Alibaba Cloud, as Kuperator does.
//! Read-only; the cloud's own controller registers and deregisters Pods.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    num::NonZeroU32,
    time::Duration,
};

use hmac::{Hmac, KeyInit as _, Mac as _};
use http::{Method, Request};
use http_body_util::Full;
use jiff::Timestamp;
use podops_adapter::https;
use podops_runtime::shell::clock;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;
use uuid::Uuid;

use super::{
    Backend, BackendError, CircuitBreaker, DesiredMember, Employer, SyncFuture, SyncResult,
    rate_limiter::RateLimiter,
};
use crate::view::Traffic;

/// Label of a Service with the ID of its load balancer, set by the cloud's controller.
const LOAD_BALANCER: &str = "service.k8s.alibaba/loadbalancer-id";
/// API action of the only call.
const ACTION: &str = "DescribeHealthStatus";
/// API version.
const VERSION: &str = "2014-05-15";
/// Timeout of one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum length of an unexpected response in a message, in characters.
const MESSAGE_MAX: usize = 200;

/// Content of the annotation `backend-params`; every field is optional.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Params {
    /// Ports of the listeners that must all route traffic to a Pod; if empty, any listener is
    /// enough.
    listeners: BTreeSet<u16>,
    /// True if a Pod with health `unavailable`, as without health checks, does not serve.
    require_healthy: bool,
}

/// Credentials and endpoint of an account.
#[derive(Clone, Debug)]
struct Account {
    key: String,
    secret: String,
    /// `https://<host>`, or `http://<host>` if configured so.
    endpoint: String,
}

/// The backend `alibaba-clb`.
pub struct AlibabaClb {
    /// None without credentials; every sync then fails.
    account: Option<Account>,
    client: https::Client,
    rate_limiter: RateLimiter,
    circuit_breaker: CircuitBreaker,
}

impl AlibabaClb {
    /// Creates the backend with these credentials: key, secret and endpoint.
    ///
    /// # Errors
    ///
    /// If only some of them are set, or TLS cannot be initialized.
    pub fn new(credentials: [Option<String>; 3], rate: NonZeroU32) -> anyhow::Result<Self> {
        let credentials = credentials.map(|value| value.filter(|value| !value.is_empty()));
        let account = match credentials {
            [Some(key), Some(secret), Some(endpoint)] => {
                let scheme = if endpoint.contains("://") { "" } else { "https://" };
                let endpoint = format!("{scheme}{}", endpoint.trim_end_matches('/'));
                Some(Account { key, secret, endpoint })
            }
            [None, None, _] => None,
            _ => anyhow::bail!(
                "set all of ALIYUN_SLB_AK_KEY, ALIYUN_SLB_AK_SECRET, ALIYUN_SLB_ENDPOINT or none"
            ),
        };
        let client = https::client().map_err(anyhow::Error::msg)?;
        Ok(Self {
            account,
            client,
            rate_limiter: RateLimiter::new(rate),
            circuit_breaker: CircuitBreaker::default(),
        })
    }

    async fn observe(
        &self,
        employer: &Employer,
        members: &[DesiredMember],
    ) -> Result<SyncResult, BackendError> {
        let params: Params = employer.params()?;
        // The cloud's controller has not assigned a load balancer yet, or has removed it.
        let Some(id) = employer.labels.get(LOAD_BALANCER) else {
            let absent = members.iter().map(|member| (member.uid.clone(), Traffic::Absent));
            return Ok(SyncResult::complete(absent.collect()));
        };
        let account = self.account.as_ref().ok_or_else(|| {
            BackendError::InvalidParams(
                "operator has no Alibaba Cloud credentials; set ALIYUN_SLB_AK_KEY".to_owned(),
            )
        })?;
        if !id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
            return Err(BackendError::InvalidParams(format!(
                "label {LOAD_BALANCER}: invalid load balancer ID {id}"
            )));
        }
        let servers =
            self.circuit_breaker.call(&account.endpoint, self.describe(account, id)).await?;
        let observed = members.iter().map(|pod| (pod.uid.clone(), params.traffic(&servers, pod)));
        Ok(SyncResult::complete(observed.collect()))
    }

    /// Returns the servers of all listeners of the load balancer `id`.
    async fn describe(&self, account: &Account, id: &str) -> Result<Vec<Server>, BackendError> {
        self.rate_limiter.acquire().await;
        let unreachable =
            |reason: String| BackendError::Unreachable(format!("Alibaba Cloud: {reason}"));
        let nonce = Uuid::new_v4().simple().to_string();
        let query = format!("LoadBalancerId={id}");
        let signed = sign(account, (ACTION, VERSION), &query, &nonce, clock::now());
        let mut request =
            Request::builder().method(Method::POST).uri(format!("{}/?{query}", account.endpoint));
        for (name, value) in &signed {
            request = request.header(*name, value);
        }
        let request = request.body(Full::default()).map_err(|e| unreachable(e.to_string()))?;
        let response = timeout(CALL_TIMEOUT, https::exchange(&self.client, request)).await;
        let response =
            response.map_err(|_| unreachable(format!("timeout after {CALL_TIMEOUT:?}")))?;
        let (status, body) = response.map_err(unreachable)?;
        let excerpt: String = String::from_utf8_lossy(&body).chars().take(MESSAGE_MAX).collect();
        if !status.is_success() {
            let error: ErrorResponse = serde_json::from_slice(&body).unwrap_or_default();
            let message = format!("Alibaba Cloud: {status}: {}: {}", error.code, error.message);
            let codes = ["InvalidLoadBalancerId", "InvalidAccessKeyId", "Forbidden"];
            let is_invalid = codes.iter().any(|code| error.code.starts_with(code));
            return Err(if is_invalid {
                BackendError::InvalidParams(message)
            } else {
                BackendError::Unreachable(message)
            });
        }
        let health: Health = serde_json::from_slice(&body).map_err(|error| {
            BackendError::InvalidResponse(format!("Alibaba Cloud: {error}: {excerpt:?}"))
        })?;
        Ok(health.backend_servers.backend_server)
    }
}

impl Backend for AlibabaClb {
    fn sync<'a>(&'a self, employer: &'a Employer, members: &'a [DesiredMember]) -> SyncFuture<'a> {
        Box::pin(async move { self.observe(employer, members).await.into() })
    }

    /// None, because the backend changes nothing that could be lost.
    fn resync_interval(&self) -> Option<Duration> {
        None
    }
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
struct Server {
    #[serde(rename = "ServerIp")]
    address: Option<String>,
    listener_port: Option<u16>,
    #[serde(rename = "ServerHealthStatus")]
    health: Option<String>,
}

impl Params {
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
        let serves = |port: &u16| listeners.get(port).copied().unwrap_or_default();
        let all = if self.listeners.is_empty() {
            listeners.values().any(|in_service| *in_service)
        } else {
            self.listeners.iter().all(serves)
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

/// Returns the headers of a request without a body, signed with version 3 of the signature.
fn sign(
    account: &Account,
    (action, version): (&str, &str),
    query: &str,
    nonce: &str,
    now: Timestamp,
) -> BTreeMap<&'static str, String> {
    let host = account.endpoint.split_once("://").map_or(account.endpoint.as_str(), |(_, h)| h);
    let empty = hex::encode(Sha256::digest(b""));
    let mut headers = BTreeMap::from([
        ("host", host.to_owned()),
        ("x-acs-action", action.to_owned()),
        ("x-acs-content-sha256", empty.clone()),
        ("x-acs-date", now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()),
        ("x-acs-signature-nonce", nonce.to_owned()),
        ("x-acs-version", version.to_owned()),
    ]);
    let lines: Vec<String> =
        headers.iter().map(|(name, value)| format!("{name}:{value}")).collect();
    let lines = lines.join("\n");
    let names = headers.keys().copied().collect::<Vec<_>>().join(";");
    let canonical = format!("POST\n/\n{query}\n{lines}\n\n{names}\n{empty}");
    let to_sign = format!("{ALGORITHM}\n{}", hex::encode(Sha256::digest(canonical.as_bytes())));
    let signature = Hmac::<Sha256>::new_from_slice(account.secret.as_bytes()).map(|mut mac| {
        mac.update(to_sign.as_bytes());
        hex::encode(mac.finalize().into_bytes())
    });
    // Cannot fail, because HMAC accepts keys of any length.
    let signature = signature.unwrap_or_default();
    let authorization = format!(
        "{ALGORITHM} Credential={},SignedHeaders={names},Signature={signature}",
        account.key
    );
    headers.insert("authorization", authorization);
    headers
}

const ALGORITHM: &str = "ACS3-HMAC-SHA256";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::DesiredTraffic;

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
        let at: Timestamp = "2023-10-26T10:22:32Z".parse().unwrap();
        let nonce = "3156853299f313e23d1673dc12e1703d";
        let signed = sign(&account, ("RunInstances", "2014-05-26"), query, nonce, at);
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
            name: String::new(),
            uid: String::new(),
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
