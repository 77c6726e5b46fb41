//! Every backend, each against the real thing: Envoy, adapters, several HAProxies, and clouds' emulators.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    net::SocketAddr,
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use podops_api::consist;
use podops_e2e::{
    balancers::{Haproxy, envoy, free},
    lab::{Lab, SOON, eventually, programs},
    server,
    traffic::{Load, real},
};
use serde_json::{Value, json};
use tokio::{
    net::TcpStream,
    process::{Child, Command},
};

const CONSIST: &str = "consist-operator";

async fn employ(lab: &Lab, annotations: &Value) {
    lab.employ("web", json!({ "app": "web" }), annotations).await.unwrap();
}

fn annotations(backend: &str, params: &Value) -> Value {
    json!({ consist::BACKEND: backend, consist::BACKEND_PARAMS: params.to_string() })
}

async fn settled(lab: &Lab, replicas: i32) {
    lab.settled("web", replicas, Duration::from_secs(180)).await.unwrap();
}

/// An update in place, another that makes new Pods, and a set that shrinks and grows.
async fn everything_is_done(lab: &Lab, load: &Load) {
    load.nothing_failed("at rest").unwrap();
    lab.set_image("web", &format!("{}:2", server::IMAGE)).await.unwrap();
    settled(lab, 10).await;
    load.nothing_failed("updated in place").unwrap();
    let recreate = json!({ "updateStrategy": { "podUpgradePolicy": "Recreate" } });
    lab.patch("web", recreate).await.unwrap();
    lab.set_image("web", &format!("{}:3", server::IMAGE)).await.unwrap();
    settled(lab, 10).await;
    load.nothing_failed("recreated").unwrap();
    for replicas in [5, 10] {
        lab.patch("web", json!({ "replicas": replicas })).await.unwrap();
        settled(lab, replicas).await;
        load.nothing_failed(&format!("scaled to {replicas}")).unwrap();
    }
    assert!(load.rate() >= 2000.0, "only {:.0} requests a second", load.rate());
    lab.nothing_forbidden().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_fails_through_two_envoys() {
    let mut lab = Lab::prepare(&programs().unwrap()).await.unwrap();
    let xds = free().unwrap();
    lab.tell(CONSIST, &[format!("--xds-address={xds}")]);
    lab.start_operators().await.unwrap();
    let params = json!({ "port": server::PORT, "proxies": 2, "connectSeconds": 1 });
    employ(&lab, &annotations("envoy", &params)).await;
    let dir = lab.plane.dir.path().to_owned();
    let (first, second) = tokio::join!(envoy(&dir, xds), envoy(&dir, xds));
    let (first, mut second) = (first.unwrap(), second.unwrap());
    lab.make("web", 10, &real("web", "InPlaceIfPossible", 3)).await.unwrap();
    let load = Load::start(first.front);
    tokio::time::sleep(Duration::from_secs(2)).await;
    everything_is_done(&lab, &load).await;

    // The operator is killed in the middle, and knows nothing of what Envoys were told.
    lab.set_image("web", &format!("{}:4", server::IMAGE)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    lab.kill_and_restart(CONSIST).await.unwrap();
    settled(&lab, 10).await;
    load.nothing_failed("updated, with the operator killed").unwrap();

    // An Envoy that is away may send traffic: nobody is touched until it is back.
    let before = lab.pods_of("web").await.unwrap();
    second.stop().await.unwrap();
    lab.set_image("web", &format!("{}:5", server::IMAGE)).await.unwrap();
    lab.until_event("web", "TrafficUnknown").await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    for pod in lab.pods_of("web").await.unwrap() {
        let image = |pod: &k8s_openapi::api::core::v1::Pod| {
            pod.spec.as_ref().unwrap().containers[0].image.clone().unwrap()
        };
        assert!(before.iter().any(|b| image(b) == image(&pod)), "a Pod was touched");
    }
    second.restart().await.unwrap();
    settled(&lab, 10).await;
    load.nothing_failed("updated, with an Envoy away").unwrap();
}

/// The reference adapter in front of a HAProxy, where it takes ten seconds until anybody is taken off.
fn adapter(at: SocketAddr) -> Child {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/examples/adapter.py");
    let mut python = Command::new("python3");
    python.arg(script).arg(format!("--listen={at}")).arg("--delay=10").kill_on_drop(true);
    python.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_fails_where_it_takes_ten_seconds_to_be_taken_off() {
    let mut lab = Lab::prepare(&programs().unwrap()).await.unwrap();
    let at = free().unwrap();
    let _adapter = adapter(at);
    eventually(SOON, async || Ok(TcpStream::connect(at).await.is_ok())).await.unwrap();
    lab.tell(CONSIST, &[format!("--adapters=default/slow=http://{at}")]);
    lab.start_operators().await.unwrap();
    let haproxy = Haproxy::start(lab.plane.dir.path()).await.unwrap();
    let own = json!({
        "runtime": haproxy.runtime.to_string(), "backend": "web", "port": server::PORT,
    });
    employ(&lab, &annotations("external", &json!({ "adapter": "slow", "params": own }))).await;
    lab.make("web", 10, &real("web", "InPlaceIfPossible", 5)).await.unwrap();
    let load = Load::start(haproxy.balancer.front);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let began = Instant::now();
    everything_is_done(&lab, &load).await;
    // Two times five in place, two times five anew, and five that leave.
    assert!(began.elapsed() >= Duration::from_secs(50), "somebody went before its traffic");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_behind_two_haproxies_waits_for_both() {
    let lab = Lab::start(&programs().unwrap()).await.unwrap();
    let dir = lab.plane.dir.path();
    let (one, other) = tokio::join!(Haproxy::start(dir), Haproxy::start(dir));
    let (one, mut other) = (one.unwrap(), other.unwrap());
    employ(&lab, &Haproxy::annotations(&[one.runtime, other.runtime])).await;
    lab.make("web", 10, &real("web", "InPlaceIfPossible", 3)).await.unwrap();
    let loads = [&one, &other].map(|haproxy| Load::start(haproxy.balancer.front));
    tokio::time::sleep(Duration::from_secs(1)).await;
    lab.set_image("web", &format!("{}:2", server::IMAGE)).await.unwrap();
    settled(&lab, 10).await;
    for load in &loads {
        load.nothing_failed("updated in place behind two").unwrap();
    }
    drop(loads);
    // With one of them unreachable nobody is touched, and the Pods say so.
    other.balancer.stop().await.unwrap();
    lab.set_image("web", &format!("{}:3", server::IMAGE)).await.unwrap();
    let finalizer = consist::lifecycle_finalizer(consist::SERVICE, "default", "web");
    let told = async || {
        let pods = lab.pods_of("web").await?;
        let mut conditions =
            pods.iter().flat_map(|p| p.status.iter().flat_map(|s| s.conditions.iter().flatten()));
        Ok(conditions.any(|c| {
            let message = c.message.as_deref().unwrap_or_default();
            c.type_ == finalizer && message.contains(&other.runtime.to_string())
        }))
    };
    eventually(SOON * 2, told).await.unwrap();
    other.balancer.restart().await.unwrap();
    settled(&lab, 10).await;
    let silent = async || {
        let pods = lab.pods_of("web").await?;
        let mut conditions =
            pods.iter().flat_map(|p| p.status.iter().flat_map(|s| s.conditions.iter().flatten()));
        Ok(!conditions.any(|c| c.type_ == finalizer))
    };
    eventually(SOON, silent).await.unwrap();
    lab.nothing_forbidden().unwrap();
}
