//! What must be on a Pod before it counts as available: the annotation
//! [`AVAILABLE_CONDITIONS`](crate::marks::AVAILABLE_CONDITIONS).

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

/// The annotation's content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AvailableConditions {
    /// Finalizers that must be on the Pod, by the employer that puts them there
    /// (`<Kind>/<namespace>/<name>`).
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "null_is_empty")]
    pub expected_finalizers: BTreeMap<String, String>,
}

/// `null` expects nothing, as `{}` does.
fn null_is_empty<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
