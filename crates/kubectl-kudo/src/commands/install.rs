//! `install`.

use anyhow::{Context as _, bail};
use go_template::{Data, Environment, Limits, Template, compare_versions};
use instance_operator::{
    object::enhance::OPERATOR,
    values::{SetValue, template_values},
    view::Version,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, ObjectReference};
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, PostParams},
};
use kubectl_kudo::{
    cli::{Connection, Install, Wait},
    plans::Baseline,
    repository::Versions,
    resolve::resolve,
    source::Source,
};
use podops_api::kudo::{Instance, InstanceSpec, OperatorVersion};
use podops_packages::{convert, package::Package, yaml};

use super::{
    Given, given,
    versions::{self, plan_all},
    wait::wait_until_ready,
};
use crate::{
    cluster::{Cluster, MANAGER},
    find::Finder,
    output::print_line,
};

/// Installs a package.
///
/// # Errors
///
/// If the package cannot be installed, or the API server rejects an object. All checks precede the
/// first write.
pub(crate) async fn install(connection: &Connection, install: Install) -> anyhow::Result<()> {
    let argument = install.package.named("install")?;
    let cluster = Cluster::connect(connection).await?;
    let search = &install.package.search;
    let given = given(&install.package.values)?;
    let wanted = search.versions();
    if install.in_cluster {
        let version = in_cluster(&cluster, argument, &wanted).await?;
        let instance = new_instance(&cluster, &version, &install, &given).await?;
        return create(&cluster, instance, install.package.wait).await;
    }
    let packages = resolve(&Finder::new(connection, search), &Source::parse(argument), &wanted)?;
    check_server(&cluster, &packages).await?;
    let namespace = match packages.last() {
        Some(package) if install.create_namespace => {
            let name = instance_name(&install, &package.operator.name);
            Some(namespace(&cluster, package, &name, &given)?)
        }
        Some(_) | None => None,
    };
    let planned = plan_all(&cluster, packages, install.package.replace_operatorversion).await?;
    let version = planned.last().context("there is no package")?.version();
    let instance = new_instance(&cluster, version, &install, &given).await?;
    if let Some(namespace) = namespace {
        create_namespace(&cluster, &namespace).await?;
    }
    for planned in &planned {
        versions::write(&cluster, planned).await?;
    }
    create(&cluster, instance, install.package.wait).await
}

/// Checks that the Kubernetes version is not lower than packages require; patch versions are
/// ignored.
async fn check_server(cluster: &Cluster, packages: &[Package]) -> anyhow::Result<()> {
    let server = cluster.client.apiserver_version().await.context("cannot reach the cluster")?;
    let server = server.git_version;
    for package in packages {
        let required = &package.operator.kubernetes_version;
        if compare_versions(&minor_version(required), &minor_version(&server)).is_gt() {
            bail!(
                "expected kubernetes version of {required} is not supported with version: {server}"
            );
        }
    }
    Ok(())
}

fn minor_version(text: &str) -> String {
    text.trim_start_matches('v').split('.').take(2).collect::<Vec<_>>().join(".")
}

/// Returns the name of the Instance to create.
fn instance_name(install: &Install, operator: &str) -> String {
    let given = install.package.instance.instance.clone();
    given.unwrap_or_else(|| format!("{operator}-instance"))
}

/// Returns the Namespace to create, from the package's namespace manifest if there is one, rendered
/// with the values and defaults of parameters.
fn namespace(
    cluster: &Cluster,
    package: &Package,
    instance: &str,
    given: &Given,
) -> anyhow::Result<Namespace> {
    let manifest = &package.operator.namespace_manifest;
    let mut namespace = if manifest.is_empty() {
        Namespace::default()
    } else {
        let text = package.templates.get(manifest);
        let text = text.with_context(|| format!("template {manifest} does not exist"))?;
        let version = convert::operator_version(package)?;
        let version = Version { spec: version.spec, ..Version::default() };
        let given = given.parameters.clone().into_iter();
        let set = given.map(|(name, value)| (name, SetValue { value, digest: String::new() }));
        let parameters = template_values(&version, &set.collect());
        let names = [
            ("Name", instance),
            ("Namespace", cluster.namespace.as_str()),
            ("OperatorName", package.operator.name.as_str()),
            ("AppVersion", package.operator.app_version.as_str()),
            ("OperatorVersion", package.operator.operator_version.as_str()),
        ];
        let names = names.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
        let data = Data { names: names.collect(), parameters, pipes: None };
        let environment =
            Environment { now: Timestamp::UNIX_EPOCH, seed: Vec::new(), limits: Limits::default() };
        let rendered = Template::parse(manifest, text)?.render(&data, &environment)?;
        serde_json::from_value(yaml::read(&rendered)?).with_context(|| manifest.clone())?
    };
    namespace.metadata.name = Some(cluster.namespace.clone());
    namespace.annotations_mut().insert("created-by".to_owned(), "kudo-cli".to_owned());
    Ok(namespace)
}

async fn create_namespace(cluster: &Cluster, namespace: &Namespace) -> anyhow::Result<()> {
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    namespaces.create(&PostParams::default(), namespace).await?;
    print_line(&format!("namespace {} created", cluster.namespace))
}

/// Returns the highest OperatorVersion in the cluster that matches the request.
async fn in_cluster(
    cluster: &Cluster,
    operator: &str,
    wanted: &Versions,
) -> anyhow::Result<OperatorVersion> {
    let found = cluster.versions().list(&ListParams::default()).await?;
    let mut found: Vec<OperatorVersion> = found
        .items
        .into_iter()
        .filter(|version| {
            version.spec.operator.name.as_deref() == Some(operator)
                && wanted.accept(&version.spec.app_version, &version.spec.version)
        })
        .collect();
    found.sort_by(|left, right| {
        compare_versions(&left.spec.app_version, &right.spec.app_version)
            .then(compare_versions(&left.spec.version, &right.spec.version))
    });
    let namespace = &cluster.namespace;
    found
        .pop()
        .with_context(|| format!("no operatorversion of {operator} in namespace {namespace}"))
}

/// Returns a valid new Instance of an OperatorVersion; `None` with `--skip-instance`.
async fn new_instance(
    cluster: &Cluster,
    version: &OperatorVersion,
    install: &Install,
    given: &Given,
) -> anyhow::Result<Option<Instance>> {
    if install.skip_instance {
        return Ok(None);
    }
    let namespace = &cluster.namespace;
    let operator = version.spec.operator.name.clone().unwrap_or_default();
    let name = instance_name(install, &operator);
    if cluster.instances().get_opt(&name).await?.is_some() {
        bail!(
            "cannot install instance '{name}' because an instance of that name already exists in \
             namespace {namespace}"
        );
    }
    let mut spec = InstanceSpec {
        operator_version: ObjectReference {
            name: Some(version.name_any()),
            ..ObjectReference::default()
        },
        service_account_name: install.service_account.clone().unwrap_or_default(),
        ..InstanceSpec::default()
    };
    given.set(&mut spec);
    let missing = missing_parameters(version, &spec);
    if !missing.is_empty() {
        bail!("missing required parameters during installation: {}", missing.join(","));
    }
    let mut instance = Instance::new(&name, spec);
    instance.labels_mut().insert(OPERATOR.to_owned(), operator);
    let checked = cluster.check(&instance, version).await;
    checked.with_context(|| format!("failed to create an Instance {namespace}/{name}"))?;
    Ok(Some(instance))
}

fn missing_parameters(version: &OperatorVersion, spec: &InstanceSpec) -> Vec<String> {
    let required = version.spec.parameters.iter().filter(|parameter| {
        parameter.required == Some(true)
            && parameter.default.is_none()
            && !is_set(&parameter.name, spec)
    });
    required.map(|parameter| parameter.name.clone()).collect()
}

fn is_set(parameter: &str, spec: &InstanceSpec) -> bool {
    spec.parameters.contains_key(parameter)
        || spec.parameters_from.iter().any(|source| source.name == parameter)
}

async fn create(
    cluster: &Cluster,
    instance: Option<Instance>,
    waiting: Wait,
) -> anyhow::Result<()> {
    let Some(instance) = instance else { return Ok(()) };
    let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    let created = cluster.instances().create(&params, &instance).await?;
    print_line(&format!("instance {}/{} created", cluster.namespace, created.name_any()))?;
    wait_until_ready(cluster, &created, Baseline::default(), waiting).await
}
