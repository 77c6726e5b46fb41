//! Reads the API server's audit log: requests by user, verb and resource.

use std::{
    fs::File,
    io::{Read as _, Seek as _, SeekFrom},
    path::Path,
};

use anyhow::Context as _;
use jiff::Timestamp;
use serde::Deserialize;

/// One API request.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// Verb, such as `get` or `patch`.
    pub verb: String,
    /// Time at which the API server received the request.
    #[serde(rename = "requestReceivedTimestamp")]
    pub at: Timestamp,
    /// Time at which the API server had responded.
    #[serde(rename = "stageTimestamp")]
    pub ended: Timestamp,
    /// User-Agent of the client.
    #[serde(default)]
    pub user_agent: String,
    #[serde(default)]
    stage: String,
    user: User,
    impersonated_user: Option<User>,
    object_ref: Option<Object>,
    response_status: Option<Status>,
}

#[derive(Clone, Debug, Deserialize)]
struct User {
    /// Empty if the request arrived before the API server could authenticate users.
    #[serde(default)]
    username: String,
}

#[derive(Clone, Debug, Deserialize)]
struct Object {
    resource: Option<String>,
    name: Option<String>,
    subresource: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
struct Status {
    code: Option<u16>,
    message: Option<String>,
}

impl Request {
    /// Name of the user that sent the request.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.user.username
    }

    /// Name of the operator that sent the request; `None` for other clients.
    #[must_use]
    pub fn operator(&self) -> Option<&str> {
        self.user.username.strip_prefix("system:serviceaccount:podops-system:")
    }

    /// Returns whether the request was made for another user, with that user's rights.
    #[must_use]
    pub fn is_impersonated(&self) -> bool {
        self.impersonated_user.is_some()
    }

    /// Plural resource name; empty for requests without an object.
    #[must_use]
    pub fn resource(&self) -> &str {
        self.object_ref.as_ref().and_then(|o| o.resource.as_deref()).unwrap_or_default()
    }

    /// Name of the object; empty for requests without one.
    #[must_use]
    pub fn name(&self) -> &str {
        self.object_ref.as_ref().and_then(|o| o.name.as_deref()).unwrap_or_default()
    }

    /// Subresource, such as `status`; empty for the main resource.
    #[must_use]
    pub fn subresource(&self) -> &str {
        self.object_ref.as_ref().and_then(|o| o.subresource.as_deref()).unwrap_or_default()
    }

    /// Resource and subresource, such as `pods/status` or `pods`.
    #[must_use]
    pub fn path(&self) -> String {
        match self.subresource() {
            "" => self.resource().to_owned(),
            subresource => format!("{}/{subresource}", self.resource()),
        }
    }

    /// HTTP status code of the response; 0 if none was logged.
    #[must_use]
    pub fn code(&self) -> u16 {
        self.response_status.as_ref().and_then(|s| s.code).unwrap_or_default()
    }

    /// Returns whether the user lacked permission. Admission also rejects with 403, but with
    /// another message.
    #[must_use]
    pub fn is_unauthorized(&self) -> bool {
        let message = self.response_status.as_ref().and_then(|s| s.message.as_deref());
        self.code() == 403 && message.is_none_or(|message| message.contains(" cannot "))
    }

    /// Returns whether the verb modifies objects.
    #[must_use]
    pub fn is_write(&self) -> bool {
        !matches!(self.verb.as_str(), "get" | "list" | "watch")
    }

    /// Returns whether this is a write that failed, conflicts included.
    #[must_use]
    pub fn is_rejected_write(&self) -> bool {
        self.is_write() && self.code() >= 400
    }

    /// Returns whether an operator sent the request, except for leader election.
    #[must_use]
    pub fn is_operator_request(&self) -> bool {
        self.operator().is_some() && self.resource() != "leases"
    }
}

/// Reads the requests from byte `offset` to the last complete line; also returns that line's end.
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
    let complete = new.rfind('\n').map_or("", |end| &new[..=end]);
    let requests = complete.lines().map(serde_json::from_str).collect::<Result<_, _>>();
    let mut requests: Vec<Request> = requests.context("parsing a line of the audit log")?;
    // Commands in containers are logged when they begin, too; watches when they begin, and at their
    // end.
    requests.retain(|request| request.verb == "watch" || request.stage != "ResponseStarted");
    Ok((requests, offset + complete.len() as u64))
}

/// Byte offset of the end of the last complete line.
///
/// # Errors
///
/// If the log cannot be read.
pub fn end(log: &Path) -> anyhow::Result<u64> {
    /// Upper bound of a line's length in bytes.
    const LINE_MAX: u64 = 1 << 20;
    let mut file = File::open(log).context("opening the audit log")?;
    let start = file.metadata()?.len().saturating_sub(LINE_MAX);
    file.seek(SeekFrom::Start(start))?;
    let mut tail = Vec::new();
    file.read_to_end(&mut tail).context("reading the audit log")?;
    let complete = tail.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at as u64 + 1);
    Ok(start + complete)
}
