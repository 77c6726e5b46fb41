//! Commands that show the present state, once or until they are interrupted.

use std::{pin::pin, process::ExitCode, time::Duration};

use anyhow::Context as _;
use kubectl_podops::{cli::Output, explain::Facts, live::Live, top, tree};
use podops_terminal::{color::colored, fit::fit, screen::Screen};
use tokio::time::sleep;

use crate::{
    output::{closed, print},
    session::Session,
};

/// Interval of redraws of a terminal without changes.
const REDRAW_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum interval between two redraws.
const REDRAW_MIN_INTERVAL: Duration = Duration::from_millis(300);

pub(crate) async fn get(session: &Session, set: &str, output: Output) -> anyhow::Result<ExitCode> {
    session.set(set).await?;
    let tree = tree::tree(&session.facts().await?, set).context("the CollaSet was deleted")?;
    let width = Screen::stdout().width();
    print(&tree, || text(&tree::lines(&tree, width)), output)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn watch(session: &Session, set: &str) -> anyhow::Result<ExitCode> {
    session.set(set).await?;
    follow(session, |facts, width| Some(tree::lines(&tree::tree(facts, set)?, width))).await?;
    anyhow::bail!("collaset/{set} was deleted")
}

pub(crate) async fn top(session: &Session, output: Output) -> anyhow::Result<ExitCode> {
    session.check_namespace().await?;
    let top = top::top(&session.facts().await?);
    let width = Screen::stdout().width();
    print(&top, || text(&top::lines(&top, width)), output)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn watch_top(session: &Session) -> anyhow::Result<ExitCode> {
    session.check_namespace().await?;
    follow(session, |facts, width| Some(top::lines(&top::top(facts), width))).await?;
    Ok(ExitCode::SUCCESS)
}

/// Text of lines, with colors on a terminal.
fn text(lines: &[String]) -> String {
    lines.iter().map(|line| colored(line) + "\n").collect()
}

/// Draws whenever an object of the namespace has changed, until there is nothing to draw any more,
/// or the reader of the output has ended.
async fn follow(
    session: &Session,
    draw: impl Fn(&Facts, usize) -> Option<Vec<String>>,
) -> anyhow::Result<()> {
    let mut screen = Screen::stdout();
    let Session { client, namespace, operator_namespace, .. } = session;
    // Reports a missing permission, for which the watches would wait.
    session.facts().await?;
    let live = Live::start(client, namespace, operator_namespace).await?;
    // Times are shown, so a terminal is redrawn without changes, too.
    let tick = if screen.is_terminal() { REDRAW_INTERVAL } else { Duration::MAX };
    let mut closed = pin!(closed());
    loop {
        tokio::select! {
            error = &mut closed => return Err(error.into()),
            () = live.changed() => {}
            () = sleep(tick) => {}
        }
        let facts = live.facts();
        let width = screen.width();
        let Some(lines) = draw(&facts, width) else { return Ok(()) };
        let warnings = facts.unknown.iter().map(|unknown| format!("Warning: {unknown}"));
        screen.show(lines.into_iter().chain(fit(warnings, width)).collect())?;
        sleep(REDRAW_MIN_INTERVAL).await;
    }
}
