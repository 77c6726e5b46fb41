//! Commands that check a cluster.

use std::process::ExitCode;

use anyhow::Context as _;
use kubectl_podops::{
    check::{check as check_installation, findings},
    cli::{Output, SwitchTarget},
    installation::Object,
    installed, inventory,
    preflight::{self, Direction},
    uninstall::concerns,
};

use crate::{output::print, session::Session};

pub(crate) async fn preflight(
    session: &Session,
    to: SwitchTarget,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let direction = match to {
        SwitchTarget::Podops => Direction::ToPodops,
        SwitchTarget::Kuperator => Direction::ToKuperator,
    };
    let findings = preflight::check(&inventory::read(&session.client).await?, direction);
    let conclusion = if findings.has_errors() {
        "Resolve the errors before the next step."
    } else {
        "The next step may be taken."
    };
    print(&findings, || format!("{findings}{conclusion}\n"), output)?;
    Ok(if findings.has_errors() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns whether the check depends on an object: also Services that Podops does not know.
fn is_checked(object: &Object) -> bool {
    object.kind.name == "Service" || concerns(object)
}

/// Checks the installation and prints the findings.
pub(crate) async fn check(session: &Session, output: Output) -> anyhow::Result<ExitCode> {
    let read = installed::read(&session.client, &session.operator_namespace, is_checked).await;
    let installation =
        read.context("cannot list what is installed; this needs the rights of an administrator")?;
    let parts = check_installation(&installation);
    let mut lines: Vec<String> = parts.iter().map(ToString::to_string).collect();
    let findings = findings(parts);
    lines.push(findings.to_string());
    print(&findings, || lines.join("\n"), output)?;
    Ok(if findings.has_errors() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
