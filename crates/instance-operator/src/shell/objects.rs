//! Reads, applies and deletes the objects of packages, whose types are known only at run time.

use std::collections::{BTreeMap, BTreeSet};

use http::{HeaderValue, Method, Request, header};
use kube::{Client, core::Status};
use podops_client::error::Chain;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    NAME,
    own_rights::OwnRights,
    types::{NOT_FOUND, REQUEST_TIMEOUT, ServedType, Types},
};
use crate::object::{ObjectId, ObjectType, Scope, field_managers::taken_from_kudo, map_at, text};

/// Maximum number of objects in a list of metadata, which bounds its memory.
const LIST_LIMIT: usize = 500;

/// HTTP status Conflict.
const CONFLICT: u16 = 409;
/// Parts of the API server's messages about a resourceVersion or UID that does not match.
const OUTDATED: [&str; 3] = ["the object has been modified", "recondition failed", "uid mismatch"];
/// resourceVersion that no object has: an apply with this version only creates objects.
const NO_VERSION: &str = "1";
/// Cause of a conflict about a field of another manager.
const FIELD_CONFLICT: &str = "FieldManagerConflict";

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const JSON_PATCH: HeaderValue = HeaderValue::from_static("application/json-patch+json");
const APPLY: HeaderValue = HeaderValue::from_static("application/apply-patch+yaml");
const METADATA: HeaderValue =
    HeaderValue::from_static("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1");
const METADATA_LIST: HeaderValue =
    HeaderValue::from_static("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1");

/// Identity of one version of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReadVersion {
    pub(super) uid: String,
    pub(super) resource_version: String,
}

/// Reason why an object was not read or written.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The API server rejected the request, or did not respond.
    #[error(transparent)]
    Kube(#[from] kube::Error),
    /// The request cannot be built, for example because a name is not valid in a URL.
    #[error("invalid request")]
    Request(#[from] http::Error),
    /// The response is not an object.
    #[error("the API server's response cannot be decoded")]
    Response(#[from] serde_json::Error),
    /// The type is not served.
    #[error("{0} is not served")]
    NotServed(ObjectType),
    /// The name is not a valid object name.
    #[error("{0:?} is no valid name")]
    Name(String),
    /// A task without ServiceAccount would read a Namespace.
    #[error("to read a Namespace, the Instance needs spec.serviceAccountName")]
    ServiceAccountNeeded,
    /// The request timed out.
    #[error("request timed out after {}s", REQUEST_TIMEOUT.as_secs())]
    Timeout,
}

impl Error {
    /// Returns the API server's message, or the error, for a status.
    pub(super) fn message(&self) -> String {
        match self {
            Self::Kube(error) => response_of(error),
            Self::Request(_)
            | Self::Response(_)
            | Self::NotServed(_)
            | Self::Name(_)
            | Self::ServiceAccountNeeded
            | Self::Timeout => Chain(self).to_string(),
        }
    }

    /// Returns whether the object has changed since it was read.
    pub(super) fn is_outdated(&self) -> bool {
        // An admission webhook may deny every attempt with the same code.
        matches!(self, Self::Kube(kube::Error::Api(status))
            if status.code == CONFLICT && OUTDATED.iter().any(|part| status.message.contains(part)))
    }

    fn is_not_found(&self) -> bool {
        matches!(self, Self::Kube(kube::Error::Api(status)) if status.code == NOT_FOUND)
    }
}

/// Returns the API server's message, or the error if there is no response.
pub(super) fn response_of(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return status.message.clone();
    }
    Chain(error).to_string()
}

/// Result of applying an object.
pub(super) struct Applied {
    /// The object that the API server returned.
    pub(super) object: Value,
    /// The API server's message about fields that were taken over from other managers; `None`
    /// without such fields.
    pub(super) taken: Option<String>,
}

/// Returns whether a conflict is about fields of other managers.
fn is_of_fields(status: &Status) -> bool {
    let details = status.details.as_ref();
    details.is_some_and(|details| details.causes.iter().any(|cause| cause.reason == FIELD_CONFLICT))
}

/// List of metadata. Unneeded fields are skipped while decoding, because a list may have many
/// objects.
#[derive(Deserialize)]
struct List {
    metadata: ListMetadata,
    /// The API server encodes an empty list of metadata as null.
    items: Option<Vec<Item>>,
}

#[derive(Deserialize)]
struct ListMetadata {
    #[serde(default)]
    r#continue: String,
}

#[derive(Deserialize, Serialize)]
struct Item {
    metadata: ItemMetadata,
}

/// Metadata that identify an object and its owner.
#[derive(Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
struct ItemMetadata {
    name: String,
    uid: String,
    resource_version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    deletion_timestamp: Option<String>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    owner_references: Vec<Value>,
}

/// Metadata of the objects of one type and namespace.
pub(super) struct Listed {
    /// Objects with metadata only.
    pub(super) objects: BTreeMap<ObjectId, Value>,
    /// True if the list was not truncated.
    pub(super) is_complete: bool,
}

/// Reads and writes objects of any type, with the rights of one client.
pub(super) struct Objects<'a> {
    pub(super) client: Client,
    pub(super) types: &'a Types,
    /// Checks of the operator's rights; `None` if the client has those of the Instance's
    /// ServiceAccount.
    pub(super) own_rights: Option<&'a OwnRights>,
}

/// One request.
struct Call {
    method: Method,
    path: String,
    accept: HeaderValue,
    content: HeaderValue,
    body: Option<Value>,
}

impl Call {
    fn get(path: String, accept: HeaderValue) -> Self {
        Self { method: Method::GET, path, accept, content: JSON, body: None }
    }
}

impl Objects<'_> {
    /// Reads an object; `None` if the object does not exist or its type is not served.
    ///
    /// # Errors
    ///
    /// If a request fails.
    pub(super) async fn read(&self, id: &ObjectId) -> Result<Option<Value>, Error> {
        self.get(id, JSON).await
    }

    /// Like [`read`](Self::read), for the metadata only.
    ///
    /// # Errors
    ///
    /// If a request fails.
    pub(super) async fn read_metadata(&self, id: &ObjectId) -> Result<Option<Value>, Error> {
        self.get(id, METADATA).await
    }

    async fn get(&self, id: &ObjectId, accept: HeaderValue) -> Result<Option<Value>, Error> {
        self.check_own_rights(&id.object_type, Some(&id.name)).await?;
        let Some(served) = self.types.find(&id.object_type).await? else { return Ok(None) };
        found(self.send(Call::get(path(id, &served)?, accept)).await)
    }

    /// Checks that the rights of the operator may be used to read an object, or all objects of a type.
    async fn check_own_rights(
        &self,
        object_type: &ObjectType,
        name: Option<&str>,
    ) -> Result<(), Error> {
        let Some(own) = self.own_rights.filter(|_| object_type.is("", "Namespace")) else {
            return Ok(());
        };
        if own.may_read_namespace(name).await? { Ok(()) } else { Err(Error::ServiceAccountNeeded) }
    }

    /// Lists the metadata of at most [`LIST_LIMIT`] objects of a type in a namespace, and returns
    /// those with these names.
    ///
    /// # Errors
    ///
    /// If a request fails.
    pub(super) async fn list(
        &self,
        object_type: &ObjectType,
        namespace: &str,
        names: &BTreeSet<&str>,
    ) -> Result<Listed, Error> {
        self.check_own_rights(object_type, None).await?;
        let served = self.types.find(object_type).await?;
        let served = served.ok_or_else(|| Error::NotServed(object_type.clone()))?;
        let path = format!("{}?limit={LIST_LIMIT}", collection(namespace, &served));
        let list: List =
            serde_json::from_str(&self.request(Call::get(path, METADATA_LIST)).await?)?;
        let wanted =
            list.items.into_iter().flatten().filter(|item| names.contains(&*item.metadata.name));
        let mut objects = BTreeMap::new();
        for item in wanted {
            let id = ObjectId {
                object_type: object_type.clone(),
                namespace: namespace.to_owned(),
                name: item.metadata.name.clone(),
            };
            objects.insert(id, serde_json::to_value(item)?);
        }
        Ok(Listed { objects, is_complete: list.metadata.r#continue.is_empty() })
    }

    /// Applies an object by server-side apply, if it has not changed since it was read. Fields of
    /// other managers are taken over, and returned as a message.
    ///
    /// # Errors
    ///
    /// If the request fails, or the API server rejects the object.
    pub(super) async fn apply(
        &self,
        object: &Value,
        read: Option<&ReadVersion>,
    ) -> Result<Applied, Error> {
        let mut object = object.clone();
        if let Some(metadata) = map_at(&mut object, &["metadata"]) {
            let version = read.map_or(NO_VERSION, |read| &read.resource_version);
            metadata.insert("resourceVersion".to_owned(), json!(version));
            // Without a UID, an object deleted in the meantime would be created again.
            if let Some(read) = read {
                metadata.insert("uid".to_owned(), json!(read.uid));
            }
        }
        match self.apply_as(&object, NAME).await {
            Err(Error::Kube(kube::Error::Api(status)))
                if status.code == CONFLICT && is_of_fields(&status) =>
            {
                let taken = Some(status.message.clone());
                let object = self.apply_as(&object, &format!("{NAME}&force=true")).await?;
                Ok(Applied { object, taken })
            }
            applied => Ok(Applied { object: applied?, taken: None }),
        }
    }

    /// Takes over the fields that KUDO wrote, unless the object's resourceVersion differs from
    /// `version`. Returns the resulting resourceVersion.
    ///
    /// # Errors
    ///
    /// If a request fails, or the API server rejects the change.
    pub(super) async fn take_fields_from_kudo(
        &self,
        id: &ObjectId,
        version: String,
    ) -> Result<String, Error> {
        let path = self.known_path(id)?;
        let found = self.request(Call::get(path.clone(), METADATA)).await?;
        let Some(managed_fields) = taken_from_kudo(&serde_json::from_str(&found)?, NAME) else {
            return Ok(version);
        };
        let changes = json!([
            { "op": "replace", "path": "/metadata/managedFields", "value": managed_fields },
            { "op": "replace", "path": "/metadata/resourceVersion", "value": version },
        ]);
        let method = Method::PATCH;
        let body = Some(changes);
        let call = Call { method, path, accept: METADATA, content: JSON_PATCH, body };
        Ok(text(&self.send(call).await?, "/metadata/resourceVersion").to_owned())
    }

    /// Sets `spec.replicas` of the workload with this UID to 0. The field has a separate manager,
    /// so that the other fields of the workload keep theirs.
    ///
    /// # Errors
    ///
    /// If the request fails, or the API server rejects it.
    pub(super) async fn scale_to_zero(
        &self,
        id: &ObjectId,
        uid: &str,
        version: Option<&str>,
    ) -> Result<Value, Error> {
        let ObjectType { api_version, kind } = &id.object_type;
        let object = json!({
            "apiVersion": api_version, "kind": kind,
            "metadata": {
                "namespace": id.namespace, "name": id.name, "uid": uid, "resourceVersion": version,
            },
            "spec": { "replicas": 0 },
        });
        self.apply_as(&object, &format!("{NAME}-scale&force=true")).await
    }

    /// Applies an object with this field manager, and further parameters of the request.
    async fn apply_as(&self, object: &Value, manager: &str) -> Result<Value, Error> {
        let id = ObjectId::of(object);
        let path = format!("{}?fieldManager={manager}", self.known_path(&id)?);
        let body = Some(object.clone());
        let call = Call { method: Method::PATCH, path, accept: JSON, content: APPLY, body };
        let applied = self.send(call).await;
        if applied.as_ref().is_err_and(Error::is_not_found) {
            // The namespace does not exist, or the type is no longer served.
            self.types.forget(&id.object_type.api_version);
        }
        applied
    }

    /// Deletes the object with this UID, and this resourceVersion if known, by foreground
    /// propagation. Returns the object while it exists.
    ///
    /// # Errors
    ///
    /// If the request fails, or the API server rejects it.
    pub(super) async fn delete(
        &self,
        id: &ObjectId,
        uid: &str,
        version: Option<&str>,
    ) -> Result<Option<Value>, Error> {
        let options = json!({
            "apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground",
            "preconditions": { "uid": uid, "resourceVersion": version },
        });
        let path = self.known_path(id)?;
        let method = Method::DELETE;
        let call = Call { method, path, accept: JSON, content: JSON, body: Some(options) };
        let deleted = found(self.send(call).await)?;
        // Once the object no longer exists, the response may be a Status.
        Ok(deleted.filter(|object| text(object, "/kind") != "Status"))
    }

    /// Path of an object whose type was discovered.
    fn known_path(&self, id: &ObjectId) -> Result<String, Error> {
        let served = self.types.known(&id.object_type);
        let served = served.ok_or_else(|| Error::NotServed(id.object_type.clone()))?;
        path(id, &served)
    }

    async fn send(&self, call: Call) -> Result<Value, Error> {
        let mut object = serde_json::from_str(&self.request(call).await?)?;
        trim(&mut object);
        Ok(object)
    }

    async fn request(&self, call: Call) -> Result<String, Error> {
        let request = Request::builder().method(call.method).uri(call.path);
        let request = request.header(header::CONTENT_TYPE, call.content);
        let request = request.header(header::ACCEPT, call.accept);
        let body = call.body.as_ref().map(Value::to_string).unwrap_or_default();
        let response = self.client.request_text(request.body(body.into_bytes())?);
        Ok(timeout(REQUEST_TIMEOUT, response).await.map_err(|_| Error::Timeout)??)
    }
}

/// Removes unneeded fields.
fn trim(object: &mut Value) {
    if let Some(metadata) = map_at(object, &["metadata"]) {
        metadata.remove("managedFields");
    }
}

fn found(response: Result<Value, Error>) -> Result<Option<Value>, Error> {
    match response {
        Err(error) if error.is_not_found() => Ok(None),
        response => response.map(Some),
    }
}

/// Path of the objects of a type, with the namespace if the type is namespaced.
fn collection(namespace: &str, served: &ServedType) -> String {
    let api = &served.resource.api_version;
    let prefix = if api.contains('/') { "apis" } else { "api" };
    let plural = &served.resource.plural;
    match served.scope {
        Scope::Namespaced => format!("/{prefix}/{api}/namespaces/{namespace}/{plural}"),
        Scope::Cluster => format!("/{prefix}/{api}/{plural}"),
    }
}

/// Path of an object. The name comes from a template, and must not lead to another path.
fn path(id: &ObjectId, served: &ServedType) -> Result<String, Error> {
    let is_segment =
        !id.name.contains(['/', '%', '?', '#']) && !matches!(&*id.name, "" | "." | "..");
    if !is_segment {
        return Err(Error::Name(id.name.clone()));
    }
    Ok(format!("{}/{}", collection(&id.namespace, served), id.name))
}

#[cfg(test)]
mod tests {
    use kube::core::ApiResource;

    use super::*;

    fn served(group: &str, scope: Scope) -> ServedType {
        let api_version = if group.is_empty() { "v1".to_owned() } else { format!("{group}/v1") };
        let resource = ApiResource {
            group: group.to_owned(),
            version: "v1".to_owned(),
            api_version,
            kind: "Thing".to_owned(),
            plural: "things".to_owned(),
        };
        ServedType { resource, scope }
    }

    fn path_of(name: &str, served: &ServedType) -> Result<String, Error> {
        let namespace = "ns".to_owned();
        let name = name.to_owned();
        path(&ObjectId { namespace, name, ..ObjectId::default() }, served)
    }

    #[test]
    fn paths_are_those_of_group_and_scope() {
        let paths = [
            path_of("a", &served("", Scope::Namespaced)),
            path_of("system:a", &served("g", Scope::Cluster)),
        ];
        let paths = paths.map(Result::unwrap);
        assert_eq!(paths, ["/api/v1/namespaces/ns/things/a", "/apis/g/v1/things/system:a"]);
    }

    #[test]
    fn a_name_leads_to_no_other_path() {
        let served = served("", Scope::Namespaced);
        for name in ["", ".", "..", "../secrets/a", "a/exec", "a?force=true", "a#b", "%2e%2e"] {
            assert!(matches!(path_of(name, &served), Err(Error::Name(_))), "{name}");
        }
    }
}
