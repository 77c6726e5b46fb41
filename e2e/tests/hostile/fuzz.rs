//! Random objects of every kind that operators read, generated from the API server's schemas, one
//! in a hundred of them hostile: no operator crashes, and every healthy object settles.
//!
//! `PODOPS_FUZZ_OBJECTS=10000` generates that many objects of each kind.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use fastrand::Rng;
use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
};
use podops_test_cluster::{
    cluster::{
        INSTANCE_OPERATOR, OPERATORS, TIMEOUT, TestCluster, eventually, memory_limit_mebibytes,
        programs,
    },
    suite::{Lane, Suite},
};
use serde::Deserialize;
use serde_json::{Map, Value, json, value::RawValue};
use tokio::time::sleep;

/// Number of objects of each kind, unless the environment sets another one.
const OBJECTS: u32 = 200;
/// Number of namespaces that have them.
const NAMESPACES: u32 = 200;
/// How often the creation of an object is tried.
const TRIES: usize = 10;
/// One in this many objects is hostile.
const HOSTILE_EVERY: u32 = 100;
/// Nesting that the API server accepts, and serde_json does not.
const HOSTILE_DEPTH: usize = 140;
/// Maximum nesting of generated values.
const DEPTH_MAX: usize = 8;
/// Probabilities of an optional field, from the first attempt to create an object to the last.
const DENSITIES: [f64; 4] = [0.3, 0.1, 0.02, 0.0];
/// Time for all objects to settle, and the additional time for each object of a kind.
const SETTLE_TIMEOUT: (Duration, Duration) = (Duration::from_secs(180), Duration::from_millis(60));

/// Defect of a hostile object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hostility {
    /// Annotations of the maximum size, and managed fields with a time that jiff cannot hold.
    /// Operators do not read them, so the object is like any other to them.
    UnreadMetadata,
    /// Almost a megabyte of labels.
    Labels,
    /// A value that is nested too deep, in kinds that preserve unknown fields.
    Nesting,
}

impl Hostility {
    const ALL: [Self; 3] = [Self::UnreadMetadata, Self::Labels, Self::Nesting];

    /// Returns the defect of an object of a kind; `None` without one. Each kind begins with a
    /// different defect, so that all occur among few objects.
    fn of(kind: &Kind, n: u32) -> Option<Self> {
        if !n.is_multiple_of(HOSTILE_EVERY) {
            return None;
        }
        let index = KINDS.iter().position(|other| other.plural == kind.plural)?;
        let turn = index + usize::try_from(n / HOSTILE_EVERY).ok()?;
        let hostility = Self::ALL[turn % Self::ALL.len()];
        let preserves = matches!(kind.name, "CollaSet" | "ControllerRevision");
        Some(if hostility == Self::Nesting && !preserves { Self::Labels } else { hostility })
    }

    fn apply(self, object: &mut Value) {
        match self {
            Self::UnreadMetadata => {
                object["metadata"]["annotations"] = json!({ "x": "x".repeat(250 << 10) });
            }
            Self::Labels => {
                for n in 0..7000 {
                    object["metadata"]["labels"][format!("{n:063}")] = json!("x".repeat(63));
                }
            }
            Self::Nesting => {
                let deep = (0..HOSTILE_DEPTH).fold(json!(1), |inner, _| json!({ "a": inner }));
                let part =
                    if object["kind"] == "CollaSet" { "/spec/template/spec" } else { "/data" };
                if let Some(part) = object.pointer_mut(part) {
                    part["deep"] = deep;
                }
            }
        }
    }
}

/// Memory, in KiB, that an operator may use for each number of objects of each kind: twice the
/// measured value with 10,000. The shipped limits are enough for the default number.
const KIBIBYTES: [(&str, f64); 6] = [
    ("collaset-operator", 102.0),
    ("consist-operator", 24.0),
    ("instance-operator", 86.0),
    ("lifecycle-operator", 29.0),
    ("operationjob-operator", 39.0),
    ("transition-rule-operator", 38.0),
];

/// A kind of objects, and the fields without which none is accepted.
struct Kind {
    group: &'static str,
    version: &'static str,
    name: &'static str,
    plural: &'static str,
    base: fn(&str, &mut Rng) -> Value,
}

/// The first [`WITH_STATUS`] kinds report the generation that their status is based on.
const KINDS: [Kind; 17] = [
    Kind {
        group: "apps.kusionstack.io",
        version: "v1alpha1",
        name: "CollaSet",
        plural: "collasets",
        base: collaset,
    },
    Kind {
        group: "apps.kusionstack.io",
        version: "v1alpha1",
        name: "PodTransitionRule",
        plural: "podtransitionrules",
        base: rule,
    },
    Kind {
        group: "apps.kusionstack.io",
        version: "v1alpha1",
        name: "PodDecoration",
        plural: "poddecorations",
        base: |name, _| {
            json!({ "spec": {
            "selector": { "matchLabels": { "app": name } },
            "template": { "containers": [{ "name": "sidecar", "image": "sidecar:1" }] },
        } })
        },
    },
    Kind {
        group: "apps.kusionstack.io",
        version: "v1alpha1",
        name: "OperationJob",
        plural: "operationjobs",
        base: |name, _| json!({ "spec": { "action": "Replace", "targets": [{ "name": name }] } }),
    },
    Kind {
        group: "kudo.dev",
        version: "v1beta1",
        name: "Instance",
        plural: "instances",
        base: |name, _| {
            let version = name.replace("instance", "operatorversion");
            json!({ "spec": { "operatorVersion": { "name": version } } })
        },
    },
    Kind {
        group: "kudo.dev",
        version: "v1beta1",
        name: "OperatorVersion",
        plural: "operatorversions",
        base: operator_version,
    },
    Kind {
        group: "apps.kusionstack.io",
        version: "v1alpha1",
        name: "ResourceContext",
        plural: "resourcecontexts",
        base: |_, random| json!({ "spec": { "contexts": [{ "id": random.u32(0..5) }] } }),
    },
    Kind { group: "", version: "v1", name: "Pod", plural: "pods", base: pod },
    Kind {
        group: "",
        version: "v1",
        name: "Service",
        plural: "services",
        base: |_, _| json!({ "spec": { "ports": [{ "port": 80 }] } }),
    },
    Kind {
        group: "",
        version: "v1",
        name: "PersistentVolumeClaim",
        plural: "persistentvolumeclaims",
        base: |_, _| {
            json!({ "spec": {
                "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Mi" } },
            } })
        },
    },
    Kind {
        group: "apps",
        version: "v1",
        name: "ControllerRevision",
        plural: "controllerrevisions",
        base: |_, random| json!({ "revision": random.i64(0..3), "data": { "spec": {} } }),
    },
    Kind {
        group: "apps",
        version: "v1",
        name: "StatefulSet",
        plural: "statefulsets",
        base: |name, _| {
            let mut workload = idle_workload(name);
            workload["spec"]["serviceName"] = json!("web");
            workload
        },
    },
    Kind {
        group: "apps",
        version: "v1",
        name: "Deployment",
        plural: "deployments",
        base: |name, _| idle_workload(name),
    },
    Kind {
        group: "apps",
        version: "v1",
        name: "ReplicaSet",
        plural: "replicasets",
        base: |name, _| idle_workload(name),
    },
    Kind {
        group: "apps",
        version: "v1",
        name: "DaemonSet",
        plural: "daemonsets",
        base: |name, _| {
            let mut workload = workload(name);
            workload["spec"]["template"]["spec"]["nodeSelector"] =
                json!({ "podops.test/never": "" });
            workload
        },
    },
    Kind {
        group: "policy",
        version: "v1",
        name: "PodDisruptionBudget",
        plural: "poddisruptionbudgets",
        base: |name, _| json!({ "spec": { "maxUnavailable": 1, "selector": { "matchLabels": { "app": name } } } }),
    },
    Kind {
        group: "discovery.k8s.io",
        version: "v1",
        name: "EndpointSlice",
        plural: "endpointslices",
        base: |_, _| json!({ "addressType": "IPv4", "endpoints": [{ "addresses": ["10.0.0.1"] }] }),
    },
];

/// Number of kinds whose status names the generation that it is based on.
const WITH_STATUS: usize = 5;

fn collaset(name: &str, random: &mut Rng) -> Value {
    json!({ "spec": {
        "replicas": random.i32(0..2), "selector": { "matchLabels": { "app": name } },
        "template": {
            "metadata": { "labels": { "app": name } },
            "spec": { "containers": [{ "name": "web", "image": "nginx:1" }] },
        },
    } })
}

/// With a plan that is executed at once, and another one if it is requested.
fn operator_version(_: &str, _: &mut Rng) -> Value {
    let steps = json!([{ "name": "step", "tasks": ["task"] }]);
    let phases = json!([{ "name": "phase", "strategy": "serial", "steps": steps }]);
    let plan = json!({ "strategy": "serial", "phases": phases });
    json!({ "spec": {
        "operator": { "name": "fuzz" }, "version": "1.0.0",
        "tasks": [{ "name": "task", "kind": "Dummy", "spec": { "done": true } }],
        "plans": { "deploy": plan, "other": plan },
    } })
}

/// A workload of the Instance with the same number.
fn workload(name: &str) -> Value {
    let instance = name.rsplit_once('-').map(|(_, n)| format!("fuzz-instance-{n}"));
    let mut template = collaset(name, &mut Rng::with_seed(0))["spec"]["template"].take();
    template["spec"]["schedulingGates"] = json!([{ "name": "podops.test/never" }]);
    json!({
        "metadata": { "labels": { "heritage": "kudo", "kudo.dev/instance": instance } },
        "spec": { "template": template, "selector": { "matchLabels": { "app": name } } },
    })
}

/// A workload that has no Pods.
fn idle_workload(name: &str) -> Value {
    let mut workload = workload(name);
    workload["spec"]["replicas"] = json!(0);
    workload
}

fn rule(name: &str, random: &mut Rng) -> Value {
    let rules = [
        json!({ "availablePolicy": { "maxUnavailableValue": "10%" } }),
        json!({ "labelCheck": { "requires": { "matchLabels": { "a": "b" } } } }),
        json!({ "cel": { "expression": "pod.metadata.name.size() > 3" } }),
        json!({ "schedule": { "freezes": [{ "from": "2020-01-01T00:00:00Z", "to": "9999-12-31T23:59:59Z" }] } }),
    ];
    let mut rule = random.choice(rules).unwrap();
    rule["name"] = json!("random");
    json!({ "spec": { "selector": { "matchLabels": { "app": name } }, "rules": [rule] } })
}

/// Never scheduled, so that no node has to run it.
fn pod(name: &str, _: &mut Rng) -> Value {
    json!({
        "metadata": { "labels": { "app": name, "kusionstack.io/control": "true" } },
        "spec": {
            "schedulingGates": [{ "name": "podops.test/never" }],
            "containers": [{ "name": "web", "image": "nginx:1" }],
        },
    })
}

/// Generates values from an OpenAPI document.
struct Generator<'a> {
    document: &'a Value,
    random: &'a mut Rng,
    /// Probability of an optional field.
    density: f64,
}

impl Generator<'_> {
    fn value(&mut self, schema: &Value, depth: usize) -> Value {
        let schema = self.resolve(schema);
        if let Some(values) = schema["enum"].as_array() {
            return self.random.choice(values).cloned().unwrap_or_default();
        }
        if schema["x-kubernetes-int-or-string"] == true || schema["format"] == "int-or-string" {
            return self.random.choice([json!(1), json!("50%"), json!("x"), json!(0)]).unwrap();
        }
        match schema["type"].as_str() {
            Some("object") => self.object(&schema, depth),
            Some("array") if depth < DEPTH_MAX => (0..self.random.usize(0..3))
                .map(|_| self.value(&schema["items"], depth + 1))
                .collect(),
            Some("array") => json!([]),
            Some("boolean") => json!(self.random.bool()),
            Some("integer" | "number") => self
                .random
                .choice([0, 1, 2, 30, -1, 2_147_483_647])
                .map_or(Value::Null, Value::from),
            Some("string") if schema["format"] == "date-time" => {
                json!(self.random.choice(["2026-01-01T00:00:00Z", "9999-12-31T23:59:59Z"]))
            }
            Some("string") => {
                let texts = ["a", "web-1", "10", "", "true", "ü", "x.y/z"];
                json!(self.random.choice(texts))
            }
            _ => json!({ "a": "b" }),
        }
    }

    fn object(&mut self, schema: &Value, depth: usize) -> Value {
        let mut object = Map::new();
        let required = schema["required"].as_array().cloned().unwrap_or_default();
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let is_wanted = required.iter().any(|r| r == name) || self.random.f64() < self.density;
            if is_wanted && depth < DEPTH_MAX {
                object.insert(name.clone(), self.value(field, depth + 1));
            }
        }
        if schema["additionalProperties"].is_object() && depth < DEPTH_MAX {
            for n in 0..self.random.usize(0..3) {
                let value = self.value(&schema["additionalProperties"], depth + 1);
                object.insert(format!("k{n}"), value);
            }
        }
        Value::Object(object)
    }

    /// Follows references.
    fn resolve(&self, schema: &Value) -> Value {
        let reference = schema["$ref"].as_str().or(schema["allOf"][0]["$ref"].as_str());
        let Some(name) = reference.and_then(|r| r.rsplit('/').next()) else {
            return schema.clone();
        };
        self.resolve(&self.document["components"]["schemas"][name])
    }
}

/// Adds the fields of `more` that `object` does not have.
fn add_missing(object: &mut Value, more: Value) {
    match (object, more) {
        (Value::Object(object), Value::Object(more)) => {
            for (key, value) in more {
                match object.get_mut(&key) {
                    Some(known) => add_missing(known, value),
                    None => drop(object.insert(key, value)),
                }
            }
        }
        (Value::Array(items), Value::Array(more)) => {
            if let (Some(first), Some(more)) = (items.first_mut(), more.into_iter().next()) {
                add_missing(first, more);
            }
        }
        _ => {}
    }
}

async fn document(client: &Client, kind: &Kind) -> Value {
    let path = match kind.group {
        "" => format!("/openapi/v3/api/{}", kind.version),
        group => format!("/openapi/v3/apis/{group}/{}", kind.version),
    };
    client.request(http::Request::get(path).body(Vec::new()).unwrap()).await.unwrap()
}

fn schema<'a>(document: &'a Value, kind: &Kind) -> &'a Value {
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let is_kind = |schema: &&Value| {
        let kinds = schema["x-kubernetes-group-version-kind"].as_array();
        kinds.is_some_and(|kinds| {
            kinds.iter().any(|k| k["kind"] == kind.name && k["version"] == kind.version)
        })
    };
    schemas.values().find(is_kind).unwrap()
}

fn api(client: &Client, kind: &Kind, n: u32) -> Api<DynamicObject> {
    let gvk = GroupVersionKind::gvk(kind.group, kind.version, kind.name);
    let resource = ApiResource::from_gvk_with_plural(&gvk, kind.plural);
    Api::namespaced_with(client.clone(), &format!("fuzz-{}", n % NAMESPACES), &resource)
}

/// Creates an object, or returns why it is invalid. A server that is overloaded gets it again.
async fn try_create(
    api: &Api<DynamicObject>,
    object: &DynamicObject,
) -> Result<(), Box<kube::core::Status>> {
    for _ in 0..TRIES {
        match api.create(&PostParams::default(), object).await {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) => match status.code {
                // An earlier attempt succeeded, and its response was lost, or cannot be decoded.
                409 => return Ok(()),
                400..409 | 410..429 | 500 => return Err(status),
                _ => eprintln!("retrying {:?}: {status}", object.metadata.name),
            },
            Err(error) => eprintln!("retrying {:?}: {error}", object.metadata.name),
        }
        sleep(Duration::from_secs(1)).await;
    }
    panic!("{:?} could not be created", object.metadata.name);
}

/// Creates one random object; returns its name and its defect.
async fn create(
    client: &Client,
    kind: &Kind,
    document: &Value,
    n: u32,
) -> (String, Option<Hostility>) {
    let name = format!("fuzz-{}-{n}", kind.name.to_lowercase());
    let mut random = Rng::with_seed(u64::from(n));
    let hostility = Hostility::of(kind, n);
    let api = api(client, kind, n);
    let mut rejections = Vec::new();
    for density in DENSITIES {
        let mut object = (kind.base)(&name, &mut random);
        let mut generator = Generator { document, random: &mut random, density };
        let mut more = generator.value(schema(document, kind), 0);
        for field in ["metadata", "status", "apiVersion", "kind"] {
            drop(more.as_object_mut().unwrap().remove(field));
        }
        add_missing(&mut object, more);
        let group = if kind.group.is_empty() { String::new() } else { format!("{}/", kind.group) };
        object["apiVersion"] = json!(format!("{group}{}", kind.version));
        object["kind"] = json!(kind.name);
        object["metadata"]["name"] = json!(name);
        if let Some(hostility) = hostility {
            hostility.apply(&mut object);
        }
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        if let Err(rejection) = try_create(&api, &object).await {
            rejections.push(rejection.to_string());
            continue;
        }
        if hostility == Some(Hostility::UnreadMetadata) {
            poison(&api, &name).await;
        }
        return (name, hostility);
    }
    panic!("each form of {name} is rejected: {rejections:#?}");
}

/// Writes a time into the managed fields that jiff cannot hold.
async fn poison(api: &Api<DynamicObject>, name: &str) {
    let patch = json!([
        { "op": "replace", "path": "/metadata/managedFields/0/time", "value": "9999-12-31T23:59:59Z" },
        { "op": "add", "path": "/metadata/annotations/hostile", "value": "true" },
    ]);
    let patch = Patch::Json::<()>(serde_json::from_value(patch).unwrap());
    match api.patch(name, &PatchParams::default(), &patch).await {
        // This client cannot decode the response, either.
        Ok(_) | Err(kube::Error::SerdeError(_)) => {}
        Err(error) => panic!("{error}"),
    }
}

/// Creates the namespaces, and waits for the ServiceAccounts without which Pods are rejected.
async fn create_namespaces(client: &Client) {
    for n in 0..NAMESPACES {
        let mut namespace = Namespace::default();
        namespace.metadata.name = Some(format!("fuzz-{n}"));
        let namespaces: Api<Namespace> = Api::all(client.clone());
        namespaces.create(&PostParams::default(), &namespace).await.unwrap();
    }
    let accounts: Api<ServiceAccount> = Api::all(client.clone());
    let named_default = ListParams::default().fields("metadata.name=default");
    let count = usize::try_from(NAMESPACES).unwrap();
    let is_ours = |account: &ServiceAccount| {
        account.metadata.namespace.as_ref().is_some_and(|namespace| namespace.starts_with("fuzz-"))
    };
    let exist = async || {
        let accounts = accounts.list(&named_default).await?.items;
        Ok(accounts.iter().filter(|account| is_ours(account)).count() == count)
    };
    eventually(TIMEOUT, exist).await.unwrap();
}

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite.scenario(Lane::Beside, random_and_hostile_objects_stop_no_operator)
}

async fn random_and_hostile_objects_stop_no_operator() {
    let count = std::env::var_os("PODOPS_FUZZ_OBJECTS");
    let count = count.and_then(|count| count.to_str()?.parse().ok());
    let count: u32 = count.unwrap_or(OBJECTS);
    let timeout = SETTLE_TIMEOUT.0 + SETTLE_TIMEOUT.1 * count;
    let started = Instant::now();
    let mut cluster = TestCluster::start_without_operators(&programs().unwrap()).await.unwrap();
    for (operator, kibibytes) in KIBIBYTES {
        let needed = f64::from(count) * kibibytes / 1024.0;
        cluster.set_memory_limit(operator, needed.max(memory_limit_mebibytes(operator).unwrap()));
    }
    cluster.start_operators().await.unwrap();
    cluster.add_instance_operator().await.unwrap();
    cluster.add_package_admin().await.unwrap();
    cluster.create_and_wait("web", 4, &json!({})).await.unwrap();
    let client = cluster.plane.admin.clone();
    create_namespaces(&client).await;
    // The operators only read workloads and budgets; their controllers would slow the API server.
    cluster.plane.stop_controllers().unwrap();
    let mut hostile = BTreeMap::new();
    for kind in &KINDS {
        let document = document(&client, kind).await;
        let created = stream::iter(0..count).map(|n| create(&client, kind, &document, n));
        let created: Vec<_> = created.buffer_unordered(8).collect().await;
        hostile
            .extend(created.into_iter().filter_map(|(name, hostility)| Some((name, hostility?))));
        eprintln!("{:.0?}: created {count} of {}", started.elapsed(), kind.name);
    }
    for hostility in Hostility::ALL {
        assert!(hostile.values().any(|other| *other == hostility), "{hostility:?} is not tried");
    }
    // As they were created, and as they are listed by an operator that starts.
    for restart in [false, true] {
        if restart {
            for operator in operators() {
                cluster.kill_and_restart(operator).await.unwrap();
            }
        }
        cluster.set_image("web", &format!("nginx:{restart}")).await.unwrap();
        cluster.wait_until_rolled_out("web", 4, timeout).await.unwrap();
        for kind in &KINDS[..WITH_STATUS] {
            assert_settled(&client, kind, &hostile, timeout).await;
            eprintln!("{:.0?}: {} settled, restarted: {restart}", started.elapsed(), kind.name);
        }
    }
    for operator in operators() {
        let process = cluster.operator(operator).unwrap();
        eprintln!("{operator}: peak {:.0} MiB", process.peak_mebibytes());
        assert_eq!(process.exits().len(), 1, "{operator} ended once, when it was killed");
    }
    // Random Instances name ServiceAccounts without rights.
    cluster.assert_no_own_forbidden_requests().unwrap();
}

fn operators() -> impl Iterator<Item = &'static str> {
    OPERATORS.into_iter().chain([INSTANCE_OPERATOR])
}

/// Returns the namespace of a rule by its name.
fn namespace_of(rule: &str) -> Option<String> {
    let n: u32 = rule.strip_prefix("fuzz-podtransitionrule-")?.parse().ok()?;
    Some(format!("fuzz-{}", n % NAMESPACES))
}

/// A list whose objects are not decoded.
#[derive(Deserialize)]
struct List {
    items: Vec<Box<RawValue>>,
}

/// Waits until the status of every object that can be decoded is about its current spec.
async fn assert_settled(
    client: &Client,
    kind: &Kind,
    hostile: &BTreeMap<String, Hostility>,
    timeout: Duration,
) {
    let Kind { group, version, plural, .. } = kind;
    let path = format!("/apis/{group}/{version}/{plural}");
    let unread = hostile.iter().filter(|(_, hostility)| **hostility != Hostility::UnreadMetadata);
    let unread: BTreeSet<&str> = unread.map(|(name, _)| name.as_str()).collect();
    // A rule that cannot be decoded blocks the rules of its namespace, because it could reject
    // Pods.
    let blocked: BTreeSet<String> = match kind.name {
        "PodTransitionRule" => unread.iter().filter_map(|name| namespace_of(name)).collect(),
        _ => BTreeSet::new(),
    };
    let unsettled = async || {
        // Not as objects with metadata, which this client cannot decode if they are poisoned.
        let list = client.request_text(http::Request::get(&path).body(Vec::new())?).await?;
        let list: List = serde_json::from_str(&list)?;
        // A value that is nested too deep is hostile.
        let all = list.items.iter().filter_map(|text| serde_json::from_str(text.get()).ok());
        let is_settled = |object: &Value| {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
            unread.contains(name)
                || blocked.contains(namespace)
                || object["status"]["observedGeneration"] == object["metadata"]["generation"]
        };
        let unsettled = all.filter(|object: &Value| !is_settled(object));
        anyhow::Ok(unsettled.map(|o| o["metadata"]["name"].to_string()).collect::<Vec<_>>())
    };
    let settled = async || Ok(unsettled().await?.is_empty());
    let waited = eventually(timeout, settled).await;
    assert!(waited.is_ok(), "{}: {:?} did not settle", kind.name, unsettled().await);
}
