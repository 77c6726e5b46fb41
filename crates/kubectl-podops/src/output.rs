//! Output of commands.

use std::io::{self, Write as _};

use kubectl_podops::{cli::Output, names::Names};
use serde::Serialize;

/// Prints a line.
///
/// # Errors
///
/// If the output is closed.
pub(crate) fn print_line(line: &str) -> anyhow::Result<()> {
    Ok(writeln!(io::stdout(), "{line}")?)
}

/// Prints a value as text, JSON or YAML, or the names of its objects.
///
/// # Errors
///
/// If the output is closed.
pub(crate) fn print(
    value: &(impl Serialize + Names),
    text: impl FnOnce() -> String,
    output: Output,
) -> anyhow::Result<()> {
    let text = match output {
        Output::Text => text(),
        Output::Json => serde_json::to_string_pretty(value)? + "\n",
        Output::Yaml => serde_saphyr::to_string(&serde_json::to_value(value)?)?,
        Output::Name => value.names().into_iter().map(|name| name + "\n").collect(),
    };
    Ok(io::stdout().write_all(text.as_bytes())?)
}
