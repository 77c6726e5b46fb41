//! Output of commands.

use std::{
    future::pending,
    io::{self, Write as _},
    thread,
};

use kubectl_podops::{cli::Output, names::Names};
use rustix::event::{PollFd, PollFlags, poll};
use serde::Serialize;
use tokio::sync::oneshot;

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

/// Waits until the reader of the output has ended, without a write to it; returns that error.
pub(crate) async fn closed() -> io::Error {
    let (sender, receiver) = oneshot::channel();
    // If the output is a file, the thread waits until the process exits.
    thread::spawn(move || {
        let stdout = io::stdout();
        // An error is reported without being requested.
        let mut polled = [PollFd::new(&stdout, PollFlags::empty())];
        let error = match poll(&mut polled, None) {
            Ok(_) => io::ErrorKind::BrokenPipe.into(),
            Err(error) => io::Error::from(error),
        };
        drop(sender.send(error));
    });
    match receiver.await {
        Ok(error) => error,
        Err(_) => pending().await,
    }
}
