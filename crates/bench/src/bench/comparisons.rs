//! Results of the tests' comparisons with the Go programs that KUDO uses.

use std::{fs, path::Path};

use anyhow::Context as _;
use serde::Deserialize;

use super::rows::{Row, Rows};

/// File of each comparison, and its metric.
const COMPARISONS: [(&str, &str); 3] = [
    ("templates", "generated templates that Go's text/template with Sprig renders otherwise"),
    ("yaml", "generated scalars and documents that Go's yaml.v2 reads otherwise"),
    ("hashes", "generated objects that have another hash in Go"),
];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Comparison {
    compared: usize,
    different: usize,
    not_supported: usize,
}

/// Adds the results that the tests have recorded in a directory.
pub(super) fn add(directory: &Path, rows: &mut Rows) -> anyhow::Result<()> {
    for (name, metric) in COMPARISONS {
        let path = directory.join(name);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let Comparison { compared, different, not_supported } = serde_json::from_str(&text)?;
        let mut measured = format!("{different} of {compared}");
        if not_supported > 0 {
            measured = format!("{measured}, {not_supported} not supported");
        }
        rows.push(Row { metric, target: "0".into(), measured, met: Some(different == 0) });
    }
    Ok(())
}
