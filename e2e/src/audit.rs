//! What the API server says was asked of it.

use std::path::Path;

use anyhow::Context as _;
use serde::Deserialize;

/// One request.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// What was asked.
    pub verb: String,
    user: User,
    object_ref: Option<Object>,
    response_status: Option<Status>,
}

#[derive(Clone, Debug, Deserialize)]
struct User {
    username: String,
}

#[derive(Clone, Debug, Deserialize)]
struct Object {
    resource: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
struct Status {
    code: Option<u16>,
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

    /// The answer's status code.
    #[must_use]
    pub fn code(&self) -> u16 {
        self.response_status.as_ref().and_then(|s| s.code).unwrap_or_default()
    }

    /// Whether it was to change something.
    #[must_use]
    pub fn is_write(&self) -> bool {
        !matches!(self.verb.as_str(), "get" | "list" | "watch")
    }
}

/// The requests of operators in the log from `offset` on, Leases aside, and where the log ends.
///
/// # Errors
///
/// If the log cannot be read.
pub fn since(log: &Path, offset: usize) -> anyhow::Result<(Vec<Request>, usize)> {
    let text = std::fs::read_to_string(log).context("reading the audit log")?;
    let new = text.get(offset..).unwrap_or_default();
    // The last line may be half written.
    let whole = new.rfind('\n').map_or("", |end| &new[..=end]);
    let requests = whole
        .lines()
        .filter_map(|line| serde_json::from_str::<Request>(line).ok())
        .filter(|r| r.operator().is_some() && r.resource() != "leases")
        .collect();
    Ok((requests, offset + whole.len()))
}
