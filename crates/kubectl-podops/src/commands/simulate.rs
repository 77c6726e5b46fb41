//! The command `simulate`.

use std::{
    collections::BTreeMap,
    io::{self, Read as _},
    path::Path,
    process::ExitCode,
};

use anyhow::{Context as _, bail, ensure};
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, Deployment, StatefulSet},
    core::v1::{Node, PersistentVolumeClaim, Pod, Service},
    policy::v1::PodDisruptionBudget,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams},
};
use kubectl_podops::{answer::is_not_found, cli::Output, inventory, simulate};
use podops_api::{
    collaset::CollaSet, int_or_percent, pod_decoration::PodDecoration,
    resource_context::ResourceContext, transition_rule::PodTransitionRule,
};
use podops_simulation::{Namespace, Settings};
use podops_terminal::clock;
use serde_json::Value;

use crate::{output::print, session::Session};

/// Annotation in which `kubectl apply` stores the manifest.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

pub(crate) async fn simulate(
    session: &Session,
    file: &Path,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let manifest = read(file)?;
    let namespace = manifest["metadata"]["namespace"].as_str().unwrap_or(&session.namespace);
    let set = stored(session, namespace, &manifest).await?;
    let read = read_namespace(session, namespace).await;
    let read = read.with_context(|| format!("cannot list the objects of namespace {namespace}"))?;
    let prediction = podops_simulation::simulate(read, set)?;
    print(&prediction, || simulate::text(&prediction), output)?;
    Ok(ExitCode::SUCCESS)
}

/// Reads the manifest of a CollaSet; `-` is the standard input.
fn read(file: &Path) -> anyhow::Result<Value> {
    let mut text = String::new();
    if file == Path::new("-") {
        io::stdin().read_to_string(&mut text).context("cannot read the standard input")?;
    } else {
        let read = std::fs::read_to_string(file);
        text = read.with_context(|| format!("cannot read {}", file.display()))?;
    }
    let manifest: Value = serde_saphyr::from_str(&text)
        .with_context(|| format!("{} is not one YAML or JSON document", file.display()))?;
    let version = &manifest["apiVersion"];
    let kind = &manifest["kind"];
    let expected = format!("{}/{}", podops_api::GROUP, podops_api::VERSION);
    if *version != expected.as_str() || *kind != "CollaSet" {
        let version = text_of(version);
        let kind = text_of(kind);
        bail!("{} contains {version} {kind}, but no CollaSet of {expected}", file.display());
    }
    ensure!(manifest["metadata"]["name"].is_string(), "metadata.name is missing");
    Ok(manifest)
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or("an object without kind")
}

/// Returns the CollaSet as the API server would store it: with its defaults, and admitted by its
/// policies. Nothing is stored.
async fn stored(session: &Session, namespace: &str, manifest: &Value) -> anyhow::Result<Value> {
    let kind = ApiResource::erase::<CollaSet>(&());
    let sets: Api<DynamicObject> = Api::namespaced_with(session.client.clone(), namespace, &kind);
    let object: DynamicObject = serde_json::from_value(manifest.clone())?;
    let name = object.name_any();
    let known = session.existing(&name, sets.get_opt(&name).await)?;
    let known = known.context("cannot read the CollaSet")?;
    let result = if let Some(known) = known {
        let last_applied = known.annotations().get(LAST_APPLIED);
        let last_applied = last_applied.and_then(|text| serde_json::from_str(text).ok());
        let patch = simulate::apply_patch(last_applied.as_ref(), manifest);
        sets.patch(&name, &PatchParams::default().dry_run(), &Patch::Merge(patch)).await
    } else {
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        sets.create(&dry_run, &object).await
    };
    let admitted = result.context("the API server rejects the CollaSet")?;
    Ok(serde_json::to_value(admitted)?)
}

async fn read_namespace(session: &Session, namespace: &str) -> kube::Result<Namespace> {
    let client = &session.client;
    let mut objects = BTreeMap::from([
        ("pods", list::<Pod>(client, namespace).await?),
        ("persistentvolumeclaims", list::<PersistentVolumeClaim>(client, namespace).await?),
        ("controllerrevisions", list::<ControllerRevision>(client, namespace).await?),
        ("services", list::<Service>(client, namespace).await?),
        ("statefulsets", list::<StatefulSet>(client, namespace).await?),
        ("poddisruptionbudgets", list::<PodDisruptionBudget>(client, namespace).await?),
        ("collasets", list::<CollaSet>(client, namespace).await?),
        ("resourcecontexts", list::<ResourceContext>(client, namespace).await?),
    ]);
    // A platform may not have installed these.
    objects.insert("poddecorations", optional::<PodDecoration>(client, namespace).await?);
    objects.insert("podtransitionrules", optional::<PodTransitionRule>(client, namespace).await?);
    let rules = objects["podtransitionrules"].iter().map(|rule| &rule["spec"]["rules"]);
    let mut rules = rules.filter_map(Value::as_array).flatten();
    let nodes = if rules.any(|rule| !rule["topologySpread"].is_null()) {
        let kind = ApiResource::erase::<Node>(&());
        let nodes = Api::<DynamicObject>::all_with(client.clone(), &kind);
        inventory::list(&nodes, "", |_| true).await?
    } else {
        Vec::new()
    };
    Ok(Namespace {
        name: namespace.to_owned(),
        objects,
        nodes,
        settings: Settings {
            can_resize: serves_resize(client).await?,
            default_max_unavailable: default_max_unavailable(session).await,
        },
        now: clock::now(),
    })
}

/// The flag `--default-max-unavailable` of the installed operator; `None` if it is not set, or if
/// the user may not read the Deployment.
async fn default_max_unavailable(session: &Session) -> Option<IntOrString> {
    let deployments: Api<Deployment> =
        Api::namespaced(session.client.clone(), &session.operator_namespace);
    let deployment = deployments.get_opt("collaset-operator").await.ok()??;
    let containers = deployment.spec?.template.spec?.containers;
    let args = containers.into_iter().filter_map(|container| container.args).flatten();
    let mut values = args.filter_map(|arg| {
        let value = arg.strip_prefix("--default-max-unavailable=")?;
        int_or_percent::parse(value).ok()
    });
    values.next()
}

/// Returns whether the cluster resizes Pods in place.
async fn serves_resize(client: &Client) -> kube::Result<bool> {
    let served = client.list_core_api_resources("v1").await?;
    Ok(served.resources.iter().any(|resource| resource.name == "pods/resize"))
}

async fn list<K>(client: &Client, namespace: &str) -> kube::Result<Vec<Value>>
where
    K: Resource<DynamicType = ()>,
{
    let kind = ApiResource::erase::<K>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &kind);
    inventory::list(&api, "", |_| true).await
}

async fn optional<K>(client: &Client, namespace: &str) -> kube::Result<Vec<Value>>
where
    K: Resource<DynamicType = ()>,
{
    match list::<K>(client, namespace).await {
        Err(kube::Error::Api(status)) if is_not_found(&status) => Ok(Vec::new()),
        listed => listed,
    }
}
