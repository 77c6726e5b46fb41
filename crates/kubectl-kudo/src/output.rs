//! Output of commands.

use std::io::{self, Write as _};

/// Prints a text that ends with a line feed.
///
/// # Errors
///
/// If stdout is closed.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    Ok(io::stdout().write_all(text.as_bytes())?)
}

/// Prints a line.
///
/// # Errors
///
/// If stdout is closed.
pub(crate) fn print_line(line: &str) -> anyhow::Result<()> {
    print(&format!("{line}\n"))
}
