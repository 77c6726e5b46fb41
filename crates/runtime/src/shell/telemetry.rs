//! Logging: text or JSON lines, filtered.

use tracing_subscriber::{EnvFilter, fmt};

use super::args::{LogFormat, OperatorArgs};

/// Default filter directives, which the user can override: kube's client logs entire responses that
/// it cannot decode.
const DEFAULT_DIRECTIVES: &str = "kube_client::client=off";

/// Installs the tracing subscriber.
///
/// # Errors
///
/// If the filter is invalid, or a subscriber is already installed.
pub fn install(args: &OperatorArgs) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(format!("{DEFAULT_DIRECTIVES},{}", args.log))?;
    let lines = fmt().with_env_filter(filter).with_target(false);
    let installed = match args.log_format {
        LogFormat::Text => lines.with_ansi(false).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(true).try_init(),
    };
    installed.map_err(|e| anyhow::anyhow!(e))
}
