//! What the API server says was asked of it.

use std::{
    fs::File,
    io::{Read as _, Seek as _, SeekFrom},
    path::Path,
};

use anyhow::Context as _;
use jiff::Timestamp;
use serde::Deserialize;

/// One request.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// What was asked.
    pub verb: String,
    /// When it came in.
    #[serde(rename = "requestReceivedTimestamp")]
    pub at: Timestamp,
    user: User,
    object_ref: Option<Object>,
    response_status: Option<Status>,
}

#[derive(Clone, Debug, Deserialize)]
struct User {
    /// None of a request that came in before the server could tell who asks.
    #[serde(default)]
    username: String,
}

#[derive(Clone, Debug, Deserialize)]
struct Object {
    resource: Option<String>,
    #[allow(dead_code, reason = "shown when a test fails")]
    name: Option<String>,
    subresource: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
struct Status {
    code: Option<u16>,
    message: Option<String>,
}

impl Request {
    /// The operator that asked, if one did.
    #[must_use]
    pub fn operator(&self) -> Option<&str> {
        self.user.username.strip_prefix("system:serviceaccount:podops-system:")
    }

    /// The plural of what was asked about.
    #[must_use]
    pub fn resource(&self) -> &str {
        self.object_ref.as_ref().and_then(|o| o.resource.as_deref()).unwrap_or_default()
    }

    /// The part of the object that was asked about, if not the whole.
    #[must_use]
    pub fn subresource(&self) -> &str {
        self.object_ref.as_ref().and_then(|o| o.subresource.as_deref()).unwrap_or_default()
    }

    /// The answer's status code.
    #[must_use]
    pub fn code(&self) -> u16 {
        self.response_status.as_ref().and_then(|s| s.code).unwrap_or_default()
    }

    /// Whether who asked may not ask this; admission refuses with the same code, in other words.
    #[must_use]
    pub fn is_unauthorized(&self) -> bool {
        let said = self.response_status.as_ref().and_then(|s| s.message.as_deref());
        self.code() == 403 && said.is_none_or(|said| said.contains(" cannot "))
    }

    /// Whether it was to change something.
    #[must_use]
    pub fn is_write(&self) -> bool {
        !matches!(self.verb.as_str(), "get" | "list" | "watch")
    }

    /// Whether it was to change something, and was refused.
    #[must_use]
    pub fn is_rejected_write(&self) -> bool {
        self.is_write() && self.code() >= 400
    }

    /// Whether an operator sent it, and not to renew its Lease.
    #[must_use]
    pub fn is_work(&self) -> bool {
        self.operator().is_some() && self.resource() != "leases"
    }
}

/// The requests in the log from `offset` on, and where the log ends.
///
/// # Errors
///
/// If the log cannot be read.
pub fn since(log: &Path, offset: u64) -> anyhow::Result<(Vec<Request>, u64)> {
    let mut file = File::open(log).context("opening the audit log")?;
    file.seek(SeekFrom::Start(offset))?;
    let mut new = String::new();
    file.read_to_string(&mut new).context("reading the audit log")?;
    // The last line may be half written.
    let whole = new.rfind('\n').map_or("", |end| &new[..=end]);
    let requests = whole.lines().map(serde_json::from_str).collect::<Result<_, _>>();
    Ok((requests.context("reading a line of the audit log")?, offset + whole.len() as u64))
}

/// Where the last whole line of the log ends.
///
/// # Errors
///
/// If the log cannot be read.
pub fn end(log: &Path) -> anyhow::Result<u64> {
    /// More than any line takes.
    const LINE_MAX: u64 = 1 << 20;
    let mut file = File::open(log).context("opening the audit log")?;
    let start = file.metadata()?.len().saturating_sub(LINE_MAX);
    file.seek(SeekFrom::Start(start))?;
    let mut tail = Vec::new();
    file.read_to_end(&mut tail).context("reading the audit log")?;
    let whole = tail.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at as u64 + 1);
    Ok(start + whole)
}
