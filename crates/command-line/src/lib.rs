//! Errors of the command lines: one line each, and an exit status.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

/// Exit status of a command line that cannot be parsed, as clap defines it.
const USAGE: u8 = 2;

/// Prints help or the version as requested, or the error in one line, followed by `advice`. Returns the
/// exit status.
#[must_use]
pub fn usage_status(error: &clap::Error, advice: &str) -> ExitCode {
    if !error.use_stderr() {
        drop(error.print());
        return ExitCode::SUCCESS;
    }
    let text = error.to_string();
    // What follows is a hint and the usage.
    let message = text.split("\n\n").next().unwrap_or_default();
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let words: Vec<&str> = message.split_whitespace().collect();
    print(&format!("{}{advice}", words.join(" ")));
    ExitCode::from(USAGE)
}

/// Prints the error of a command in one line.
pub fn report(error: &anyhow::Error) {
    if is_closed_pipe(error) {
        print("the reader of the output has ended");
    } else {
        print(&one_line(error));
    }
}

fn print(message: &str) {
    // Its reader may have ended, too.
    drop(writeln!(io::stderr(), "Error: {message}"));
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<io::Error>();
    io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// The error and its causes in one line, without repetitions.
fn one_line(error: &anyhow::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain() {
        // The API server's message, without the fields of its status.
        let text = match cause.downcast_ref::<kube::Error>() {
            Some(kube::Error::Api(status)) => status.message.clone(),
            Some(_) | None => cause.to_string(),
        };
        let text = text.replace('\n', " ");
        if !parts.iter().any(|part| part.contains(&text)) {
            parts.push(text);
        }
    }
    parts.join(": ")
}
