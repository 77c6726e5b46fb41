//! ResourceContext: the owner of each instance ID, and the revision from which its next Pod is
//! created.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::InstanceId;

/// Instance IDs in use.
#[derive(
    CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema,
)]
#[kube(
    group = "apps.kusionstack.io",
    version = "v1alpha1",
    kind = "ResourceContext",
    plural = "resourcecontexts",
    singular = "resourcecontext",
    namespaced,
    derive = "PartialEq",
    doc = "ResourceContext records which workload owns each instance ID. It is written by the workload controllers and must not be edited."
)]
#[serde(rename_all = "camelCase")]
pub struct ResourceContextSpec {
    /// One entry per ID, in ascending order of the IDs.
    #[serde(default)]
    pub contexts: Vec<ContextDetail>,
}

/// One instance ID and its data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ContextDetail {
    /// Instance ID.
    pub id: InstanceId,
    /// Properties of the ID, such as the owning CollaSet and the revision of the next Pod.
    #[serde(default)]
    pub data: BTreeMap<String, String>,
}
