//! Classic load balancers of Alibaba Cloud, as Kuperator observes them: the cloud's own controller takes
//! Pods on and off, and this looks whether it has.

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
    Answer, Backend, BackendError, CircuitBreaker, Employer, SyncResult, Wanted,
    rate_limiter::RateLimiter,
};
use crate::view::Traffic;

/// The label by which the cloud's controller says which load balancer a Service has.
const LOAD_BALANCER: &str = "service.k8s.alibaba/loadbalancer-id";
/// The one call.
const ACTION: &str = "DescribeHealthStatus";
const VERSION: &str = "2014-05-15";
/// How long a call may take.
const CALL: Duration = Duration::from_secs(10);
/// How much of an answer that is none is shown to people.
const SHOWN_MAX: usize = 200;

/// The annotation's content; it may say nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Params {
    /// The listeners through which Pods have to get traffic; any is enough without it.
    listeners: BTreeSet<u16>,
    /// Whether a Pod whose health nobody checks is to wait.
    require_healthy: bool,
}

/// Who asks, and whom.
#[derive(Clone, Debug)]
struct Account {
    key: String,
    secret: String,
    /// `https://<host>`; plain HTTP only where that is said.
    endpoint: String,
}

/// Observes load balancers.
pub struct AlibabaClb {
    /// Without credentials nobody is asked.
    account: Option<Account>,
    client: https::Client,
    rate_limiter: RateLimiter,
    circuit_breaker: CircuitBreaker,
}

impl AlibabaClb {
    /// Observes with these credentials: key, secret and endpoint.
    ///
    /// # Errors
    ///
    /// If some are there and others are not.
    pub fn new(credentials: [Option<String>; 3], rate: NonZeroU32) -> anyhow::Result<Self> {
        let said = credentials.map(|value| value.filter(|value| !value.is_empty()));
        let account = match said {
            [Some(key), Some(secret), Some(endpoint)] => {
                let scheme = if endpoint.contains("://") { "" } else { "https://" };
                let endpoint = format!("{scheme}{}", endpoint.trim_end_matches('/'));
                Some(Account { key, secret, endpoint })
            }
            [None, None, _] => None,
            _ => anyhow::bail!(
                "ALIYUN_SLB_AK_KEY, ALIYUN_SLB_AK_SECRET and ALIYUN_SLB_ENDPOINT belong together"
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

    async fn at(&self, employer: &Employer, wanted: &[Wanted]) -> Result<SyncResult, BackendError> {
        let params: Params = employer.params()?;
        let all = |traffic: Traffic| wanted.iter().map(|w| (w.uid.clone(), traffic)).collect();
        // Nobody has given it a load balancer yet, or somebody has taken it away.
        let Some(id) = employer.labels.get(LOAD_BALANCER) else {
            return Ok(SyncResult::of(all(Traffic::Absent)));
        };
        let account = self.account.as_ref().ok_or_else(|| {
            BackendError::Params("the operator has no credentials: ALIYUN_SLB_AK_KEY".to_owned())
        })?;
        if !id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
            return Err(BackendError::Params(format!(
                "{LOAD_BALANCER}: {id} is no load balancer's ID"
            )));
        }
        let servers = self.circuit_breaker.ask(&account.endpoint, self.ask(account, id)).await?;
        let observed = wanted.iter().map(|pod| (pod.uid.clone(), params.traffic(&servers, pod)));
        Ok(SyncResult::of(observed.collect()))
    }

    async fn ask(&self, account: &Account, id: &str) -> Result<Vec<Server>, BackendError> {
        self.rate_limiter.turn().await;
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
        let answer = timeout(CALL, https::exchange(&self.client, request)).await;
        let answer = answer.map_err(|_| unreachable(format!("no answer within {CALL:?}")))?;
        let (status, body) = answer.map_err(unreachable)?;
        let shown: String = String::from_utf8_lossy(&body).chars().take(SHOWN_MAX).collect();
        if !status.is_success() {
            let refusal: Refusal = serde_json::from_slice(&body).unwrap_or_default();
            let told = format!("Alibaba Cloud: {status}: {}: {}", refusal.code, refusal.message);
            let known = ["InvalidLoadBalancerId", "InvalidAccessKeyId", "Forbidden"];
            let theirs = known.iter().any(|code| refusal.code.starts_with(code));
            return Err(if theirs {
                BackendError::Params(told)
            } else {
                BackendError::Unreachable(told)
            });
        }
        let read: Health = serde_json::from_slice(&body)
            .map_err(|error| BackendError::Garbage(format!("Alibaba Cloud: {error}: {shown:?}")))?;
        Ok(read.backend_servers.backend_server)
    }
}

impl Backend for AlibabaClb {
    fn sync<'a>(&'a self, employer: &'a Employer, wanted: &'a [Wanted]) -> Answer<'a> {
        Box::pin(async move { self.at(employer, wanted).await.into() })
    }

    /// It brings nothing about that could be undone.
    fn resync(&self) -> Option<Duration> {
        None
    }
}

/// Why it does not answer.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Refusal {
    code: String,
    message: String,
}

/// The answer: without the list, or with one that is none, it says nothing that could be relied on.
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
    /// What all listeners say of a Pod.
    fn traffic(&self, servers: &[Server], pod: &Wanted) -> Traffic {
        let own = servers.iter().filter(|server| {
            let address: Option<IpAddr> = server.address.as_deref().and_then(|a| a.parse().ok());
            address.is_some_and(|address| pod.addresses.contains(&address))
        });
        let mut listeners = BTreeMap::<u16, bool>::new();
        for server in own {
            let fit = self.is_fit(server.health.as_deref().unwrap_or_default());
            let listener = listeners.entry(server.listener_port.unwrap_or_default()).or_default();
            *listener |= fit;
        }
        let wanted = |port: &u16| listeners.get(port).copied().unwrap_or_default();
        let all = if self.listeners.is_empty() {
            listeners.values().any(|fit| *fit)
        } else {
            self.listeners.iter().all(wanted)
        };
        match (listeners.is_empty(), all) {
            (true, _) => Traffic::Absent,
            (false, true) => Traffic::Serving,
            // Through some it may get traffic, or soon will.
            (false, false) => Traffic::Unhealthy,
        }
    }

    /// Whether a server of this health gets traffic: where none is checked, `unavailable` ones do.
    fn is_fit(&self, health: &str) -> bool {
        health != "abnormal" && (health == "normal" || !self.require_healthy)
    }
}

/// The headers of a signed request without a body, as version 3 of the signature has it.
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
    // A key may have any length.
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
    use crate::plan::Want;

    /// The example in the cloud's own description of the signature.
    #[test]
    fn the_signature_is_the_documented_one() {
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
        let pod = Wanted { name: String::new(), uid: String::new(), addresses, want: Want::Serve };
        serde_json::from_str::<Params>(params).unwrap().traffic(&servers, &pod)
    }

    #[test]
    fn w16_health_and_listeners_count_and_a_server_without_an_address_harms_nobody() {
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
        assert!(serde_json::from_str::<Health>("{}").is_err(), "no list is no word of anybody");
        let homeless = r#"{"BackendServers":{"BackendServer":[{"ListenerPort":80}]}}"#;
        assert!(serde_json::from_str::<Health>(homeless).is_ok());
    }
}
