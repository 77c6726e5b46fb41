//! The Helm chart of a release: installed, changed and uninstalled with Helm on a real API server.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    process::{Command, Output},
};

use k8s_openapi::api::{
    admissionregistration::v1::{
        MutatingAdmissionPolicy, MutatingWebhookConfiguration, ValidatingAdmissionPolicy,
    },
    apps::v1::Deployment,
    coordination::v1::Lease,
    core::v1::{Pod, ServiceAccount},
    rbac::v1::ClusterRole,
};
use kube::{
    Api, Resource, ResourceExt,
    api::{ListParams, PostParams},
};
use podops_api::{collaset::CollaSet, well_known};
use podops_test_cluster::{
    cluster::{
        INSTANCE_OPERATOR, OPERATORS, TIMEOUT, eventually, memory_limit_mebibytes, programs,
    },
    control_plane::ControlPlane,
    process::{Spec, SupervisedProcess},
    suite::{Lane, Suite},
};
use podops_test_programs::{Programs, helm};
use serde_json::{Value, json};

/// Namespace that the chart is installed in: another one than that of the manifests.
const NAMESPACE: &str = "platform";

/// A release, and Helm with a cluster.
struct Release {
    plane: ControlPlane,
    directory: tempfile::TempDir,
    helm: PathBuf,
}

impl Release {
    async fn build() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let digests = directory.path().join("digests");
        let digest = "0123456789abcdef".repeat(4);
        let images = OPERATORS.into_iter().chain([INSTANCE_OPERATOR]);
        let list: Vec<String> =
            images.map(|operator| format!("{operator} sha256:{digest}\n")).collect();
        fs::write(&digests, list.concat()).unwrap();
        let built = Command::new(programs().unwrap().join("xtask"))
            .args(["dist", "--version", "1.2.3", "--registry", "registry.example/podops"])
            .args(["--programs".as_ref(), programs().unwrap().as_os_str()])
            .args(["--published".as_ref(), digests.as_os_str()])
            .args(["--output".as_ref(), directory.path().join("release").as_os_str()])
            .output();
        success(&built.unwrap());
        let plane = ControlPlane::start().await.unwrap();
        Self { plane, directory, helm: helm().unwrap() }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.directory.path().join("release").join(file)
    }

    fn run(&self, args: &[&str]) -> Output {
        let home = self.directory.path().join("home");
        let chart = self.path("podops-1.2.3.tgz");
        let args =
            args.iter().map(|arg| if *arg == "CHART" { chart.to_str().unwrap() } else { arg });
        Command::new(&self.helm)
            .args(args)
            .args(["--namespace", NAMESPACE])
            .env("KUBECONFIG", self.plane.admin_kubeconfig())
            .env("HOME", &home)
            .output()
            .unwrap()
    }

    fn helm(&self, args: &[&str]) -> String {
        success(&self.run(args))
    }

    async fn names<K>(&self) -> Vec<String>
    where
        K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        let api: Api<K> = Api::all(self.plane.admin.clone());
        let labelled = ListParams::default().labels("app.kubernetes.io/part-of=podops");
        let listed = api.list(&labelled).await.unwrap();
        listed.iter().map(ResourceExt::name_any).collect()
    }
}

/// Standard output of a program that succeeded.
#[track_caller]
fn success(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Objects of manifests by kind and name, without Namespaces and empty priority classes, in which
/// the chart differs.
fn objects(manifests: &str) -> BTreeMap<String, Value> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(manifests).unwrap();
    let mut objects = BTreeMap::new();
    for mut object in documents {
        if object["kind"] == "Namespace" || object.is_null() {
            continue;
        }
        let priority = object.pointer_mut("/spec/template/spec/priorityClassName");
        if let Some(priority) = priority {
            assert_eq!(priority.take(), "");
            let spec = object.pointer_mut("/spec/template/spec").unwrap().as_object_mut();
            spec.unwrap().remove("priorityClassName");
        }
        let key = format!("{} {}", object["kind"], object["metadata"]["name"]);
        objects.insert(key, object);
    }
    objects
}

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite
        .scenario(Lane::Beside, the_chart_installs_what_the_manifests_install)
        .scenario(Lane::Beside, operators_of_the_chart_become_leaders_in_its_namespace)
        .scenario(Lane::Beside, the_chart_is_installed_changed_and_uninstalled)
        .scenario(Lane::Beside, objects_are_released_after_the_chart_was_uninstalled)
        .scenario(Lane::Beside, values_that_do_not_exist_are_rejected)
}

async fn the_chart_installs_what_the_manifests_install() {
    let release = Release::build().await;
    release.helm(&["lint", "--strict", "CHART"]);
    for (version, manifests) in
        [("1.36.0", "install.yaml"), ("1.33.0", "install-kubernetes-1.33.yaml")]
    {
        let rendered = release.helm(&["template", "podops", "CHART", "--kube-version", version]);
        let manifests = fs::read_to_string(release.path(manifests)).unwrap();
        let expected = manifests.replace("podops-system", NAMESPACE);
        let (rendered, expected) = (objects(&rendered), objects(&expected));
        assert!(expected.len() > 40, "{} objects", expected.len());
        let keys = |objects: &BTreeMap<String, Value>| objects.keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&rendered), keys(&expected));
        for (key, object) in &expected {
            assert_eq!(&rendered[key], object, "{version}: {key}");
        }
    }
    let too_old = release.run(&["template", "podops", "CHART", "--kube-version", "1.32.0"]);
    assert!(!too_old.status.success());
}

/// Starts an operator as its Deployment does, on loopback addresses.
async fn start(release: &Release, deployment: &Deployment) -> SupervisedProcess {
    let name = deployment.name_any();
    let container =
        &serde_json::to_value(&deployment.spec).unwrap()["template"]["spec"]["containers"][0];
    let texts = |value: &Value| serde_json::from_value::<Vec<String>>(value.clone()).unwrap();
    let mut args = texts(&container["args"]);
    for arg in &mut args {
        *arg = arg.replace("0.0.0.0:9443", "127.0.0.1:0");
    }
    args.push("--metrics-bind-address=127.0.0.1:0".to_owned());
    let variables = container["env"].as_array().into_iter().flatten().map(|variable| {
        let is_namespace = variable["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.namespace";
        let value = if is_namespace { NAMESPACE } else { variable["value"].as_str().unwrap() };
        (variable["name"].as_str().unwrap().to_owned(), value.to_owned())
    });
    let create = ["create", "token", &name, "--namespace", NAMESPACE];
    let token = release.plane.kubectl(&create).await.unwrap();
    SupervisedProcess::start(Spec {
        program: programs().unwrap().join(&name),
        args,
        env: variables.collect(),
        kubeconfig: release.plane.kubeconfig(&name, token.trim()).unwrap(),
        log: release.path(&format!("{name}.log")),
        memory_mebibytes: memory_limit_mebibytes(&name).unwrap(),
    })
}

/// The roles grant the operators' permissions in the namespace of the chart only.
async fn operators_of_the_chart_become_leaders_in_its_namespace() {
    let release = Release::build().await;
    let packages = "operators.instance.enabled=true";
    release.helm(&["install", "podops", "CHART", "--create-namespace", "--set", packages]);
    let deployments: Api<Deployment> = Api::namespaced(release.plane.admin.clone(), NAMESPACE);
    let deployments = deployments.list(&ListParams::default()).await.unwrap().items;
    assert_eq!(deployments.len(), OPERATORS.len() + 1);
    let mut operators = Vec::new();
    for deployment in &deployments {
        operators.push(start(&release, deployment).await);
    }
    let leases: Api<Lease> = Api::namespaced(release.plane.admin.clone(), NAMESPACE);
    for name in deployments.iter().map(ResourceExt::name_any) {
        let is_leader = async || {
            let spec = leases.get_opt(&name).await?.and_then(|lease| lease.spec);
            Ok(spec.is_some_and(|spec| spec.holder_identity.is_some()))
        };
        let waited = eventually(TIMEOUT, is_leader).await;
        waited.unwrap_or_else(|error| panic!("{name} did not become leader: {error:#}"));
    }
    // Before Kubernetes 1.36, the chart has webhooks, which need a certificate for the namespace.
    let webhooks = [
        "get",
        "mutatingwebhookconfigurations",
        "-o",
        "jsonpath={.items[*].webhooks[*].clientConfig}",
    ];
    let is_trusted = async || {
        let found = release.plane.kubectl(&webhooks).await?;
        Ok(found.is_empty() || found.contains("caBundle"))
    };
    eventually(TIMEOUT, is_trusted).await.unwrap();
    for name in deployments.iter().map(ResourceExt::name_any) {
        let log = fs::read_to_string(release.path(&format!("{name}.log"))).unwrap();
        assert!(!log.contains("forbidden"), "{log}");
        assert!(!log.contains("podops-system"), "{log}");
    }
}

async fn the_chart_is_installed_changed_and_uninstalled() {
    let release = Release::build().await;
    let values = "priorityClassName=system-cluster-critical,operators.consist.enabled=false,\
                  operators.collaset.replicas=3,operators.collaset.resources.limits.memory=1Gi";
    release.helm(&["install", "podops", "CHART", "--create-namespace", "--set", values]);
    let deployments: Api<Deployment> = Api::namespaced(release.plane.admin.clone(), NAMESPACE);
    let collaset =
        serde_json::to_value(deployments.get("collaset-operator").await.unwrap()).unwrap();
    assert_eq!(collaset["spec"]["replicas"], 3);
    let pod = &collaset["spec"]["template"]["spec"];
    assert_eq!(pod["priorityClassName"], "system-cluster-critical");
    let limits = json!({ "memory": "1Gi" });
    assert_eq!(pod["containers"][0]["resources"]["limits"], limits);
    let image = pod["containers"][0]["image"].as_str().unwrap();
    assert!(image.starts_with("registry.example/podops/collaset-operator@sha256:"), "{image}");
    assert_eq!(release.names::<Deployment>().await.len(), OPERATORS.len() - 1);
    let webhooks = release.names::<MutatingWebhookConfiguration>().await.len();
    let minor = Programs::find().unwrap().apiserver_minor().unwrap();
    if minor >= 36 {
        assert!(release.names::<MutatingAdmissionPolicy>().await.len() > 2);
        assert_eq!(webhooks, 0);
    } else {
        assert_eq!(webhooks, 1, "of 1.{minor}");
    }
    let kinds = "collasets,podtransitionrules,operationjobs,instances.kudo.dev";
    release.plane.kubectl(&["get", kinds]).await.unwrap();

    let upgrade = ["upgrade", "podops", "CHART", "--reset-values"];
    release.helm(&[&upgrade[..], &["--set", "registry=other.example"]].concat());
    let mut names = release.names::<Deployment>().await;
    names.sort_unstable();
    assert_eq!(names, OPERATORS);
    let packages = "operators.instance.enabled=true";
    release.helm(&[&upgrade[..], &["--set", packages]].concat());
    let mut names = release.names::<Deployment>().await;
    names.retain(|name| !OPERATORS.contains(&name.as_str()));
    assert_eq!(names, [INSTANCE_OPERATOR]);
    let account = format!("system:serviceaccount:{NAMESPACE}:instance-operator");
    let get = ["get", "validatingadmissionpolicy", "podops-instance-admission", "-o", "yaml"];
    assert!(release.plane.kubectl(&get).await.unwrap().contains(&account));
    release.helm(&["rollback", "podops", "1"]);
    assert_eq!(release.names::<Deployment>().await.len(), OPERATORS.len() - 1);

    release.helm(&["uninstall", "podops"]);
    assert_eq!(release.names::<Deployment>().await, Vec::<String>::new());
    assert_eq!(release.names::<ValidatingAdmissionPolicy>().await, Vec::<String>::new());
    let roles: Api<ClusterRole> = Api::all(release.plane.admin.clone());
    let roles = roles.list(&ListParams::default()).await.unwrap();
    let left = roles.iter().map(ResourceExt::name_any).filter(|name| name.starts_with("podops"));
    assert_eq!(left.collect::<Vec<_>>(), Vec::<String>::new());
    let accounts: Api<ServiceAccount> = Api::namespaced(release.plane.admin.clone(), NAMESPACE);
    let accounts = accounts.list(&ListParams::default()).await.unwrap();
    assert!(accounts.iter().all(|account| account.name_any() == "default"));
    // With the definitions, users would lose their objects.
    release.plane.kubectl(&["get", "collasets"]).await.unwrap();
}

/// Objects of Podops are released by `kubectl podops uninstall` when Helm has removed the
/// operators.
async fn objects_are_released_after_the_chart_was_uninstalled() {
    let release = Release::build().await;
    release.helm(&["install", "podops", "CHART", "--create-namespace"]);
    let sets: Api<CollaSet> = Api::namespaced(release.plane.admin.clone(), "default");
    let set = serde_json::from_value(json!({
        "metadata": { "name": "web", "finalizers": [well_known::PRE_RECLAIM] },
        "spec": {
            "replicas": 1, "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": { "containers": [{ "name": "web", "image": "web" }] },
            },
        },
    }));
    let set = sets.create(&PostParams::default(), &set.unwrap()).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(release.plane.admin.clone(), "default");
    let owner = set.controller_owner_ref(&()).unwrap();
    let pod = serde_json::from_value(json!({
        "metadata": {
            "name": "web", "labels": { "app": "web", "kusionstack.io/control": "true" },
            "finalizers": [format!("{}/0", well_known::PROTECTION_FINALIZER)],
            "ownerReferences": [owner],
        },
        "spec": { "containers": [{ "name": "web", "image": "web" }] },
    }));
    pods.create(&PostParams::default(), &pod.unwrap()).await.unwrap();

    release.helm(&["uninstall", "podops"]);
    let uninstall = ["uninstall", "--workloads", "keep", "--operator-namespace", NAMESPACE];
    let uninstalled = Command::new(programs().unwrap().join("kubectl-podops"))
        .args(uninstall)
        .env("KUBECONFIG", release.plane.admin_kubeconfig())
        .output();
    success(&uninstalled.unwrap());
    let pod = pods.get("web").await.unwrap();
    assert!(pod.metadata.deletion_timestamp.is_none());
    assert!(pod.owner_references().is_empty() && pod.finalizers().is_empty(), "{pod:?}");
    let all = ["api-resources", "--api-group=apps.kusionstack.io", "-o", "name"];
    assert_eq!(release.plane.kubectl(&all).await.unwrap().trim(), "");
    // The namespace may have other objects: Helm has created it, not Podops.
    release.plane.kubectl(&["get", "namespace", NAMESPACE]).await.unwrap();
}

async fn values_that_do_not_exist_are_rejected() {
    let release = Release::build().await;
    for (value, named) in [
        ("operators.colaset.enabled=false", "colaset"),
        ("operators.collaset.replicas=-1", "replicas"),
        ("registry=", "registry"),
    ] {
        let output = release.run(&[
            "template",
            "podops",
            "CHART",
            "--kube-version",
            "1.36.0",
            "--set",
            value,
        ]);
        assert!(!output.status.success(), "{value} is accepted");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains(named), "{value}: {error}");
    }
}
