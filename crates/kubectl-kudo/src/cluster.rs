//! Connection to the cluster, and requests that several commands share.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, bail};
use instance_operator::{
    schedule, sources,
    view::{Observed, Version, version_key},
};
use k8s_openapi::{
    api::authorization::v1::{
        ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Config, ResourceExt as _,
    api::{DynamicObject, Patch, PatchParams, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use kubectl_kudo::{
    cli::{Connection, InstanceName},
    failure::Failure,
};
use podops_api::kudo::{Instance, Operator, OperatorVersion};
use serde_json::{Value, json};

/// Field manager of changes.
pub(crate) const MANAGER: &str = "kubectl-kudo";

/// HTTP status `Not Found`.
pub(crate) const NOT_FOUND: u16 = 404;

/// CustomResourceDefinitions that the commands require.
const DEFINITIONS: [&str; 3] =
    ["operators.kudo.dev", "operatorversions.kudo.dev", "instances.kudo.dev"];

/// Client and namespace of a command.
pub(crate) struct Cluster {
    pub(crate) client: Client,
    /// Timeout of single requests; `None` without a limit.
    timeout: Option<Duration>,
    /// Client configuration without a request timeout.
    patient: Config,
    pub(crate) namespace: String,
    /// URL of the API server.
    server: String,
}

impl Cluster {
    /// Connects. Checks that the cluster serves the kinds of KUDO, unless
    /// `--validate-install=false`.
    ///
    /// # Errors
    ///
    /// If the kubeconfig cannot be read, or the kinds are not served.
    pub(crate) async fn connect(connection: &Connection) -> anyhow::Result<Self> {
        let patient = connection.context.config().await?;
        let seconds = connection.request_timeout;
        let timeout = (seconds > 0).then(|| Duration::from_secs(seconds));
        let namespace = connection
            .context
            .namespace
            .clone()
            .unwrap_or_else(|| patient.default_namespace.clone());
        let server = patient.cluster_url.to_string();
        let client = Client::try_from(limited(patient.clone(), timeout))?;
        let cluster = Self { client, timeout, patient, namespace, server };
        if connection.validate_install {
            cluster.check_definitions().await?;
        }
        Ok(cluster)
    }

    async fn check_definitions(&self) -> anyhow::Result<()> {
        let definitions: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let mut faults = Vec::new();
        for name in DEFINITIONS {
            let found = definitions.get_opt(name).await;
            if let Err(kube::Error::Api(status)) = &found
                && status.is_forbidden()
            {
                // Users of one namespace may not read CRDs; a missing one fails their first request.
                return Ok(());
            }
            let found = found.with_context(|| {
                format!("cannot read the CRDs of KUDO from the cluster {}", self.server)
            });
            match found? {
                None => faults.push(format!("{name} is missing")),
                Some(found) if !is_established(&found) => {
                    faults.push(format!("{name} is not established"));
                }
                Some(_) => {}
            }
        }
        if !faults.is_empty() {
            bail!("CRDs invalid: {}; install instance-operator first", faults.join(", "));
        }
        Ok(())
    }

    pub(crate) fn operators(&self) -> Api<Operator> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) fn versions(&self) -> Api<OperatorVersion> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) fn instances(&self) -> Api<Instance> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Returns a client for watches, without the request timeout: a watched object may not change
    /// for a long time.
    ///
    /// # Errors
    ///
    /// If the client cannot be built.
    pub(crate) fn watching(&self) -> anyhow::Result<Client> {
        Ok(Client::try_from(self.patient.clone())?)
    }

    /// As [`instances`](Self::instances), for watches.
    ///
    /// # Errors
    ///
    /// If the client cannot be built.
    pub(crate) fn watched_instances(&self) -> anyhow::Result<Api<Instance>> {
        Ok(Api::namespaced(self.watching()?, &self.namespace))
    }

    /// Returns the Instance with this name.
    ///
    /// # Errors
    ///
    /// If the name is missing, or the Instance does not exist.
    pub(crate) async fn instance(&self, name: &InstanceName) -> anyhow::Result<Instance> {
        let name = instance_name(name)?;
        let found = self.instances().get_opt(name).await?;
        let namespace = &self.namespace;
        found.with_context(|| format!("instance {namespace}/{name} does not exist"))
    }

    /// Returns the OperatorVersion of an Instance, possibly from a different namespace (K36).
    ///
    /// # Errors
    ///
    /// If the OperatorVersion does not exist.
    pub(crate) async fn version_of(&self, instance: &Instance) -> anyhow::Result<OperatorVersion> {
        let key = version_key(&instance.spec, &self.namespace);
        let (namespace, name) = key.split_once('/').unwrap_or_default();
        let versions: Api<OperatorVersion> = Api::namespaced(self.client.clone(), namespace);
        let found = versions.get_opt(name).await?;
        found.with_context(|| {
            let namespace = &self.namespace;
            let instance = instance.name_any();
            format!("OperatorVersion {name} from instance {namespace}/{instance} does not exist")
        })
    }

    /// Validates an Instance as the operator does. Returns the Instance as observed by the
    /// operator.
    ///
    /// # Errors
    ///
    /// If the spec is invalid, or a value cannot be read.
    pub(crate) async fn check(
        &self,
        instance: &Instance,
        version: &OperatorVersion,
    ) -> anyhow::Result<Observed> {
        let observed = self.observe(instance, version).await?;
        schedule::check(&observed).map_err(|invalid| anyhow::anyhow!("{}", invalid.message))?;
        Ok(observed)
    }

    /// Returns an Instance as observed by the operator, with the values that `parametersFrom`
    /// refers to.
    ///
    /// # Errors
    ///
    /// If a value cannot be read.
    pub(crate) async fn observe(
        &self,
        instance: &Instance,
        version: &OperatorVersion,
    ) -> anyhow::Result<Observed> {
        let version_namespace = version.namespace().unwrap_or_else(|| self.namespace.clone());
        let mut observed = Observed {
            namespace: self.namespace.clone(),
            version: Some(Arc::new(Version::of(&version_namespace, version))),
            ..Observed::of(instance)
        };
        for source in &instance.spec.parameters_from {
            let Some(id) = sources::object_of(source, &self.namespace) else { continue };
            let kind = GroupVersionKind::gvk("", "v1", &id.object_type.kind);
            let objects: Api<DynamicObject> = Api::namespaced_with(
                self.client.clone(),
                &self.namespace,
                &ApiResource::from_gvk(&kind),
            );
            let read = objects.get_opt(&id.name).await;
            let object = read.with_context(|| format!("cannot read {id}"))?;
            let object = object.map(serde_json::to_value).transpose()?;
            let value = sources::value(source, object.as_ref());
            observed.sources.insert(source.name.clone(), value);
        }
        Ok(observed)
    }

    /// Returns a client that impersonates a ServiceAccount; `None` if the user may not impersonate
    /// the ServiceAccount.
    ///
    /// # Errors
    ///
    /// If the API server does not respond, or the client cannot be built.
    pub(crate) async fn client_as(&self, service_account: &str) -> anyhow::Result<Option<Client>> {
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    verb: Some("impersonate".to_owned()),
                    resource: Some("serviceaccounts".to_owned()),
                    namespace: Some(self.namespace.clone()),
                    name: Some(service_account.to_owned()),
                    ..ResourceAttributes::default()
                }),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let reviews: Api<SelfSubjectAccessReview> = Api::all(self.client.clone());
        let review = reviews.create(&PostParams::default(), &review).await?;
        if !review.status.is_some_and(|status| status.allowed) {
            return Ok(None);
        }
        let mut config = limited(self.patient.clone(), self.timeout);
        let user = format!("system:serviceaccount:{}:{service_account}", self.namespace);
        config.auth_info.impersonate = Some(user);
        Ok(Some(Client::try_from(config)?))
    }

    /// Applies a JSON merge patch to the spec of an Instance.
    ///
    /// # Errors
    ///
    /// If the API server rejects the patch.
    pub(crate) async fn patch(&self, name: &str, spec: Value) -> anyhow::Result<Instance> {
        let params =
            PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        let patch = Patch::Merge(json!({ "spec": spec }));
        Ok(self.instances().patch(name, &params, &patch).await?)
    }
}

/// Returns the name of the Instance from the arguments.
///
/// # Errors
///
/// [`Failure::Usage`] if the name is missing.
pub(crate) fn instance_name(name: &InstanceName) -> Result<&str, Failure> {
    name.required(r#"required flag(s) "instance" not set"#)
}

fn is_established(definition: &CustomResourceDefinition) -> bool {
    let is_served = definition.spec.versions.iter().any(|v| v.name == "v1beta1" && v.served);
    let mut conditions =
        definition.status.iter().flat_map(|status| status.conditions.iter().flatten());
    is_served && conditions.any(|found| found.type_ == "Established" && found.status == "True")
}

/// Sets the timeout of single requests.
fn limited(mut config: Config, timeout: Option<Duration>) -> Config {
    if timeout.is_some() {
        config.connect_timeout = timeout;
        config.read_timeout = timeout;
    }
    config
}
