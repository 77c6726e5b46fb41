//! The cluster of these tests, and parts of packages.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use podops_test_cluster::{
    audit::Request,
    cluster::{INSTANCE_OPERATOR, TIMEOUT, TestCluster, eventually, programs},
};
use serde_json::{Value, json};

/// Kinds of the other objects that tests create.
const OBJECTS: &str = "operatorversions.kudo.dev,deployments,statefulsets,jobs,pods,configmaps,secrets,\
                       persistentvolumeclaims";

/// A control plane with instance-operator, and a ServiceAccount `writer` that may write the objects
/// of the packages of these tests.
pub(crate) struct Cluster {
    pub(crate) cluster: TestCluster,
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        Self::of(TestCluster::start_with_packages(&programs().unwrap()).await.unwrap()).await
    }

    /// As [`Self::start`]; Instances without a ServiceAccount may write everything.
    pub(crate) async fn start_with_admin() -> Self {
        let cluster = Self::start().await;
        cluster.cluster.add_package_admin().await.unwrap();
        cluster
    }

    pub(crate) async fn start_for_standby() -> Self {
        let programs = programs().unwrap();
        Self::of(TestCluster::start_with_packages_for_standby(&programs).await.unwrap()).await
    }

    async fn of(cluster: TestCluster) -> Self {
        let resources = "configmaps,secrets,pods,pods/exec,jobs.batch,deployments.apps";
        cluster.create_writer("writer", resources).await.unwrap();
        let cluster = Self { cluster };
        // The requests of the start belong to no test.
        cluster.settle().await;
        cluster
    }

    /// Deletes the objects that a test has created, so that the next test begins with an empty
    /// namespace.
    pub(crate) async fn clean(&self) {
        // Instances first: their plans `cleanup` need their OperatorVersions.
        for kinds in ["instances.kudo.dev", OBJECTS] {
            self.kubectl(&["delete", kinds, "--all", "--timeout=60s"]).await;
        }
        self.settle().await;
    }

    /// Waits until the operator sends no requests: the audit log is written in batches.
    pub(crate) async fn settle(&self) {
        self.settled_requests(self.log_end()).await;
    }

    pub(crate) async fn kubectl(&self, args: &[&str]) -> String {
        self.cluster.plane.kubectl(args).await.unwrap()
    }

    pub(crate) async fn create(&self, object: &Value) {
        let file = self.cluster.plane.dir.path().join("object.json");
        std::fs::write(&file, object.to_string()).unwrap();
        self.kubectl(&["create", "--validate=strict", "-f", file.to_str().unwrap()]).await;
    }

    pub(crate) async fn version(&self, name: &str, spec: Value) {
        let mut spec = spec;
        spec["operator"] = json!({ "name": "toy", "kind": "Operator" });
        spec["version"] = json!("0.1.0");
        self.create(&json!({
            "apiVersion": "kudo.dev/v1beta1", "kind": "OperatorVersion",
            "metadata": { "name": name }, "spec": spec,
        }))
        .await;
    }

    pub(crate) async fn instance(&self, name: &str, spec: Value) {
        let mut spec = spec;
        if spec.get("operatorVersion").is_none() {
            spec["operatorVersion"] = json!({ "name": "toy" });
        }
        if spec.get("serviceAccountName").is_none() {
            spec["serviceAccountName"] = json!("writer");
        }
        self.create(&json!({
            "apiVersion": "kudo.dev/v1beta1", "kind": "Instance",
            "metadata": { "name": name }, "spec": spec,
        }))
        .await;
    }

    pub(crate) async fn patch(&self, instance: &str, patch: Value) {
        let patch = patch.to_string();
        self.kubectl(&["patch", "instances.kudo.dev", instance, "--type=merge", "-p", &patch])
            .await;
    }

    /// Reads an object. The tests poll with this, and a process for each would keep the machine
    /// busy.
    pub(crate) async fn get(&self, kind: &str, name: &str) -> anyhow::Result<Value> {
        let request = http::Request::get(format!("{}/{name}", path(kind))).body(Vec::new())?;
        let mut object: Value = self.cluster.plane.admin.request(request).await?;
        // As kubectl shows it.
        object["metadata"]["managedFields"].take();
        Ok(object)
    }

    pub(crate) async fn plan_of(&self, instance: &str, plan: &str) -> anyhow::Result<Value> {
        Ok(self.get("instances.kudo.dev", instance).await?["status"]["planStatus"][plan].clone())
    }

    /// Waits until an Instance has this state.
    pub(crate) async fn wait_until(&self, instance: &str, has_state: impl Fn(&Value) -> bool) {
        let reached = async || Ok(has_state(&self.get("instances.kudo.dev", instance).await?));
        let result = eventually(TIMEOUT, reached).await;
        let last = self.get("instances.kudo.dev", instance).await.unwrap();
        assert!(result.is_ok(), "{last:#}");
    }

    pub(crate) async fn wait_for_plan(&self, instance: &str, plan: &str, expected: &str) {
        self.wait_until(instance, |found| {
            found["status"]["planStatus"][plan]["status"].as_str() == Some(expected)
        })
        .await;
    }

    /// Waits until the first step of the first phase of a plan has this status, with this message.
    pub(crate) async fn wait_for_step(
        &self,
        instance: &str,
        plan: &str,
        expected: &str,
        message: &str,
    ) {
        self.wait_until(instance, |found| {
            let step = &found["status"]["planStatus"][plan]["phases"][0]["steps"][0];
            let has_message = step["message"].as_str().unwrap_or_default().contains(message);
            step["status"].as_str() == Some(expected) && has_message
        })
        .await;
    }

    /// Waits until the condition Ready has this status and reason.
    pub(crate) async fn wait_until_ready_is(&self, instance: &str, status: &str, reason: &str) {
        self.wait_until(instance, |found| {
            let conditions = found["status"]["conditions"].as_array();
            let mut ready = conditions.into_iter().flatten().filter(|c| c["type"] == "Ready");
            ready.any(|ready| ready["status"] == status && ready["reason"] == reason)
        })
        .await;
    }

    /// Reports a Job as complete, as its controller does.
    pub(crate) async fn complete_job(&self, name: &str) {
        let status = json!({ "status": { "succeeded": 1, "startTime": "2026-01-01T00:00:00Z" } });
        let status = status.to_string();
        let patch = ["patch", "job", name, "--subresource=status", "--type=merge", "-p", &status];
        self.kubectl(&patch).await;
    }

    /// Requests of the operator since an offset in the audit log, except those of its Lease, by
    /// verb and resource, in their order.
    pub(crate) fn requests(&self, since: u64) -> Vec<String> {
        let (requests, _) = self.cluster.requests(since).unwrap();
        let of_operator = requests.iter().filter(|r| r.operator() == Some(INSTANCE_OPERATOR));
        let counted = of_operator.filter(|r| r.resource() != "leases" && r.verb != "watch");
        counted.map(|r| format!("{} {} {}", r.verb, r.resource(), r.subresource())).collect()
    }

    /// As [`requests`](Self::requests), once there are no more for some time.
    pub(crate) async fn settled_requests(&self, since: u64) -> Vec<String> {
        loop {
            let before = self.requests(since);
            tokio::time::sleep(Duration::from_secs(2)).await;
            let after = self.requests(since);
            if before.len() == after.len() {
                return after;
            }
        }
    }

    /// Time of the first request of this verb, resource and name since an offset in the audit log,
    /// which is written in batches.
    pub(crate) async fn request_at(&self, since: u64, expected: [&str; 3]) -> Timestamp {
        let is_expected = |r: &&Request| [r.verb.as_str(), r.resource(), r.name()] == expected;
        let found = || {
            let (requests, _) = self.cluster.requests(since).ok()?;
            requests.iter().find(is_expected).map(|request| request.at)
        };
        eventually(TIMEOUT, async || Ok(found().is_some())).await.unwrap();
        found().unwrap()
    }

    pub(crate) fn log_end(&self) -> u64 {
        self.cluster.audit_log_end().unwrap()
    }
}

/// Path of the objects of a kind, as kubectl names it.
fn path(kind: &str) -> String {
    let (group, resource) = match kind {
        "clusterroles" => return "/apis/rbac.authorization.k8s.io/v1/clusterroles".to_owned(),
        "collasets" => ("apis/apps.kusionstack.io/v1alpha1", "collasets"),
        "configmap" => ("api/v1", "configmaps"),
        "deployment" => ("apis/apps/v1", "deployments"),
        "instances.kudo.dev" => ("apis/kudo.dev/v1beta1", "instances"),
        "job" => ("apis/batch/v1", "jobs"),
        "persistentvolumeclaim" => ("api/v1", "persistentvolumeclaims"),
        "pod" => ("api/v1", "pods"),
        "secret" => ("api/v1", "secrets"),
        "statefulset" => ("apis/apps/v1", "statefulsets"),
        other => panic!("no path of {other}"),
    };
    format!("/{group}/namespaces/default/{resource}")
}

pub(crate) fn counts(requests: &[String]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for request in requests {
        *counts.entry(request.trim_end()).or_default() += 1;
    }
    counts
}

pub(crate) fn step(task: &str) -> Value {
    json!({ "name": task, "tasks": [task] })
}

pub(crate) fn plan(steps: &[Value]) -> Value {
    let phase = json!({ "name": "main", "strategy": "serial", "steps": steps });
    json!({ "strategy": "serial", "phases": [phase] })
}

pub(crate) fn apply(name: &str) -> Value {
    json!({ "name": name, "kind": "Apply", "spec": { "resources": [name] } })
}

pub(crate) fn config_map(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\ndata:\n  p: \"{{{{ .Params.P }}}}\"\n"
    )
}

pub(crate) fn job(name: &str) -> String {
    format!(
        "apiVersion: batch/v1\nkind: Job\nmetadata:\n  name: {name}\nspec:\n  suspend: true\n  template:\n    \
         spec:\n      restartPolicy: Never\n      containers:\n      - name: a\n        image: a\n"
    )
}
