//! Input of planning: one Instance, its OperatorVersion, and the objects that its plans concern.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use podops_api::{
    ids::{ResourceVersion, Uid},
    kudo::{
        Instance, InstanceSpec, InstanceStatus, OperatorVersion, OperatorVersionSpec, Parameter,
        Task,
    },
};
use serde_json::Value;

use crate::object::{
    ObjectId, ObjectType, Scope, annotation,
    enhance::GENERATION,
    file::{FileRead, ReadFile},
};

/// Finalizer of Instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finalizer {
    /// The OperatorVersion has the plan `cleanup`.
    Cleanup,
    /// The Instance applies cluster-scoped objects, which no owner reference deletes.
    ClusterObjects,
}

impl Finalizer {
    /// Name in the metadata.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cleanup => "kudo.dev.instance.cleanup",
            Self::ClusterObjects => "kudo.dev/cluster-objects",
        }
    }
}

/// OperatorVersions that exist, by `<namespace>/<name>`.
pub type Dependencies = BTreeMap<String, Arc<Version>>;

/// Observed state of one Instance.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// Namespace of the Instance.
    pub namespace: String,
    /// Name of the Instance.
    pub name: String,
    /// UID of the Instance.
    pub uid: Uid,
    /// Observed resourceVersion.
    pub resource_version: ResourceVersion,
    /// `metadata.generation`.
    pub generation: i64,
    /// True if the Instance has a deletion timestamp.
    pub deleting: bool,
    /// Time at which the deletion was requested, if it is known.
    pub deleted_at: Option<Timestamp>,
    /// Whether its namespace is being deleted; known only while the plan `cleanup` fails.
    pub is_namespace_deleted: bool,
    /// Finalizers of the Instance.
    pub finalizers: Vec<String>,
    /// Desired state.
    pub spec: InstanceSpec,
    /// Last status: the stored one, or a later one that is not written yet.
    pub status: InstanceStatus,
    /// Stored status.
    pub stored: InstanceStatus,
    /// OperatorVersion that the spec names; `None` if it does not exist.
    pub version: Option<Arc<Version>>,
    /// Earlier content of the OperatorVersion, with which the current run began, if it is known.
    pub version_of_run: Option<Arc<Version>>,
    /// OperatorVersions that the OperatorVersion depends on, directly or not.
    pub dependencies: Dependencies,
    /// Cluster-scoped objects that other Instances have applied, which are not being deleted.
    pub applied_by_others: BTreeSet<ObjectId>,
    /// Values of `parametersFrom`, by parameter.
    pub sources: BTreeMap<String, SourceValue>,
    /// Types that were discovered: their scope, or `None` if they are not served.
    pub types: BTreeMap<ObjectType, Option<Scope>>,
    /// Objects that were read: `None` if there is none of this identity.
    pub objects: BTreeMap<ObjectId, Option<Arc<Value>>>,
    /// Metadata of objects of which no more was read: `None` if there is none of this identity.
    pub metadata: BTreeMap<ObjectId, Option<Arc<Value>>>,
    /// Files that were read.
    pub files: BTreeMap<ReadFile, FileRead>,
    /// What is not healthy among the workloads and Pods of the Instance, sorted; `None` if it is not
    /// known, or does not count because a plan runs.
    pub problems: Option<Vec<String>>,
    /// Why the last read or write of an object, or the discovery of its type, failed in this attempt.
    pub failures: BTreeMap<ObjectId, String>,
}

/// OperatorVersion, as planning needs it.
#[derive(Clone, Debug, Default)]
pub struct Version {
    /// Namespace of the OperatorVersion.
    pub namespace: String,
    /// UID and generation: another one is another content.
    pub identity: String,
    /// Content.
    pub spec: OperatorVersionSpec,
}

/// Value that `parametersFrom` refers to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceValue {
    /// The value; `None` if the object or the key does not exist.
    pub value: Option<String>,
    /// UID and resourceVersion of the object: another one counts as another value. Empty if the object
    /// does not exist.
    pub version: String,
    /// Why the object could not be read; it is not known then whether there is a value.
    pub error: Option<String>,
}

impl Observed {
    /// Returns what an Instance itself shows.
    #[must_use]
    pub fn of(instance: &Instance) -> Self {
        let metadata = &instance.metadata;
        Self {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default().into(),
            resource_version: metadata.resource_version.clone().unwrap_or_default().into(),
            generation: metadata.generation.unwrap_or_default(),
            deleting: metadata.deletion_timestamp.is_some(),
            deleted_at: metadata.deletion_timestamp.as_ref().map(|time| time.0),
            finalizers: metadata.finalizers.clone().unwrap_or_default(),
            spec: instance.spec.clone(),
            status: instance.status.clone().unwrap_or_default(),
            stored: instance.status.clone().unwrap_or_default(),
            ..Self::default()
        }
    }

    /// Returns what is known of an object's metadata, whether or not more of it was read: `None` if it was not
    /// read, `Some(None)` if it does not exist.
    #[must_use]
    pub fn metadata_of(&self, id: &ObjectId) -> Option<&Option<Arc<Value>>> {
        self.objects.get(id).or_else(|| self.metadata.get(id))
    }

    /// Returns whether the Instance has a finalizer.
    #[must_use]
    pub fn has(&self, finalizer: Finalizer) -> bool {
        self.finalizers.iter().any(|known| known == finalizer.as_str())
    }

    /// Returns whether an object was changed for a later generation of the Instance than the observed one:
    /// another operator was leader meanwhile, and what this one would write is outdated.
    #[must_use]
    pub fn lags_behind(&self, object: &Value) -> bool {
        let recorded = annotation(object, GENERATION).and_then(|value| value.split_once('/'));
        recorded.is_some_and(|(uid, generation)| {
            let generation = generation.parse().unwrap_or(i64::MIN);
            uid == self.uid.as_str() && generation > self.generation
        })
    }

    /// OperatorVersion that the spec names, as `<namespace>/<name>`.
    #[must_use]
    pub fn version_key(&self) -> String {
        version_key(&self.spec, &self.namespace)
    }
}

/// OperatorVersion that the spec of an Instance in a namespace names, as `<namespace>/<name>`.
#[must_use]
pub fn version_key(spec: &InstanceSpec, namespace: &str) -> String {
    let reference = &spec.operator_version;
    let own = reference.namespace.as_deref().filter(|namespace| !namespace.is_empty());
    let name = reference.name.as_deref().unwrap_or_default();
    format!("{}/{name}", own.unwrap_or(namespace))
}

impl Version {
    /// Returns an OperatorVersion of a namespace, as planning needs it.
    #[must_use]
    pub fn of(namespace: &str, version: &OperatorVersion) -> Self {
        Self {
            namespace: namespace.to_owned(),
            identity: Self::identity_of(version),
            spec: version.spec.clone(),
        }
    }

    /// UID and generation of an OperatorVersion: another one is another content.
    #[must_use]
    pub fn identity_of(version: &OperatorVersion) -> String {
        let generation = version.metadata.generation.unwrap_or_default();
        format!("{}/{generation}", version.metadata.uid.as_deref().unwrap_or_default())
    }

    /// Returns a parameter; `None` if there is none of this name.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<&Parameter> {
        self.spec.parameters.iter().find(|parameter| parameter.name == name)
    }

    /// Returns a task; `None` if there is none of this name.
    #[must_use]
    pub fn task(&self, name: &str) -> Option<&Task> {
        self.spec.tasks.iter().find(|task| task.name == name)
    }

    /// Returns the first of these plans that exists.
    #[must_use]
    pub fn first_plan(&self, names: &[&'static str]) -> Option<&'static str> {
        names.iter().copied().find(|name| self.spec.plans.contains_key(*name))
    }

    /// Name of the operator; empty if the OperatorVersion names none.
    #[must_use]
    pub fn operator(&self) -> &str {
        self.spec.operator.name.as_deref().unwrap_or_default()
    }
}
