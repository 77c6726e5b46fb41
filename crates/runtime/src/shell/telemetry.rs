//! Log lines: plain or JSON, filtered.

use tracing_subscriber::{EnvFilter, fmt};

use super::args::{LogFormat, OperatorArgs};

/// Directives that hold unless the user says otherwise: kube's client prints whole responses that
/// it cannot decode.
const QUIET: &str = "kube_client::client=off";

/// Installs the subscriber.
///
/// # Errors
///
/// If the filter cannot be read, or there is a subscriber already.
pub fn install(args: &OperatorArgs) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(format!("{QUIET},{}", args.log))?;
    let lines = fmt().with_env_filter(filter).with_target(false);
    let installed = match args.log_format {
        LogFormat::Text => lines.with_ansi(false).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(true).try_init(),
    };
    installed.map_err(|e| anyhow::anyhow!(e))
}
