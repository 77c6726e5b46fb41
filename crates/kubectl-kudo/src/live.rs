//! Reads and writes objects of any type, and tries writes by dry runs.

use std::collections::BTreeMap;

use anyhow::Context as _;
use instance_operator::object::{ObjectId, ObjectType, Scope};
use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, Patch, PatchParams},
    core::{ApiResource, GroupVersionKind},
    discovery::{self, Scope as ApiScope},
    error::DiscoveryError,
};
use kubectl_kudo::preview::Rejected;
use serde_json::Value;

use crate::cluster::{MANAGER, NOT_FOUND};

/// Field manager of the operator, for tried writes.
const OPERATOR: &str = "instance-operator";

/// Access to objects of any type.
pub(crate) struct Live {
    client: Client,
    /// Client for tried writes.
    writer: Client,
    types: BTreeMap<ObjectType, Option<(ApiResource, Scope)>>,
}

impl Live {
    pub(crate) fn new(client: Client) -> Self {
        Self { writer: client.clone(), client, types: BTreeMap::new() }
    }

    /// Sets the client for tried writes.
    pub(crate) fn try_as(&mut self, writer: Client) {
        self.writer = writer;
    }

    /// Returns the scope of a type; `None` if the type is not served.
    ///
    /// # Errors
    ///
    /// If discovery fails.
    pub(crate) async fn scope(
        &mut self,
        object_type: &ObjectType,
    ) -> anyhow::Result<Option<Scope>> {
        Ok(self.find(object_type).await?.map(|(_, scope)| scope))
    }

    async fn find(
        &mut self,
        object_type: &ObjectType,
    ) -> anyhow::Result<Option<(ApiResource, Scope)>> {
        if let Some(known) = self.types.get(object_type) {
            return Ok(known.clone());
        }
        let api_version = &object_type.api_version;
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let kind = GroupVersionKind::gvk(group, version, &object_type.kind);
        let found = match discovery::pinned_kind(&self.client, &kind).await {
            Ok((resource, capabilities)) => {
                let is_cluster = capabilities.scope == ApiScope::Cluster;
                Some((resource, if is_cluster { Scope::Cluster } else { Scope::Namespaced }))
            }
            Err(kube::Error::Api(status)) if status.code == NOT_FOUND => None,
            Err(kube::Error::Discovery(DiscoveryError::MissingKind(_))) => None,
            Err(error) => return Err(error).with_context(|| format!("cannot find {object_type}")),
        };
        self.types.insert(object_type.clone(), found.clone());
        Ok(found)
    }

    /// Returns the API for the type and namespace of an object; `None` if the type is not served.
    async fn api(&mut self, id: &ObjectId) -> anyhow::Result<Option<Api<DynamicObject>>> {
        let client = self.client.clone();
        self.api_with(client, id).await
    }

    /// As [`api`](Self::api), for tried writes.
    async fn api_to_try(&mut self, id: &ObjectId) -> anyhow::Result<Option<Api<DynamicObject>>> {
        let client = self.writer.clone();
        self.api_with(client, id).await
    }

    async fn api_with(
        &mut self,
        client: Client,
        id: &ObjectId,
    ) -> anyhow::Result<Option<Api<DynamicObject>>> {
        let found = self.find(&id.object_type).await?;
        Ok(found.map(|(resource, scope)| match scope {
            Scope::Namespaced => Api::namespaced_with(client, &id.namespace, &resource),
            Scope::Cluster => Api::all_with(client, &resource),
        }))
    }

    /// Reads an object; `None` if the object does not exist, or its type is not served.
    ///
    /// # Errors
    ///
    /// If the read fails.
    pub(crate) async fn read(&mut self, id: &ObjectId) -> anyhow::Result<Option<Value>> {
        let Some(api) = self.api(id).await? else { return Ok(None) };
        let read = api.get_opt(&id.name).await;
        let object = read.with_context(|| format!("cannot read {id}"))?;
        Ok(object.map(serde_json::to_value).transpose()?)
    }

    /// Changes an object by a merge patch.
    ///
    /// # Errors
    ///
    /// If the type is not served, or the API server rejects the patch.
    pub(crate) async fn merge(&mut self, id: &ObjectId, patch: &Value) -> anyhow::Result<()> {
        let api = self.api(id).await?;
        let api = api.with_context(|| format!("{} is not served", id.object_type))?;
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..Default::default() };
        let patched = api.patch(&id.name, &params, &Patch::Merge(patch)).await;
        patched.with_context(|| format!("cannot change {id}"))?;
        Ok(())
    }

    /// Applies an object, and overrides the fields of other field managers.
    ///
    /// # Errors
    ///
    /// If the type is not served, or the API server rejects the object.
    pub(crate) async fn apply(&mut self, object: &Value) -> anyhow::Result<()> {
        let id = ObjectId::of(object);
        let api = self.api(&id).await?;
        let api = api.with_context(|| format!("{} is not served", id.object_type))?;
        let params = PatchParams { force: true, ..PatchParams::apply(MANAGER) };
        let applied = api.patch(&id.name, &params, &Patch::Apply(object)).await;
        applied.map(drop).with_context(|| format!("cannot apply {id}"))
    }

    /// Deletes an object if it exists.
    ///
    /// # Errors
    ///
    /// If the API server rejects the deletion.
    pub(crate) async fn delete(&mut self, id: &ObjectId) -> anyhow::Result<()> {
        let Some(api) = self.api(id).await? else { return Ok(()) };
        match api.delete(&id.name, &DeleteParams::background()).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == NOT_FOUND => Ok(()),
            Err(error) => Err(error).with_context(|| format!("cannot delete {id}")),
        }
    }

    /// Tries to delete an object by a dry run. Returns `None` for the deleted object, or the
    /// rejection.
    ///
    /// # Errors
    ///
    /// If the API server does not respond.
    pub(crate) async fn try_delete(
        &mut self,
        id: &ObjectId,
    ) -> anyhow::Result<Result<Option<Value>, Rejected>> {
        let Some(api) = self.api_to_try(id).await? else { return Ok(Ok(None)) };
        let params = DeleteParams { dry_run: true, ..DeleteParams::background() };
        let deleted = api.delete(&id.name, &params).await.map(|_| None);
        tried(deleted, None).with_context(|| format!("cannot try to delete {id}"))
    }

    /// Tries to apply an object by a dry run. Returns the object as it would be stored, or the
    /// rejection; the passed object if its namespace or type does not exist yet.
    ///
    /// # Errors
    ///
    /// If the API server does not respond.
    pub(crate) async fn try_apply(
        &mut self,
        object: &Value,
    ) -> anyhow::Result<Result<Option<Value>, Rejected>> {
        let id = ObjectId::of(object);
        let Some(api) = self.api_to_try(&id).await? else { return Ok(Ok(Some(object.clone()))) };
        let params = PatchParams { dry_run: true, force: true, ..PatchParams::apply(OPERATOR) };
        let stored = api.patch(&id.name, &params, &Patch::Apply(object)).await;
        tried(stored.map(Some), Some(object.clone())).with_context(|| format!("cannot try {id}"))
    }
}

/// Converts the result of a dry run; `Not Found` becomes `missing`.
fn tried(
    result: kube::Result<Option<DynamicObject>>,
    missing: Option<Value>,
) -> anyhow::Result<Result<Option<Value>, Rejected>> {
    match result {
        Ok(object) => Ok(Ok(object.map(serde_json::to_value).transpose()?)),
        Err(kube::Error::Api(status)) if status.code == NOT_FOUND => Ok(Ok(missing)),
        Err(kube::Error::Api(status)) => Ok(Err(Rejected { message: status.message.clone() })),
        Err(error) => Err(error.into()),
    }
}
