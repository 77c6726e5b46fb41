//! Writes of objects, the reads that planning needs before them, and the record of completed writes
//! in the status.

use std::collections::BTreeSet;

use podops_api::kudo::{InstanceStatus, InventoryEntry};
use serde_json::Value;

use crate::{
    object::{ObjectId, ObjectType, file::ReadFile, hash, secret, text},
    values::digest,
};

/// Change of one object.
#[derive(Clone, Debug, PartialEq)]
pub enum ObjectWrite {
    /// Applies the object by server-side apply. Complete once the API server has accepted the
    /// request.
    Apply {
        /// The object.
        object: Box<Value>,
        /// Task that applies the object, for the inventory.
        task: String,
        /// Identity of the run, for the inventory.
        run: String,
        /// True if KUDO has applied the object; the fields that KUDO wrote are taken over first.
        is_takeover: bool,
    },
    /// Sets `spec.replicas` of a workload to 0. Complete once the API server has accepted the
    /// request.
    ScaleToZero {
        /// Identity of the workload.
        id: ObjectId,
        /// UID of the workload; another workload of this name is not changed.
        uid: String,
    },
    /// Deletes the object with foreground propagation. Complete once the object does not exist.
    Delete {
        /// Identity of the object.
        id: ObjectId,
        /// UID of the object; another object of this name is not deleted.
        uid: String,
    },
}

impl ObjectWrite {
    /// Identity of the object.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        match self {
            Self::Apply { object, .. } => ObjectId::of(object),
            Self::ScaleToZero { id, .. } | Self::Delete { id, .. } => id.clone(),
        }
    }

    /// Name of the task that applies the object; `None` for other writes.
    #[must_use]
    pub fn task(&self) -> Option<&str> {
        match self {
            Self::Apply { task, .. } => Some(task),
            Self::ScaleToZero { .. } | Self::Delete { .. } => None,
        }
    }
}

/// Reads that planning needs before it can continue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Types to discover.
    pub types: BTreeSet<ObjectType>,
    /// Objects to read completely.
    pub objects: BTreeSet<ObjectId>,
    /// Objects whose metadata suffice.
    pub metadata: BTreeSet<ObjectId>,
    /// Files of Pods.
    pub files: BTreeSet<ReadFile>,
}

impl Needs {
    /// Returns whether no read is needed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.types.is_empty()
            && self.objects.is_empty()
            && self.metadata.is_empty()
            && self.files.is_empty()
    }
}

/// Digest of an applied object, without the annotations of the run and the values of a Secret.
#[must_use]
pub fn applied_digest(object: &Value) -> String {
    let mut counted = object.clone();
    if secret::is_secret(object) {
        secret::remove_values(&mut counted);
    }
    let annotations = counted.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
    if let Some(annotations) = annotations {
        annotations.retain(|key, _| !crate::object::enhance::OF_RUN.contains(&key.as_str()));
    }
    digest(&counted.to_string())
}

/// Returns the inventory entry of an object; `None` if the Instance has not applied the object.
#[must_use]
pub fn entry<'a>(inventory: &'a [InventoryEntry], id: &ObjectId) -> Option<&'a InventoryEntry> {
    inventory.iter().find(|entry| is_of(entry, id))
}

/// Returns the identity of the object of an entry.
#[must_use]
pub fn id_of(entry: &InventoryEntry) -> ObjectId {
    ObjectId {
        object_type: ObjectType {
            api_version: entry.api_version.clone(),
            kind: entry.kind.clone(),
        },
        namespace: entry.namespace.clone(),
        name: entry.name.clone(),
    }
}

/// Returns the entry of an object that is not applied yet: only its identity.
#[must_use]
pub fn entry_of(id: &ObjectId) -> InventoryEntry {
    InventoryEntry {
        api_version: id.object_type.api_version.clone(),
        kind: id.object_type.kind.clone(),
        namespace: id.namespace.clone(),
        name: id.name.clone(),
        ..InventoryEntry::default()
    }
}

fn is_of(entry: &InventoryEntry, id: &ObjectId) -> bool {
    entry.name == id.name
        && entry.namespace == id.namespace
        && entry.kind == id.object_type.kind
        && entry.api_version == id.object_type.api_version
}

/// Records a completed write in the inventory. `response` is the object that the API server
/// returned; `None` if the object no longer exists.
pub fn record(status: &mut InstanceStatus, write: &ObjectWrite, response: Option<&Value>) {
    let id = write.id();
    match write {
        ObjectWrite::Apply { object, task, run, .. } => {
            // That of a Secret is an annotation of the Secret.
            let is_recorded = hash::is_dependency(object) && !secret::is_secret(object);
            let content = is_recorded.then(|| hash::content(object).unwrap_or(hash::NO_CONTENT));
            let entry = InventoryEntry {
                task: task.clone(),
                uid: response
                    .map(|live| text(live, "/metadata/uid"))
                    .unwrap_or_default()
                    .to_owned(),
                hash: content.map(hex::encode).unwrap_or_default(),
                applied: applied_digest(object),
                run: run.clone(),
                ..entry_of(&id)
            };
            match status.inventory.iter_mut().find(|known| is_of(known, &id)) {
                Some(known) => *known = entry,
                None => status.inventory.push(entry),
            }
        }
        ObjectWrite::ScaleToZero { .. } => {}
        ObjectWrite::Delete { .. } => {
            if response.is_none() {
                status.inventory.retain(|entry| !is_of(entry, &id));
            }
        }
    }
}
