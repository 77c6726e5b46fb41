//! ResourceContext: who has which instance ID, and what its next Pod is made from.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The instance IDs in use.
#[derive(
    CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema,
)]
#[kube(
    group = "apps.kusionstack.io",
    version = "v1alpha1",
    kind = "ResourceContext",
    plural = "resourcecontexts",
    singular = "resourcecontext",
    shortname = "rc",
    namespaced,
    derive = "PartialEq",
    doc = "ResourceContext records which workload has which instance ID. Workloads write it; it is not meant to be edited."
)]
#[serde(rename_all = "camelCase")]
pub struct ResourceContextSpec {
    /// One entry an ID, in the order of the IDs.
    #[serde(default)]
    pub contexts: Vec<ContextDetail>,
}

/// One instance ID.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ContextDetail {
    /// The ID.
    pub id: i64,
    /// What is known of it; the keys are in [`well_known::context`](crate::marks::context).
    #[serde(default)]
    pub data: BTreeMap<String, String>,
}
