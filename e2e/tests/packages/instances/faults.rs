//! Faults of the cluster: requests that fail until their cause ends, a namespace that is being
//! deleted, and an API server that is killed, suspended or slow.

use podops_test_cluster::{
    cluster::eventually,
    suite::{Lane, Suite},
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;

use super::{
    cluster::{Cluster, apply, config_map, counts, plan, step},
    toy,
};

/// Time in which a request that fails is repeated after 1, 2 and 4 s.
const OBSERVED: Duration = Duration::from_secs(10);
/// Requests that an Instance may make meanwhile: for each attempt one read, one write and one
/// status.
const REQUESTS_MAX: usize = 12;
/// Number of objects whose creation takes a second each: more than an attempt has time for.
const SLOW_WRITES: usize = 30;
/// Time limit of a run that the API server interrupts: a leader that lost its Lease is restarted
/// first.
const OUTAGE_TIMEOUT: Duration = Duration::from_secs(90);

impl Cluster {
    /// Creates an Instance that writes with the operator's rights, of an OperatorVersion of its
    /// name whose only step applies a template.
    async fn one_step(&self, name: &str, template: &str) {
        self.version(
            name,
            json!({
                "parameters": [{ "name": "P", "default": "before" }],
                "templates": { "config": template }, "tasks": [apply("config")],
                "plans": { "deploy": plan(&[step("config")]) },
            }),
        )
        .await;
        let version = json!({ "name": name });
        let spec = json!({ "serviceAccountName": "", "operatorVersion": version });
        self.instance(name, spec).await;
    }

    /// Lets the API server call a webhook, for at most a second, before it creates a ConfigMap.
    async fn create_webhook(&self, name: &str, url: &str, failure_policy: &str) {
        self.create(&json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration", "metadata": { "name": name },
            "webhooks": [{
                "name": format!("{name}.example.com"), "sideEffects": "None", "timeoutSeconds": 1,
                "failurePolicy": failure_policy, "admissionReviewVersions": ["v1"],
                "clientConfig": { "url": url },
                "rules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                    "resources": ["configmaps"],
                }],
            }],
        }))
        .await;
    }

    async fn request_deploy(&self, instance: &str, uid: &str) {
        let request = json!({ "planName": "deploy", "uid": uid });
        self.patch(instance, json!({ "spec": { "planExecution": request } })).await;
    }

    async fn degraded(&self, instance: &str) -> Value {
        let found = self.get("instances.kudo.dev", instance).await.unwrap();
        let conditions = found["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|known| known["type"] == "Degraded").unwrap_or_default()
    }

    /// Asserts that the only step of an Instance fails with this message, and that the condition
    /// Degraded reports it since one time, while few requests are made.
    async fn assert_fails(&self, instance: &str, message: &str) {
        self.wait_for_step(instance, "deploy", "ERROR", message).await;
        let (since, first) = (self.log_end(), self.degraded(instance).await);
        assert_eq!(first["reason"], "StepError", "{first}");
        assert!(first["message"].as_str().unwrap().contains(message), "{first}");
        tokio::time::sleep(OBSERVED).await;
        let requests = self.requests(since);
        assert!(requests.len() <= REQUESTS_MAX, "{instance}: {:?}", counts(&requests));
        let last = self.degraded(instance).await;
        assert_eq!(last["lastTransitionTime"], first["lastTransitionTime"], "{last}");
    }

    async fn assert_completes(&self, instance: &str) {
        self.wait_for_plan(instance, "deploy", "COMPLETE").await;
        assert_eq!(self.degraded(instance).await, Value::Null, "{instance}");
    }
}

/// Each cause is in the status and costs few requests; the run continues once the cause ends.
pub(crate) async fn failing_requests_are_reported_until_their_cause_ends(cluster: &Cluster) {
    let quota = "--hard=count/configmaps=0";
    cluster.kubectl(&["create", "quota", "none", quota]).await;
    // No controller updates the quota here.
    let counted =
        json!({ "hard": { "count/configmaps": "0" }, "used": { "count/configmaps": "0" } });
    let status = json!({ "status": counted }).to_string();
    let patch =
        ["patch", "quota", "none", "--subresource=status", "--type=merge", "-p", status.as_str()];
    cluster.kubectl(&patch).await;
    cluster.one_step("quota", &config_map("quota")).await;
    cluster.assert_fails("quota", "exceeded quota: none").await;
    cluster.kubectl(&["delete", "quota", "none"]).await;
    cluster.assert_completes("quota").await;

    // A value that the Instance can have, and a ConfigMap cannot.
    let file = cluster.cluster.plane.dir.path().join("large.json");
    let large = json!({ "spec": { "parameters": { "P": "x".repeat((1 << 20) + 1) } } });
    std::fs::write(&file, large.to_string()).unwrap();
    let patch = ["patch", "instances.kudo.dev", "quota", "--type=merge", "--patch-file"];
    cluster.kubectl(&[&patch[..], &[file.to_str().unwrap()]].concat()).await;
    cluster.assert_fails("quota", "may not be more than 1048576 bytes").await;
    cluster.patch("quota", json!({ "spec": { "parameters": { "P": "small" } } })).await;
    cluster.assert_completes("quota").await;

    cluster.create_webhook("down", "https://127.0.0.1:1/", "Fail").await;
    cluster.one_step("webhook", &config_map("webhook")).await;
    cluster.assert_fails("webhook", r#"failed calling webhook "down.example.com""#).await;
    cluster.kubectl(&["delete", "validatingwebhookconfiguration", "down"]).await;
    cluster.assert_completes("webhook").await;

    cluster.one_step("owner", &config_map("shared")).await;
    cluster.assert_completes("owner").await;
    cluster.one_step("second", &config_map("shared")).await;
    cluster.assert_fails("second", "ConfigMap default/shared was made by").await;
    let shared = cluster.get("configmap", "shared").await.unwrap();
    assert_eq!(shared["metadata"]["ownerReferences"][0]["name"], "owner");
    cluster.kubectl(&["delete", "configmap", "shared"]).await;
    cluster.assert_completes("second").await;
}

/// A change of an immutable field is reported, also in the middle of a run; the former value fixes
/// it.
pub(crate) async fn immutable_fields_are_reported_until_their_value_is_restored(cluster: &Cluster) {
    let stateful_set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": { "name": "statefulset" },
        "spec": {
            "serviceName": "{{ .Params.P }}", "replicas": 1,
            "selector": { "matchLabels": { "app": "set" } },
            "template": {
                "metadata": { "labels": { "app": "set" } },
                "spec": { "containers": [{ "name": "a", "image": "a:1" }] },
            },
        },
    });
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "persistentvolumeclaim" },
        "spec": {
            "storageClassName": "{{ .Params.P }}", "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "1Gi" } },
        },
    });
    // Each object and Instance has the name of its kind.
    let cases = [
        ("statefulset", stateful_set, "updates to statefulset spec for fields other than"),
        ("persistentvolumeclaim", claim, "spec is immutable after creation"),
    ];
    for (kind, template, message) in cases {
        cluster.one_step(kind, &template.to_string()).await;
        let exists = async || Ok(cluster.get(kind, kind).await.is_ok());
        eventually(OUTAGE_TIMEOUT, exists).await.unwrap();
        let uid = cluster.get(kind, kind).await.unwrap()["metadata"]["uid"].clone();
        cluster.patch(kind, json!({ "spec": { "parameters": { "P": "after" } } })).await;
        cluster.assert_fails(kind, message).await;
        cluster.patch(kind, json!({ "spec": { "parameters": { "P": "before" } } })).await;
        let is_mended = async || Ok(cluster.degraded(kind).await.is_null());
        eventually(OUTAGE_TIMEOUT, is_mended).await.unwrap();
        let after = cluster.get(kind, kind).await.unwrap();
        assert_eq!(after["metadata"]["uid"], uid, "nothing is recreated");
    }
    cluster.cluster.assert_no_forbidden_requests().unwrap();
}

/// The type of an object is removed from the cluster with all its objects, and served again.
pub(crate) async fn a_type_may_be_removed_and_served_again(cluster: &Cluster) {
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "toys.example.com" },
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": { "kind": "Toy", "plural": "toys", "singular": "toy", "listKind": "ToyList" },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object" } },
            }],
        },
    });
    let toy = "apiVersion: example.com/v1\nkind: Toy\nmetadata:\n  name: toy\n";
    cluster.one_step("custom", toy).await;
    for turn in ["first", "second"] {
        cluster.wait_for_plan("custom", "deploy", "FATAL_ERROR").await;
        let message = cluster.plan_of("custom", "deploy").await.unwrap().to_string();
        assert!(message.contains("example.com/v1 Toy is not served"), "{message}");
        cluster.create(&definition).await;
        let crd = ["wait", "--for=condition=Established", "crd/toys.example.com"];
        cluster.kubectl(&crd).await;
        cluster.request_deploy("custom", turn).await;
        cluster.wait_for_plan("custom", "deploy", "COMPLETE").await;
        cluster.kubectl(&["get", "toys.example.com", "toy"]).await;
        cluster.kubectl(&["delete", "crd", "toys.example.com"]).await;
        cluster.request_deploy("custom", &format!("{turn}-without")).await;
    }
}

/// A client that replaces the manifest, as GitOps tools do, does not end a run. A run that waits
/// without end is ended by the next version.
pub(crate) async fn a_waiting_run_survives_a_replaced_manifest(cluster: &Cluster) {
    let mut stuck = toy();
    stuck["plans"]["deploy"] = stuck["plans"]["wait"].clone();
    cluster.version("stuck", stuck).await;
    cluster.version("repaired", toy()).await;
    let version = json!({ "operatorVersion": { "name": "stuck" } });
    cluster.instance("toy", version.clone()).await;
    cluster.wait_for_step("toy", "deploy", "IN_PROGRESS", "Job default/toy").await;
    let before = cluster.plan_of("toy", "deploy").await.unwrap();
    let manifest = json!({
        "apiVersion": "kudo.dev/v1beta1", "kind": "Instance", "metadata": { "name": "toy" },
        "spec": { "operatorVersion": { "name": "stuck" }, "serviceAccountName": "writer" },
    });
    let file = cluster.cluster.plane.dir.path().join("manifest.json");
    std::fs::write(&file, manifest.to_string()).unwrap();
    cluster.kubectl(&["replace", "-f", file.to_str().unwrap()]).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let after = cluster.plan_of("toy", "deploy").await.unwrap();
    assert_eq!((&after["uid"], &after["status"]), (&before["uid"], &json!("IN_PROGRESS")));

    let upgrade = json!({ "spec": { "operatorVersion": { "name": "repaired" } } });
    cluster.patch("toy", upgrade).await;
    cluster.wait_for_plan("toy", "deploy", "COMPLETE").await;
    assert_eq!(cluster.get("configmap", "toy").await.unwrap()["data"]["p"], "before");
    let instance = cluster.get("instances.kudo.dev", "toy").await.unwrap();
    assert_eq!(instance["status"]["history"].as_array().unwrap().len(), 1, "{instance:#}");
    cluster.cluster.assert_no_forbidden_requests().unwrap();
}

/// A cleanup that creates objects fails in a namespace that is being deleted, and would hold it
/// forever.
pub(crate) async fn a_failing_cleanup_does_not_hold_a_deleted_namespace(cluster: &Cluster) {
    cluster.cluster.create_namespace("doomed").await.unwrap();
    let mut version = toy();
    version["operator"] = json!({ "name": "toy", "kind": "Operator" });
    version["plans"]["cleanup"] = version["plans"]["many"].clone();
    let object = |kind: &str, spec: Value| {
        json!({
            "apiVersion": "kudo.dev/v1beta1", "kind": kind, "spec": spec,
            "metadata": { "name": "toy", "namespace": "doomed" },
        })
    };
    cluster.create(&object("OperatorVersion", version)).await;
    cluster.create(&object("Instance", json!({ "operatorVersion": { "name": "toy" } }))).await;
    let get = ["get", "instances.kudo.dev", "toy", "--namespace=doomed", "--output=json"];
    let instance = async || cluster.cluster.plane.kubectl(&get).await;
    let is_deployed = async || {
        let found: Value = serde_json::from_str(&instance().await?)?;
        Ok(found["status"]["planStatus"]["deploy"]["status"] == "COMPLETE")
    };
    eventually(OUTAGE_TIMEOUT, is_deployed).await.unwrap();
    // No controller deletes the content here.
    cluster.kubectl(&["delete", "namespace", "doomed", "--wait=false"]).await;
    let request = json!({ "spec": { "planExecution": { "planName": "many", "uid": "late" } } });
    let request = request.to_string();
    let patch = ["patch", "instances.kudo.dev", "toy", "--namespace=doomed", "--type=merge", "-p"];
    cluster.kubectl(&[&patch[..], &[request.as_str()]].concat()).await;
    let is_rejected = async || {
        let found: Value = serde_json::from_str(&instance().await?)?;
        let conditions = found["status"]["conditions"].to_string();
        Ok(conditions.contains("StepError") && conditions.contains("being terminated"))
    };
    eventually(OUTAGE_TIMEOUT, is_rejected).await.unwrap();
    let deleted = Instant::now();
    let delete = ["delete", "instances.kudo.dev", "toy", "--namespace=doomed", "--wait=false"];
    cluster.kubectl(&delete).await;
    let is_failing = async || {
        let found: Value = serde_json::from_str(&instance().await?)?;
        Ok(found["status"]["planStatus"]["cleanup"].to_string().contains("being terminated"))
    };
    eventually(OUTAGE_TIMEOUT, is_failing).await.unwrap();
    let is_gone = async || Ok(instance().await.is_err());
    eventually(OUTAGE_TIMEOUT, is_gone).await.unwrap();
    assert!(deleted.elapsed() > Duration::from_secs(25), "it had time: {:?}", deleted.elapsed());
}

/// A reconcile may take a minute. Writes stop after 20 s, so that the status records those made.
pub(crate) async fn slow_writes_are_recorded_before_all_are_done(cluster: &Cluster) {
    // The API server waits a second for it before each creation.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/", silent.local_addr().unwrap());
    cluster.create_webhook("silent", &url, "Ignore").await;
    let all: Vec<String> = (0..SLOW_WRITES).map(|n| config_map(&format!("slow-{n}"))).collect();
    let (begun, since) = (Instant::now(), cluster.log_end());
    cluster.one_step("slow", &all.join("---\n")).await;
    let recorded = async || {
        let instance = cluster.get("instances.kudo.dev", "slow").await?;
        Ok(instance["status"]["inventory"].as_array().is_some_and(|known| !known.is_empty()))
    };
    eventually(OUTAGE_TIMEOUT, recorded).await.unwrap();
    let instance = cluster.get("instances.kudo.dev", "slow").await.unwrap();
    let known = instance["status"]["inventory"].as_array().unwrap().len();
    assert!((15..SLOW_WRITES).contains(&known), "{known} after {:?}", begun.elapsed());
    assert_eq!(instance["status"]["planStatus"]["deploy"]["status"], "IN_PROGRESS");
    cluster.assert_completes("slow").await;
    let requests = cluster.requests(since);
    assert_eq!(counts(&requests)["patch configmaps"], SLOW_WRITES, "each is applied once");
}

/// How the API server fails in the middle of a run.
#[derive(Clone, Copy, Debug)]
enum Outage {
    /// Killed, and started again.
    Kill,
    /// Does not respond for longer than a Lease lasts.
    Suspend,
    /// Responds for a moment each second.
    Slow,
}

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite.scenario(Lane::Waiting, runs_complete_after_api_server_outages)
}

async fn runs_complete_after_api_server_outages() {
    let mut cluster = Cluster::start().await;
    let mut many = toy();
    many["plans"]["deploy"] = plan(&[step("many"), step("config")]);
    cluster.version("toy", many).await;
    cluster.instance("toy", json!({})).await;
    cluster.wait_for_plan("toy", "deploy", "COMPLETE").await;
    let outages =
        [(Outage::Kill, 20), (Outage::Kill, 120), (Outage::Suspend, 60), (Outage::Slow, 40)];
    for (turn, (outage, after)) in outages.into_iter().enumerate() {
        let value = format!("turn-{turn}");
        cluster.patch("toy", json!({ "spec": { "parameters": { "P": value } } })).await;
        tokio::time::sleep(Duration::from_millis(after)).await;
        cluster.fail(outage).await;
        let is_complete = async || {
            let instance = cluster.get("instances.kudo.dev", "toy").await?;
            let (status, generation) = (&instance["status"], &instance["metadata"]["generation"]);
            let is_observed = status["observedGeneration"] == *generation;
            Ok(is_observed && status["planStatus"]["deploy"]["status"] == "COMPLETE")
        };
        let result = eventually(OUTAGE_TIMEOUT, is_complete).await;
        assert!(
            result.is_ok(),
            "{outage:?}: {:#}",
            cluster.plan_of("toy", "deploy").await.unwrap()
        );
        let values =
            ["get", "configmaps", "-o", "jsonpath={range .items[*]}{.data.p}{\"\\n\"}{end}"];
        let values = cluster.kubectl(&values).await;
        let expected = values.lines().filter(|found| *found == value).count();
        assert_eq!(expected, 21, "{outage:?}: {values}");
    }
}

impl Cluster {
    async fn fail(&mut self, outage: Outage) {
        let plane = &mut self.cluster.plane;
        match outage {
            Outage::Kill => {
                plane.kill_apiserver().await.unwrap();
                plane.start_apiserver().await.unwrap();
            }
            Outage::Suspend => {
                plane.suspend_apiserver().unwrap();
                tokio::time::sleep(Duration::from_secs(12)).await;
                plane.resume_apiserver().unwrap();
            }
            Outage::Slow => {
                for _ in 0..10 {
                    plane.suspend_apiserver().unwrap();
                    tokio::time::sleep(Duration::from_millis(900)).await;
                    plane.resume_apiserver().unwrap();
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}
