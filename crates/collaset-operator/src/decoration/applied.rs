//! Decorations that a Pod has: the annotation that records them, and the same JSON in a
//! ResourceContext.

use std::{collections::BTreeMap, fmt};

use podops_api::{
    ids::{DecorationName, RevisionName},
    well_known,
};
use serde::{Deserialize, Serialize};

/// Revision of each decoration of a Pod, by the name of the decoration.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct AppliedDecorations(BTreeMap<DecorationName, RevisionName>);

/// Entry of the annotation.
#[derive(Serialize, Deserialize)]
struct Entry {
    name: String,
    revision: String,
}

impl AppliedDecorations {
    /// Parses the JSON of the annotation [`well_known::DECORATIONS`]; no decorations if it is
    /// missing or invalid.
    #[must_use]
    pub fn parse(json: Option<&str>) -> Self {
        let entries: Vec<Entry> =
            json.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        entries
            .into_iter()
            .map(|Entry { name, revision }| (name.as_str().into(), revision.as_str().into()))
            .collect()
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the revision of a decoration.
    #[must_use]
    pub fn revision(&self, name: &DecorationName) -> Option<&RevisionName> {
        self.0.get(name)
    }

    /// Returns these decorations together with another one.
    #[must_use]
    pub fn with(&self, name: &DecorationName, revision: &RevisionName) -> Self {
        let mut all = self.0.clone();
        all.insert(name.clone(), revision.clone());
        Self(all)
    }

    /// Names of the decorations.
    pub fn names(&self) -> impl Iterator<Item = &DecorationName> {
        self.0.keys()
    }

    /// Names and revisions of the decorations.
    pub fn iter(&self) -> impl Iterator<Item = (&DecorationName, &RevisionName)> {
        self.0.iter()
    }

    /// Labels of a Pod with these decorations.
    pub fn labels(&self) -> impl Iterator<Item = (String, String)> {
        self.0.iter().map(|(name, revision)| (label(name), revision.to_string()))
    }
}

/// Returns the key of the label that holds the revision of a decoration.
#[must_use]
pub fn label(name: &str) -> String {
    format!("{}{name}", well_known::DECORATION_LABEL_PREFIX)
}

impl FromIterator<(DecorationName, RevisionName)> for AppliedDecorations {
    fn from_iter<I: IntoIterator<Item = (DecorationName, RevisionName)>>(items: I) -> Self {
        Self(items.into_iter().collect())
    }
}

/// The JSON of the annotation, in the order of the names.
impl fmt::Display for AppliedDecorations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries: Vec<Entry> = self
            .0
            .iter()
            .map(|(name, revision)| Entry {
                name: name.to_string(),
                revision: revision.to_string(),
            })
            .collect();
        f.write_str(&serde_json::to_string(&entries).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decorations_are_written_in_order_of_their_names() {
        let json = r#"[{"name":"b","revision":"b-1"},{"name":"a","revision":"a-2"}]"#;
        let applied = AppliedDecorations::parse(Some(json));
        let sorted = r#"[{"name":"a","revision":"a-2"},{"name":"b","revision":"b-1"}]"#;
        assert_eq!(applied.to_string(), sorted);
        assert_eq!(AppliedDecorations::parse(Some("{")), AppliedDecorations::default());
        assert_eq!(AppliedDecorations::parse(Some("[]")), AppliedDecorations::default());
    }
}
