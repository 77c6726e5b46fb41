//! Installation of manifests, webhooks and namespaces in a test cluster.
use std::{cell::Cell, collections::BTreeMap, path::Path};

use anyhow::Context as _;
use k8s_openapi::api::{
    admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    core::v1::ServiceAccount,
};
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use podops_api::well_known;
use serde_json::{Value, json};

use super::{INSTANCE_OPERATOR, TIMEOUT, TestCluster, eventually, operators::WITH_WEBHOOKS, root};
use crate::control_plane::free_ports;

impl TestCluster {
    /// Installs the CRDs and the operators with graceful deletion into an empty cluster, and starts
    /// them.
    ///
    /// # Errors
    ///
    /// If a component does not start.
    pub async fn with_graceful_deletion(mut self) -> anyhow::Result<Self> {
        self.install_crds().await?;
        self.install_with_webhooks("deploy/overlays/graceful-deletion").await?;
        let opt_in = format!("{}=true", well_known::GRACEFUL_EVICTION);
        self.plane.kubectl(&["label", "namespace", &self.namespace, &opt_in]).await?;
        self.start_operators().await?;
        self.wait_for_admission().await?;
        self.wait_for_readiness_gates().await?;
        Ok(self)
    }

    /// Waits until the API server steadily adds the readiness gate to new Pods: while it loads its
    /// admission policies, it may skip them once more.
    pub(super) async fn wait_for_readiness_gates(&self) -> anyhow::Result<()> {
        let pod = json!({
            "metadata": { "name": "dry", "labels": { well_known::CONTROL: "true" } },
            "spec": { "containers": [{ "name": "web", "image": "nginx:1" }] },
        });
        let pod = serde_json::from_value(pod)?;
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        let successes = Cell::new(0);
        let gated = async || {
            let spec = self.pods().create(&dry, &pod).await?.spec.unwrap_or_default();
            let mut gates = spec.readiness_gates.iter().flatten();
            let is_gated = gates.any(|gate| gate.condition_type == well_known::SERVICE_READY);
            successes.set(if is_gated { successes.get() + 1 } else { 0 });
            Ok(successes.get() >= 10)
        };
        eventually(TIMEOUT, gated).await.context("waiting for readiness gates on new Pods")
    }

    /// Installs an overlay, and points its webhooks at local addresses instead of Services.
    ///
    /// # Errors
    ///
    /// If the overlay is rejected.
    pub async fn install_with_webhooks(&mut self, overlay: &str) -> anyhow::Result<()> {
        self.install(overlay).await?;
        self.use_local_webhooks().await
    }

    /// Points the installed webhooks at local addresses instead of Services.
    ///
    /// # Errors
    ///
    /// If the API server rejects that.
    pub async fn use_local_webhooks(&mut self) -> anyhow::Result<()> {
        let ports: [u16; WITH_WEBHOOKS.len()] = free_ports()?;
        let ports: BTreeMap<&str, u16> = WITH_WEBHOOKS.into_iter().zip(ports).collect();
        for configurations in self.webhook_configurations() {
            for configuration in configurations.list(&ListParams::default()).await?.items {
                let name = configuration.name_any();
                let operator = name.strip_prefix("podops-").unwrap_or_default();
                let Some((operator, port)) = ports.get_key_value(operator) else { continue };
                self.webhook_ports.insert(operator, *port);
                let url = json!(format!("https://127.0.0.1:{port}"));
                let use_local_url = |n: usize| {
                    let client = format!("/webhooks/{n}/clientConfig");
                    let remove = json!({ "op": "remove", "path": format!("{client}/service") });
                    [remove, json!({ "op": "add", "path": format!("{client}/url"), "value": url })]
                };
                let count = webhooks(&configuration).len();
                let patch: Vec<Value> = (0..count).flat_map(use_local_url).collect();
                let patch = Patch::Json::<()>(serde_json::from_value(json!(patch))?);
                configurations.patch(&name, &PatchParams::default(), &patch).await?;
            }
        }
        Ok(())
    }

    pub(super) fn webhook_configurations(&self) -> [Api<DynamicObject>; 2] {
        let kinds = [
            ApiResource::erase::<ValidatingWebhookConfiguration>(&()),
            ApiResource::erase::<MutatingWebhookConfiguration>(&()),
        ];
        kinds.map(|kind| Api::all_with(self.plane.admin.clone(), &kind))
    }

    /// URL of the webhook for evictions, with its path token, and its CA bundle.
    ///
    /// # Errors
    ///
    /// If the webhook is not configured.
    pub async fn eviction_webhook(&self) -> anyhow::Result<(http::Uri, Vec<u8>)> {
        let hooks: Api<ValidatingWebhookConfiguration> = Api::all(self.plane.admin.clone());
        let hooks = hooks.get("podops-lifecycle-operator").await?.webhooks.unwrap_or_default();
        let client = &hooks.get(1).context("no webhook for evictions")?.client_config;
        let url = client.url.as_deref().context("webhook without a URL")?;
        let bundle = client.ca_bundle.clone().context("webhook without a CA bundle")?;
        Ok((url.parse()?, bundle.0))
    }

    /// Waits until every webhook configuration has a CA bundle.
    ///
    /// # Errors
    ///
    /// If the wait times out.
    pub async fn wait_for_admission(&self) -> anyhow::Result<()> {
        let configured = async || {
            for configurations in self.webhook_configurations() {
                for configuration in configurations.list(&ListParams::default()).await?.items {
                    let has_ca = |hook: &Value| hook["clientConfig"]["caBundle"].is_string();
                    if !webhooks(&configuration).iter().all(has_ca) {
                        return Ok(false);
                    }
                }
            }
            Ok(true)
        };
        eventually(TIMEOUT, configured).await.context("waiting for the webhooks' CA bundles")
    }

    /// Adds [`INSTANCE_OPERATOR`] as the leader.
    ///
    /// # Errors
    ///
    /// If it does not start.
    pub async fn add_instance_operator(&mut self) -> anyhow::Result<()> {
        self.install_definitions("crds/kudo").await?;
        self.install("deploy/overlays/packages").await?;
        self.start_operator(INSTANCE_OPERATOR).await?;
        self.wait_for_leader(INSTANCE_OPERATOR).await
    }

    /// Adds the component `package-admin` to the overlay of packages: Instances without a
    /// ServiceAccount may write everything.
    ///
    /// # Errors
    ///
    /// If kubectl fails.
    pub async fn add_package_admin(&self) -> anyhow::Result<()> {
        self.install_with_component("packages", "package-admin").await
    }

    /// Applies an overlay with a component, as an overlay of a user's own does.
    ///
    /// # Errors
    ///
    /// If kubectl fails.
    pub async fn install_with_component(
        &self,
        overlay: &str,
        component: &str,
    ) -> anyhow::Result<()> {
        let own = tempfile::tempdir_in(self.plane.dir.path())?;
        // kustomize finds folders by relative paths only.
        let to_root = "../".repeat(own.path().canonicalize()?.components().count() - 1);
        let deploy = root().join("deploy").canonicalize()?;
        let deploy = format!("{to_root}{}", deploy.strip_prefix("/")?.display());
        let kustomization = serde_json::json!({
            "resources": [format!("{deploy}/overlays/{overlay}")],
            "components": [format!("{deploy}/components/{component}")],
        });
        std::fs::write(own.path().join("kustomization.yaml"), kustomization.to_string())?;
        self.apply_kustomization(own.path()).await
    }

    /// Creates a ServiceAccount of the default namespace, which may read and write these resources
    /// there, and a Role of its name.
    ///
    /// # Errors
    ///
    /// If kubectl fails.
    pub async fn create_writer(&self, name: &str, resources: &str) -> anyhow::Result<()> {
        let verbs = "--verb=get,list,watch,create,patch,delete";
        let resources = format!("--resource={resources}");
        let role = format!("--role={name}");
        let account = format!("--serviceaccount=default:{name}");
        let commands: [&[&str]; 3] = [
            &["create", "serviceaccount", name],
            &["create", "role", name, verbs, &resources],
            &["create", "rolebinding", name, &role, &account],
        ];
        for command in commands {
            self.plane.kubectl(command).await?;
        }
        Ok(())
    }

    /// Creates a namespace, in which Pods can be created at once.
    ///
    /// # Errors
    ///
    /// If the API server rejects it, or no ServiceAccount is created in it in time.
    pub async fn create_namespace(&self, name: &str) -> anyhow::Result<()> {
        self.plane.kubectl(&["create", "namespace", name]).await?;
        self.wait_for_namespace(name).await
    }

    /// Waits for the default ServiceAccount, because Pods are rejected without it.
    pub(super) async fn wait_for_namespace(&self, name: &str) -> anyhow::Result<()> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.plane.admin.clone(), name);
        let exists = async || Ok(accounts.get_opt("default").await?.is_some());
        let waited = eventually(TIMEOUT, exists).await;
        waited.with_context(|| format!("waiting for the default ServiceAccount of {name}"))
    }

    /// Applies the CRDs and waits until they are established.
    ///
    /// # Errors
    ///
    /// If the CRDs are rejected or not established in time.
    pub async fn install_crds(&self) -> anyhow::Result<()> {
        self.install_definitions("crds").await
    }

    pub(super) async fn install_definitions(&self, kustomization: &str) -> anyhow::Result<()> {
        self.install(kustomization).await?;
        let established = ["wait", "--for=condition=Established", "crd", "--all", "--timeout=30s"];
        self.plane.kubectl(&established).await.map(drop)
    }

    /// Applies a kustomization; the path is relative to the repository root.
    ///
    /// # Errors
    ///
    /// If kubectl fails.
    pub async fn install(&self, kustomization: &str) -> anyhow::Result<()> {
        self.apply_kustomization(&root().join(kustomization)).await
    }

    pub(super) async fn apply_kustomization(&self, folder: &Path) -> anyhow::Result<()> {
        let folder = folder.display().to_string();
        let apply = ["apply", "--server-side", "--force-conflicts", "-k", &folder];
        self.plane.kubectl(&apply).await.map(drop)
    }
}

/// Webhooks of a webhook configuration.
fn webhooks(configuration: &DynamicObject) -> &[Value] {
    configuration.data["webhooks"].as_array().map_or(&[], Vec::as_slice)
}
