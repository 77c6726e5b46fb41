//! A recording of `kubectl podops get --watch` during a rollout, as text frames.

use std::{
    fmt::Write as _,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use podops_test_cluster::{
    cluster::{TestCluster, eventually},
    nodes::Delays,
};
use serde_json::json;
use tokio::{io::AsyncReadExt as _, task::JoinSet, time::sleep};

use crate::terminal::{Size, Terminal};

/// Size of the terminal.
const SIZE: Size = Size::new(112, 14);
/// CollaSet that is recorded.
const SET: &str = "web";
const PODS: i32 = 6;
const TIMEOUT: Duration = Duration::from_secs(60);
/// Interval at which the screen is compared with the last frame.
const INTERVAL: Duration = Duration::from_millis(50);
/// Number of frames in the page.
const FRAMES: usize = 8;

/// Content of the screen from a time on.
struct Frame {
    at: Duration,
    text: String,
}

/// Records an update, and returns a Markdown page.
///
/// # Errors
///
/// If the rollout does not complete, or the program does not start.
pub async fn page(programs: &Path) -> anyhow::Result<String> {
    let cluster = TestCluster::start(programs).await?;
    let limit = json!({ "updateStrategy": { "rollingUpdate": { "maxUnavailable": 2 } } });
    cluster.create_and_wait(SET, PODS, &limit).await?;
    // As slow as containers are.
    cluster.nodes()?.set_delays(Delays { start: Duration::from_secs(2), ..Delays::default() });
    let program = programs.join("kubectl-podops");
    let pid = cluster.plane.dir.path().join("pid");
    let watch = format!("get {SET} --watch");
    let mut terminal = Terminal::start(&cluster, &program, &watch, SIZE, &pid)?;
    let screen = Arc::new(Mutex::new(vt100::Parser::new(SIZE.rows, SIZE.columns, 0)));
    let mut reader = JoinSet::new();
    let shared = screen.clone();
    reader.spawn(async move {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(read @ 1..) = terminal.output.read(&mut buffer).await {
            shared.lock().process(buffer.get(..read).unwrap_or_default());
        }
    });
    let shows_set = async || Ok(screen.lock().screen().contents().contains("collaset/web"));
    eventually(TIMEOUT, shows_set).await?;
    let frames = record(&cluster, &screen).await?;
    Ok(format(&frames))
}

/// Updates the CollaSet, and returns the contents of the screen until the end.
async fn record(
    cluster: &TestCluster,
    screen: &Mutex<vt100::Parser>,
) -> anyhow::Result<Vec<Frame>> {
    let began = Instant::now();
    let update = async {
        cluster.set_image(SET, "nginx:2").await?;
        cluster.wait_until_rolled_out(SET, PODS, TIMEOUT).await?;
        // Until the end is drawn.
        sleep(Duration::from_secs(1)).await;
        anyhow::Ok(())
    };
    tokio::pin!(update);
    let mut frames: Vec<Frame> = Vec::new();
    loop {
        let text = screen.lock().screen().contents();
        if frames.last().is_none_or(|last| last.text != text) {
            frames.push(Frame { at: began.elapsed(), text });
        }
        tokio::select! {
            updated = &mut update => {
                updated?;
                return Ok(frames);
            }
            () = sleep(INTERVAL) => {}
        }
    }
}

/// The first and the last frame, and others at equal distances.
fn format(frames: &[Frame]) -> String {
    let shown = FRAMES.min(frames.len());
    let mut page = format!(
        "# A rollout, recorded\n\n\
         Written by `cargo xtask record`: what `kubectl podops get {SET} --watch` shows in a terminal while \
         {PODS} Pods are updated in place on the test cluster, at most two at a time. \
         {shown} of {} frames.\n",
        frames.len()
    );
    let last = frames.len().saturating_sub(1);
    for n in 0..shown {
        let Some(frame) = frames.get(n * last / (shown - 1).max(1)) else { continue };
        // Writing to a string cannot fail.
        let _ = write!(
            page,
            "\nAfter {:.1} s:\n\n```text\n{}\n```\n",
            frame.at.as_secs_f64(),
            frame.text.trim_end()
        );
    }
    page
}
