//! Logging: text or JSON lines, filtered.

use tracing_subscriber::{
    EnvFilter,
    filter::ParseError,
    fmt,
    util::{SubscriberInitExt as _, TryInitError},
};

use crate::args::{LogFormat, OperatorArgs};

/// Default filter directives, which the user can override: kube's client logs entire responses that
/// it cannot decode.
const DEFAULT_DIRECTIVES: &str = "kube_client::client=off";

/// Installs the tracing subscriber.
///
/// # Errors
///
/// If the filter is invalid, or a subscriber is already installed.
pub(crate) fn install(args: &OperatorArgs) -> Result<(), LoggingError> {
    let filter = EnvFilter::try_new(format!("{DEFAULT_DIRECTIVES},{}", args.log))?;
    let lines = fmt().with_env_filter(filter).with_target(false);
    match args.log_format {
        LogFormat::Text => lines.with_ansi(false).finish().try_init()?,
        LogFormat::Json => {
            lines.json().flatten_event(true).with_current_span(true).finish().try_init()?;
        }
    }
    Ok(())
}

/// Reasons for which logging cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    /// `--log` is not a filter.
    #[error("invalid log filter")]
    Filter(#[from] ParseError),
    /// A subscriber is already installed.
    #[error("failed to install the log subscriber")]
    Install(#[from] TryInitError),
}
