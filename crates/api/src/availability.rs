//! Preconditions for a Pod to count as available: the annotation
//! [`AVAILABLE_CONDITIONS`](crate::well_known::AVAILABLE_CONDITIONS).

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

/// Content of the annotation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AvailableConditions {
    /// Finalizers that the Pod must have, by the employer that adds them
    /// (`<Kind>/<namespace>/<name>`).
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "null_is_empty")]
    pub expected_finalizers: BTreeMap<String, String>,
}

/// Reads `null` as an empty map.
fn null_is_empty<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
