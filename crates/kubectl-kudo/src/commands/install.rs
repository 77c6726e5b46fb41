//! `install`.

use anyhow::{Context as _, bail};
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
    failure::Failure,
    plans::Baseline,
    repository::Versions,
    resolve::resolve,
    source::Source,
};
use podops_api::kudo::{Instance, InstanceSpec, OperatorVersion};
use podops_packages::{
    convert,
    package::Package,
    template::{Data, Environment, Limits, Template, compare_versions},
    yaml,
};

use super::{
    given,
    versions::{self, Planned},
    wait::{Until, wait},
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
/// If the package cannot be installed, or the API server rejects an object. Everything that can be
/// checked is checked before the first write.
pub(crate) async fn install(connection: &Connection, install: Install) -> anyhow::Result<()> {
    let argument = install.package.as_deref().ok_or_else(|| {
        let message = "expecting exactly one argument - name of the package or path to install";
        Failure::Usage(message.to_owned())
    })?;
    let cluster = Cluster::connect(connection).await?;
    let wanted = Versions {
        app: install.search.app_version.clone(),
        operator: install.search.operator_version.clone(),
    };
    if install.in_cluster {
        let version = in_cluster(&cluster, argument, &wanted).await?;
        return create_instance(&cluster, &version, install).await;
    }
    let finder = Finder::new(connection, &install.search);
    let packages = resolve(&finder, &Source::parse(argument), &wanted)?;
    for package in &packages {
        check_server(&cluster, package).await?;
    }
    let namespace = match packages.last() {
        Some(package) if install.create_namespace => Some(namespace(&cluster, package, &install)?),
        Some(_) | None => None,
    };
    let mut planned: Vec<Planned> = Vec::new();
    for package in packages {
        planned.push(
            versions::plan(&cluster, package, install.existing.replace_operatorversion).await?,
        );
    }
    let version = planned.last().context("there is no package")?.version().clone();
    let instance = if install.skip_instance {
        None
    } else {
        Some(new_instance(&cluster, &version, &install).await?)
    };
    if let Some(namespace) = namespace {
        create_namespace(&cluster, &namespace).await?;
    }
    for planned in &planned {
        versions::write(&cluster, planned).await?;
    }
    match instance {
        Some(instance) => create(&cluster, &instance, install.wait).await,
        None => Ok(()),
    }
}

/// Checks that the server is not older than the package requires; patch versions do not count.
async fn check_server(cluster: &Cluster, package: &Package) -> anyhow::Result<()> {
    let server = cluster.client.apiserver_version().await.context("cannot reach the cluster")?;
    let required = &package.operator.kubernetes_version;
    let minor =
        |text: &str| text.trim_start_matches('v').split('.').take(2).collect::<Vec<_>>().join(".");
    if compare_versions(&minor(required), &minor(&server.git_version)).is_gt() {
        bail!(
            "expected kubernetes version of {required} is not supported with version: {}",
            server.git_version
        );
    }
    Ok(())
}

/// Returns the namespace to create: that of the package's manifest, if it has one, rendered with the values
/// and defaults of its parameters.
fn namespace(cluster: &Cluster, package: &Package, install: &Install) -> anyhow::Result<Namespace> {
    let manifest = &package.operator.namespace_manifest;
    let mut namespace = if manifest.is_empty() {
        Namespace::default()
    } else {
        let text = package.templates.get(manifest);
        let text = text.with_context(|| format!("template {manifest} does not exist"))?;
        let version = convert::operator_version(package)?;
        let version = Version { spec: version.spec, ..Version::default() };
        let given = given(&install.values)?.parameters.into_iter();
        let set = given.map(|(name, value)| (name, SetValue { value, digest: String::new() }));
        let parameters = template_values(&version, &set.collect());
        let names = [
            ("Name", package.operator.name.as_str()),
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

/// Returns the highest OperatorVersion in the cluster that is as requested.
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

async fn create_instance(
    cluster: &Cluster,
    version: &OperatorVersion,
    install: Install,
) -> anyhow::Result<()> {
    if install.skip_instance {
        return Ok(());
    }
    let instance = new_instance(cluster, version, &install).await?;
    create(cluster, &instance, install.wait).await
}

/// Returns the Instance of an OperatorVersion, which is valid and does not exist.
async fn new_instance(
    cluster: &Cluster,
    version: &OperatorVersion,
    install: &Install,
) -> anyhow::Result<Instance> {
    let namespace = &cluster.namespace;
    let operator = version.spec.operator.name.clone().unwrap_or_default();
    let default = || format!("{operator}-instance");
    let name = install.instance.instance.clone().unwrap_or_else(default);
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
    given(&install.values)?.set(&mut spec);
    let missing = missing_parameters(version, &spec);
    if !missing.is_empty() {
        bail!("missing required parameters during installation: {}", missing.join(","));
    }
    let mut instance = Instance::new(&name, spec);
    instance.labels_mut().insert(OPERATOR.to_owned(), operator);
    let checked = cluster.check(&instance, version).await;
    checked.with_context(|| format!("failed to create an Instance {namespace}/{name}"))?;
    Ok(instance)
}

fn missing_parameters(version: &OperatorVersion, spec: &InstanceSpec) -> Vec<String> {
    let is_set = |name: &String| {
        spec.parameters.contains_key(name)
            || spec.parameters_from.iter().any(|source| source.name == *name)
    };
    let required = version.spec.parameters.iter().filter(|parameter| {
        parameter.required == Some(true) && parameter.default.is_none() && !is_set(&parameter.name)
    });
    required.map(|parameter| parameter.name.clone()).collect()
}

async fn create(cluster: &Cluster, instance: &Instance, waiting: Wait) -> anyhow::Result<()> {
    let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    let created = cluster.instances().create(&params, instance).await?;
    let (namespace, name) = (&cluster.namespace, created.name_any());
    print_line(&format!("instance {namespace}/{name} created"))?;
    if waiting.wait {
        let baseline = Baseline::of(&created);
        wait(cluster, &name, Until::Complete(&baseline), waiting.wait_time, |_| Ok(())).await?;
        print_line(&format!("instance {namespace}/{name} ready"))?;
    }
    Ok(())
}
