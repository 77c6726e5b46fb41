//! Traffic is really off before a Pod is touched: Services, HAProxy, and load that counts what fails.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    net::{SocketAddr, TcpListener},
    path::Path,
    process::Stdio,
    time::Duration,
};

use k8s_openapi::api::core::v1::{Pod, Service};
use kube::{
    ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use podops_api::{consist, marks};
use podops_e2e::{
    lab::{Lab, OPERATORS, SOON, eventually, programs},
    server,
    traffic::Load,
};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

/// HAProxy with free slots; it ends with this.
struct Haproxy {
    front: SocketAddr,
    runtime: SocketAddr,
    _child: Child,
}

impl Haproxy {
    async fn start(dir: &Path) -> Self {
        let free = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (front, runtime) = (free(), free());
        let [front, runtime] = [front, runtime].map(|l| l.local_addr().unwrap());
        // No retries: what fails, fails.
        let config = format!(
            "global\n  stats socket ipv4@{runtime} level admin\n  maxconn 4000\n\
             defaults\n  mode http\n  retries 0\n  timeout connect 1s\n  timeout client 20s\n  timeout server 20s\n\
             frontend web\n  bind {front}\n  default_backend web\n\
             backend web\n  balance roundrobin\n  server-template web 1-20 127.0.0.1:{} disabled\n",
            server::PORT
        );
        let path = dir.join("haproxy.cfg");
        std::fs::write(&path, config).unwrap();
        let mut command = Command::new("haproxy");
        command.args(["-db", "-f"]).arg(&path).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.kill_on_drop(true).spawn().unwrap();
        let listens = async || Ok(tokio::net::TcpStream::connect(front).await.is_ok());
        eventually(SOON, listens).await.unwrap();
        Self { front, runtime, _child: child }
    }

    fn annotations(&self) -> Value {
        let params = json!({
            "instances": [format!("tcp://{}", self.runtime)], "backend": "web", "port": server::PORT,
        });
        json!({ consist::BACKEND: "haproxy", consist::BACKEND_PARAMS: params.to_string() })
    }
}

async fn employ(lab: &Lab, name: &str, annotations: &Value) {
    let service = json!({
        "metadata": { "name": name, "labels": { marks::CONTROL: "true" }, "annotations": annotations },
        "spec": { "selector": { "app": name }, "ports": [{ "port": 80 }] },
    });
    let service = serde_json::from_value(service).unwrap();
    lab.all_of::<Service>().create(&PostParams::default(), &service).await.unwrap();
    let held = async || {
        let service = lab.all_of::<Service>().get(name).await?;
        Ok(service.finalizers().iter().any(|f| f == consist::CLEAN_FINALIZER))
    };
    eventually(SOON, held).await.unwrap();
}

fn holds(pod: &Pod, employer: &str) -> bool {
    pod.finalizers().contains(&consist::lifecycle_finalizer(consist::SERVICE, "default", employer))
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_held_while_their_services_send_them_traffic() {
    let lab = Lab::start(&programs().unwrap()).await.unwrap();
    tokio::join!(
        a_service_holds_its_pods_and_lets_them_go(&lab),
        a_service_that_makes_no_sense_is_told_and_holds_nobody_back_for_ever(&lab),
    );
    lab.nothing_forbidden().unwrap();
}

async fn a_service_holds_its_pods_and_lets_them_go(lab: &Lab) {
    employ(lab, "held", &json!({})).await;
    lab.make("held", 3, &json!({})).await.unwrap();
    for pod in lab.pods_of("held").await.unwrap() {
        assert!(holds(&pod, "held"), "{} serves and is not held", pod.name_any());
        assert!(pod.annotations()[marks::AVAILABLE_CONDITIONS].contains("Service/default/held"));
    }
    lab.set_image("held", "nginx:2").await.unwrap();
    lab.settled("held", 3, SOON).await.unwrap();
    // A Pod that is relabelled is drained and let go, and one of a Service that is gone is free.
    let stray = lab.pods_of("held").await.unwrap()[0].name_any();
    lab.change_pod(&stray, json!({ "labels": { "app": "stray" } })).await.unwrap();
    lab.until_pod(&stray, |pod| !holds(pod, "held")).await.unwrap();
    lab.all_of::<Service>().delete("held", &DeleteParams::default()).await.unwrap();
    let gone = async || Ok(lab.all_of::<Service>().get_opt("held").await?.is_none());
    eventually(SOON, gone).await.unwrap();
    for pod in lab.pods_of("held").await.unwrap() {
        assert!(!holds(&pod, "held"), "{} is still held", pod.name_any());
    }
}

async fn a_service_that_makes_no_sense_is_told_and_holds_nobody_back_for_ever(lab: &Lab) {
    employ(lab, "odd", &json!({ consist::BACKEND: "nobody" })).await;
    lab.create("odd", 1, "nginx:1").await.unwrap();
    lab.until_event("odd", "TrafficUnknown").await.unwrap();
    let free = Patch::Merge(json!({ "metadata": { "labels": { marks::CONTROL: null } } }));
    lab.all_of::<Service>().patch("odd", &PatchParams::default(), &free).await.unwrap();
    lab.counts("odd", [1; 4]).await.unwrap();
}

/// A set whose Pods are processes behind HAProxy, a few of them out at a time.
fn real(name: &str, policy: &str) -> Value {
    json!({
        "updateStrategy": {
            "podUpdatePolicy": policy, "rollingUpdate": { "maxUnavailable": 3 },
        },
        "template": {
            "metadata": { "labels": { "app": name } },
            "spec": {
                "terminationGracePeriodSeconds": 5,
                "containers": [{ "name": "web", "image": format!("{}:1", server::IMAGE) }],
            },
        },
    })
}

async fn until_all_serve(lab: &Lab, set: &str, replicas: i32) {
    lab.settled(set, replicas, Duration::from_secs(120)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_fails() {
    let lab = Lab::start_guarded(&programs().unwrap()).await.unwrap();
    let haproxy = Haproxy::start(lab.plane.dir.path()).await;
    employ(&lab, "web", &haproxy.annotations()).await;
    let pace = json!([{ "name": "pace", "availablePolicy": { "maxUnavailableValue": 3 } }]);
    lab.make_rule("web", json!({ "matchLabels": { "app": "web" } }), pace).await.unwrap();
    lab.make("web", 10, &real("web", "InPlaceIfPossible")).await.unwrap();
    let load = Load::start(haproxy.front);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let fine = |what: &str| {
        let tally = load.tally();
        eprintln!(
            "{what}: {} answered, {} failed, {:.0}/s",
            tally.answered,
            tally.failed,
            load.rate()
        );
        assert_eq!(tally.failed, 0, "{what}: {:#?}", tally.told);
    };
    fine("at rest");

    lab.set_image("web", &format!("{}:2", server::IMAGE)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    for operator in OPERATORS {
        lab.kill_and_restart(operator).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    until_all_serve(&lab, "web", 10).await;
    fine("updated in place, with every operator killed");

    let recreate = json!({ "updateStrategy": { "podUpdatePolicy": "Recreate" } });
    lab.patch("web", recreate).await.unwrap();
    lab.set_image("web", &format!("{}:3", server::IMAGE)).await.unwrap();
    until_all_serve(&lab, "web", 10).await;
    fine("recreated");

    for replicas in [5, 10] {
        lab.patch("web", json!({ "replicas": replicas })).await.unwrap();
        until_all_serve(&lab, "web", replicas).await;
        fine(&format!("scaled to {replicas}"));
    }

    let pods = lab.pods_of("web").await.unwrap();
    let node = pods[0].spec.as_ref().unwrap().node_name.clone().unwrap();
    lab.plane.kubectl(&["drain", &node, "--timeout=180s"]).await.unwrap();
    until_all_serve(&lab, "web", 10).await;
    fine("drained a node");
    assert!(load.rate() >= 2000.0, "only {:.0} requests a second", load.rate());
    lab.nothing_forbidden().unwrap();

    // What was counted would have been: without a lifecycle, requests fail.
    let pod = lab.pods_of("web").await.unwrap()[0].name_any();
    let free = json!({ "labels": { marks::CONTROL: null }, "finalizers": null });
    lab.change_pod(&pod, free).await.unwrap();
    lab.pods().delete(&pod, &DeleteParams::default()).await.unwrap();
    let fails = async || Ok(load.tally().failed > 0);
    eventually(SOON, fails).await.unwrap();
}
