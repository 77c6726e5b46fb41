//! Input of planning: one Instance, its OperatorVersion, and the objects of its plans.

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
    /// Name in `metadata.finalizers`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cleanup => "kudo.dev.instance.cleanup",
            Self::ClusterObjects => "kudo.dev/cluster-objects",
        }
    }
}

/// Existing OperatorVersions, by `<namespace>/<name>`.
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
    /// Time of the deletion request, if known.
    pub deleted_at: Option<Timestamp>,
    /// True if the namespace of the Instance is being deleted; known only while the plan `cleanup`
    /// fails.
    pub is_namespace_deleted: bool,
    /// Finalizers of the Instance.
    pub finalizers: Vec<String>,
    /// Desired state.
    pub spec: InstanceSpec,
    /// Last status: the stored status, or a pending status.
    pub status: InstanceStatus,
    /// Stored status.
    pub stored: InstanceStatus,
    /// OperatorVersion that the spec names; `None` if it does not exist.
    pub version: Option<Arc<Version>>,
    /// Content of the OperatorVersion with which the current run started, if known.
    pub version_of_run: Option<Arc<Version>>,
    /// Direct and indirect dependencies of the OperatorVersion.
    pub dependencies: Dependencies,
    /// Cluster-scoped objects that another Instance, which is not being deleted, has applied too.
    pub applied_by_others: BTreeSet<ObjectId>,
    /// Values of `parametersFrom`, by parameter.
    pub sources: BTreeMap<String, SourceValue>,
    /// Discovered types with their scope; `None` if a type is not served.
    pub types: BTreeMap<ObjectType, Option<Scope>>,
    /// Objects that were read; `None` if the object does not exist.
    pub objects: BTreeMap<ObjectId, Option<Arc<Value>>>,
    /// Metadata of objects read without their spec; `None` if the object does not exist.
    pub metadata: BTreeMap<ObjectId, Option<Arc<Value>>>,
    /// Files that were read.
    pub files: BTreeMap<ReadFile, FileRead>,
    /// Problems of the workloads and Pods of the Instance, sorted; `None` if unknown, or ignored
    /// because a plan runs.
    pub problems: Option<Vec<String>>,
    /// Messages of failed reads and writes of an object, or of the failed discovery of its type.
    pub failures: BTreeMap<ObjectId, String>,
}

/// OperatorVersion, converted for planning.
#[derive(Clone, Debug, Default)]
pub struct Version {
    /// Namespace of the OperatorVersion.
    pub namespace: String,
    /// UID and generation, which identify the content.
    pub identity: String,
    /// Content.
    pub spec: OperatorVersionSpec,
}

/// Value of a `parametersFrom` source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceValue {
    /// The value; `None` if the object or the key does not exist.
    pub value: Option<String>,
    /// UID and resourceVersion of the object; another version is treated as another value. Empty if
    /// the object does not exist.
    pub version: String,
    /// Error if the object could not be read; the value is then unknown.
    pub error: Option<String>,
}

impl Observed {
    /// Returns the state that an Instance itself contains.
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

    /// Returns the metadata of an object, from any kind of read: `None` if the object was not read,
    /// `Some(None)` if it does not exist.
    #[must_use]
    pub fn metadata_of(&self, id: &ObjectId) -> Option<&Option<Arc<Value>>> {
        self.objects.get(id).or_else(|| self.metadata.get(id))
    }

    /// Returns whether the Instance has a finalizer.
    #[must_use]
    pub fn has(&self, finalizer: Finalizer) -> bool {
        self.finalizers.iter().any(|known| known == finalizer.as_str())
    }

    /// Returns whether an object was changed for a later generation of the Instance than the
    /// observed one: another operator was leader in the meantime, and writes of this operator would
    /// be outdated.
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

    /// Returns whether the OperatorVersion that the spec names is in another namespace.
    #[must_use]
    pub fn is_version_foreign(&self) -> bool {
        let namespace = self.spec.operator_version.namespace.as_deref();
        namespace.is_some_and(|namespace| !namespace.is_empty() && namespace != self.namespace)
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
    /// Returns an OperatorVersion of a namespace, converted for planning.
    #[must_use]
    pub fn of(namespace: &str, version: &OperatorVersion) -> Self {
        Self {
            namespace: namespace.to_owned(),
            identity: Self::identity_of(version),
            spec: version.spec.clone(),
        }
    }

    /// UID and generation of an OperatorVersion, which identify the content.
    #[must_use]
    pub fn identity_of(version: &OperatorVersion) -> String {
        let generation = version.metadata.generation.unwrap_or_default();
        format!("{}/{generation}", version.metadata.uid.as_deref().unwrap_or_default())
    }

    /// Returns the parameter of this name; `None` if absent.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<&Parameter> {
        self.spec.parameters.iter().find(|parameter| parameter.name == name)
    }

    /// Returns the task of this name; `None` if absent.
    #[must_use]
    pub fn task(&self, name: &str) -> Option<&Task> {
        self.spec.tasks.iter().find(|task| task.name == name)
    }

    /// Returns the first of these plans that exists; `None` if none exists.
    #[must_use]
    pub fn first_plan(&self, names: &[&'static str]) -> Option<&'static str> {
        names.iter().copied().find(|name| self.spec.plans.contains_key(*name))
    }

    /// Name of the operator; empty if absent.
    #[must_use]
    pub fn operator(&self) -> &str {
        self.spec.operator.name.as_deref().unwrap_or_default()
    }
}
