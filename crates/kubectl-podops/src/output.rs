//! Output of commands.

use std::io::{self, Write as _};

use kubectl_podops::cli::Output;
use serde::Serialize;

/// Prints a value as text, JSON or YAML.
///
/// # Errors
///
/// If the output is closed.
pub(crate) fn print(
    value: &impl Serialize,
    text: impl FnOnce() -> String,
    output: Output,
) -> anyhow::Result<()> {
    let text = match output {
        Output::Text => text(),
        Output::Json => serde_json::to_string_pretty(value)? + "\n",
        Output::Yaml => serde_saphyr::to_string(&serde_json::to_value(value)?)?,
    };
    Ok(io::stdout().write_all(text.as_bytes())?)
}
