//! Responses of HAProxy's Runtime API: the servers of a backend and their statistics.

use std::collections::BTreeMap;

use super::Slot;

/// Maximum length of an unexpected response in a message, in characters.
const MESSAGE_MAX: usize = 80;
/// `srv_op_state` of a server that is up.
const RUNNING: u32 = 2;

/// Reasons for which a response of the Runtime API is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidResponse {
    /// The terminating empty line is missing: the missing part may be relevant.
    #[error("response is truncated")]
    Truncated,
    /// The response is not a list of servers.
    #[error("backend {backend}: unexpected response {line:?}")]
    Unexpected {
        /// Name of the backend.
        backend: String,
        /// First line of the response, bounded because users see it.
        line: String,
    },
    /// The backend has no servers, and therefore no known ID.
    #[error("backend {backend} has no servers")]
    NoServers {
        /// Name of the backend.
        backend: String,
    },
    /// A column of the servers' state is missing.
    #[error("server state lacks {column}")]
    MissingColumn {
        /// Name of the column.
        column: &'static str,
    },
    /// A value of the servers' state is not a number.
    #[error("server state: invalid {column}")]
    InvalidValue {
        /// Name of the column.
        column: &'static str,
    },
    /// A server is not in the statistics.
    #[error("statistics lack server {server}")]
    MissingServer {
        /// Name of the server.
        server: String,
    },
    /// The columns of the statistics are missing.
    #[error("statistics lack svname or scur")]
    MissingStatistics,
    /// A line of the statistics is too short.
    #[error("statistics: incomplete line")]
    IncompleteStatistics,
    /// The number of sessions is not a number.
    #[error("statistics: invalid scur")]
    InvalidSessions,
}

/// Returns the command that lists the servers of a backend.
#[must_use]
pub fn servers_command(backend: &str) -> String {
    format!("show servers state {backend}")
}

/// Returns the command for the statistics of the servers of the backend with this ID.
#[must_use]
pub fn statistics_command(backend_id: &str) -> String {
    format!("show stat {backend_id} 4 -1")
}

/// Returns both commands in one request, for a backend whose ID is known.
#[must_use]
pub fn both_commands(backend: &str, backend_id: &str) -> String {
    format!("{};{}", servers_command(backend), statistics_command(backend_id))
}

/// Parses the response to [`both_commands`]; `None` if the backend no longer has this ID.
///
/// # Errors
///
/// [`InvalidResponse`] as for [`Servers::read`] and [`Servers::slots`].
pub fn slots_of_backend(
    response: &str,
    backend: &str,
    backend_id: &str,
) -> Result<Option<Vec<Slot>>, InvalidResponse> {
    let end = response.find("\n\n").ok_or(InvalidResponse::Truncated)?;
    let (servers, statistics) = response.split_at(end + 2);
    let servers = Servers::read(servers, backend)?;
    if servers.backend_id != backend_id {
        return Ok(None);
    }
    servers.slots(statistics).map(Some)
}

/// Response to `show servers state <backend>`.
#[derive(Debug)]
pub struct Servers<'a> {
    /// Numeric ID of the backend (`be_id`).
    pub backend_id: &'a str,
    columns: Vec<&'a str>,
    lines: Vec<Vec<&'a str>>,
}

impl<'a> Servers<'a> {
    /// Parses the response.
    ///
    /// # Errors
    ///
    /// [`InvalidResponse`] if it is not a complete list of the backend's servers.
    pub fn read(response: &'a str, backend: &str) -> Result<Self, InvalidResponse> {
        let mut lines = response.lines();
        let head = lines.find_map(|line| line.strip_prefix("# "));
        let columns: Vec<&str> = head.unwrap_or_default().split_whitespace().collect();
        if columns.first() != Some(&"be_id") {
            let first = response.trim().lines().next().unwrap_or_default();
            let line = first.chars().take(MESSAGE_MAX).collect();
            return Err(InvalidResponse::Unexpected { backend: backend.to_owned(), line });
        }
        if !response.ends_with("\n\n") {
            return Err(InvalidResponse::Truncated);
        }
        let servers: Vec<Vec<&str>> = lines
            .take_while(|line| !line.trim().is_empty())
            .map(|line| line.split_whitespace().collect())
            .collect();
        let id = servers.first().and_then(|line| line.first());
        let backend_id =
            id.ok_or_else(|| InvalidResponse::NoServers { backend: backend.to_owned() })?;
        Ok(Self { backend_id, columns, lines: servers })
    }

    /// Returns the servers with their sessions, from the response to [`statistics_command`].
    ///
    /// # Errors
    ///
    /// [`InvalidResponse`] if a value of a server is missing or invalid.
    pub fn slots(&self, statistics: &str) -> Result<Vec<Slot>, InvalidResponse> {
        let sessions = sessions(statistics)?;
        let servers = self.lines.iter().map(|values| Server { columns: &self.columns, values });
        servers.map(|server| server.slot(&sessions)).collect()
    }
}

/// One line of the servers' state.
struct Server<'a> {
    columns: &'a [&'a str],
    values: &'a [&'a str],
}

impl Server<'_> {
    fn value(&self, column: &'static str) -> Result<&str, InvalidResponse> {
        let index = self.columns.iter().position(|name| *name == column);
        let value = index.and_then(|index| self.values.get(index));
        value.copied().ok_or(InvalidResponse::MissingColumn { column })
    }

    fn number(&self, column: &'static str) -> Result<u32, InvalidResponse> {
        self.value(column)?.parse().map_err(|_| InvalidResponse::InvalidValue { column })
    }

    fn slot(&self, sessions: &BTreeMap<&str, u64>) -> Result<Slot, InvalidResponse> {
        let name = self.value("srv_name")?;
        // An unknown number of sessions must not be read as 0.
        let sessions = sessions
            .get(name)
            .ok_or_else(|| InvalidResponse::MissingServer { server: name.to_owned() })?;
        Ok(Slot {
            name: name.to_owned(),
            address: self.value("srv_addr")?.parse().ok(),
            port: u16::try_from(self.number("srv_port")?).unwrap_or_default(),
            running: self.number("srv_op_state")? == RUNNING,
            admin: self.number("srv_admin_state")?,
            sessions: *sessions,
        })
    }
}

/// Parses the response to `show stat`: the number of current sessions by server.
fn sessions(statistics: &str) -> Result<BTreeMap<&str, u64>, InvalidResponse> {
    if !statistics.ends_with("\n\n") {
        return Err(InvalidResponse::Truncated);
    }
    let mut lines = statistics.lines();
    let head = lines.find_map(|line| line.strip_prefix("# "));
    let columns: Vec<&str> = head.unwrap_or_default().split(',').collect();
    let name = columns.iter().position(|column| *column == "svname");
    let current = columns.iter().position(|column| *column == "scur");
    let (name, current) = name.zip(current).ok_or(InvalidResponse::MissingStatistics)?;
    let mut sessions = BTreeMap::new();
    for line in lines.take_while(|line| !line.trim().is_empty()) {
        let values: Vec<&str> = line.split(',').collect();
        let server = values.get(name).zip(values.get(current));
        let (server, count) = server.ok_or(InvalidResponse::IncompleteStatistics)?;
        sessions.insert(*server, count.parse().map_err(|_| InvalidResponse::InvalidSessions)?);
    }
    Ok(sessions)
}
