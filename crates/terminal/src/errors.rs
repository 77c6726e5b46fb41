//! Errors of the command lines: one line each, and an exit status.

use std::{
    error::Error,
    io::{self, Write as _},
    process::ExitCode,
};

use clap::error::ErrorKind;
use kube::core::Status;

/// Exit status of a command line that cannot be parsed, as clap defines it.
const USAGE: u8 = 2;

/// Prints the requested help or version, or the error in one line followed by `advice`. Returns the
/// exit status.
#[must_use]
pub fn usage_status(error: &clap::Error, advice: &str) -> ExitCode {
    let is_help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if is_help || !error.use_stderr() {
        return match write!(io::stdout(), "{}", error.render()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                report(&error.into());
                ExitCode::FAILURE
            }
        };
    }
    let text = error.to_string();
    // The rest of clap's message is a hint and the usage.
    let message = text.split("\n\n").next().unwrap_or_default();
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let words: Vec<&str> = message.split_whitespace().collect();
    // `tip: a similar subcommand exists: 'get'`
    let tip = text.lines().find_map(|line| line.trim().strip_prefix("tip: "));
    let tip = tip.filter(|tip| tip.contains("similar")).map(|tip| format!("; {tip}"));
    print(&format!("{}{}{advice}", words.join(" "), tip.unwrap_or_default()));
    ExitCode::from(USAGE)
}

/// Prints the error of a command in one line; nothing if the reader of the output has ended, as
/// `head` does.
pub fn report(error: &anyhow::Error) {
    if !is_closed_pipe(error) {
        print(&one_line(error));
    }
}

fn print(message: &str) {
    // stderr may be a closed pipe.
    drop(writeln!(io::stderr(), "Error: {message}"));
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<io::Error>();
    io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Separator before an API server error in the text of the error that wraps it; the API server
/// error itself follows in the chain.
const ANSWER: &str = ": ApiError: ";

/// Returns the error and its causes in one line, without repetitions.
#[must_use]
pub fn one_line(error: &anyhow::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain() {
        // Message of the Status, without its other fields.
        let text = status(cause).map_or_else(|| cause.to_string(), |status| status.message.clone());
        let text = text.split(ANSWER).next().unwrap_or_default().replace(['\r', '\n'], " ");
        if !parts.iter().any(|part| part.contains(&text)) {
            parts.push(text);
        }
    }
    parts.join(": ")
}

/// Returns the Status if this cause is an error response of the API server.
fn status<'a>(cause: &'a (dyn Error + 'static)) -> Option<&'a Status> {
    if let Some(kube::Error::Api(status)) = cause.downcast_ref() {
        return Some(status);
    }
    let boxed = || cause.downcast_ref::<Box<Status>>().map(|status| &**status);
    cause.downcast_ref::<Status>().or_else(boxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(code: u16, message: &str, reason: &str) -> kube::Error {
        kube::Error::Api(Box::new(Status::failure(message, reason).with_code(code)))
    }

    #[test]
    fn an_answer_of_the_api_server_is_printed_once() {
        let forbidden = || answer(403, "pods is forbidden: no", "Forbidden");
        let listed = anyhow::Error::new(forbidden()).context("cannot list the Pods");
        assert_eq!(one_line(&listed), "cannot list the Pods: pods is forbidden: no");
        let missing = anyhow::Error::new(answer(404, "404 page not found", "Failed to parse"));
        assert_eq!(one_line(&missing), "404 page not found");
        // Errors of watches repeat their cause.
        let watch = format!("failed to start watching object: {}", forbidden());
        let watched = anyhow::Error::new(forbidden()).context(watch);
        let expected = "failed to start watching object: pods is forbidden: no";
        assert_eq!(one_line(&watched), expected);
    }

    #[test]
    fn an_error_of_several_lines_is_printed_in_one() {
        let error = anyhow::anyhow!("b\r\nc").context("a");
        assert_eq!(one_line(&error), "a: b  c");
    }
}
