//! Backend `haproxy`: programs HAProxy through its Runtime API.
//!
//! A Pod is assigned to a free slot of a `server-template` and drained in it; the requests in
//! flight are the sessions that HAProxy counts for the slot.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use futures::future::join_all;
use serde::Deserialize;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpStream, UnixStream},
    time::timeout,
};

use super::{
    Backend, BackendError, CircuitBreaker, DesiredMember, Employer, ExclusiveBackends, SyncFuture,
    SyncResult, TrafficByPod, check_allowed, combine,
};
use crate::{plan::DesiredTraffic, view::Traffic};

/// Timeout of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum length of a response that is read, in bytes.
const RESPONSE_MAX: u64 = 4 << 20;
/// Maximum length of an unexpected response in a message, in characters.
const MESSAGE_MAX: usize = 80;
/// Error for a response without its terminating empty line: the missing part may be relevant.
const TRUNCATED: &str = "response is truncated";
/// Maximum number of commands in one request; the line must fit into HAProxy's buffer of 16 KiB.
const COMMANDS_MAX: usize = 50;
/// Bits of `srv_admin_state`: any maintenance in force.
const MAINTENANCE: u32 = 0x01 | 0x02 | 0x20 | 0x40;
/// Bits of `srv_admin_state`: any drain in force.
const DRAIN: u32 = 0x08 | 0x10;
/// `srv_op_state` of a server that is up.
const RUNNING: u32 = 2;

/// Content of the annotation `backend-params`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Params {
    /// Runtime APIs of all instances: `tcp://<address>:<port>` or `unix://<path>`.
    instances: Vec<String>,
    /// Name of the backend in HAProxy's configuration.
    backend: String,
    /// Port of the Pods.
    port: u16,
}

/// The backend `haproxy`.
#[derive(Debug, Default)]
pub struct Haproxy {
    /// Instances that employers may use, as patterns for [`check_allowed`]: a Runtime API gives
    /// full control of its HAProxy.
    allowed: Vec<String>,
    exclusive_backends: ExclusiveBackends,
    circuit_breaker: CircuitBreaker,
    backend_ids: BackendIds,
}

/// Known numeric IDs of backends (`be_id`), by instance and backend name.
type BackendIds = Mutex<BTreeMap<(String, String), String>>;

impl Haproxy {
    /// Creates the backend for these instances, as `<namespace>/<instance>`.
    #[must_use]
    pub fn new(allowed: Vec<String>) -> Self {
        Self { allowed, ..Self::default() }
    }

    fn params(&self, employer: &Employer) -> Result<Params, BackendError> {
        let params: Params = employer.params()?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_.:-".contains(c);
        if params.backend.is_empty() || !params.backend.chars().all(is_plain) {
            return Err(BackendError::InvalidParams(
                "backend-params.backend: invalid HAProxy backend name".to_owned(),
            ));
        }
        if params.instances.is_empty() {
            return Err(BackendError::InvalidParams(
                "backend-params.instances: must not be empty".to_owned(),
            ));
        }
        for instance in &params.instances {
            check_allowed(&self.allowed, &employer.namespace, instance, "--haproxy-instances")?;
        }
        Ok(params)
    }

    async fn sync_all(
        &self,
        employer: &Employer,
        members: &[DesiredMember],
    ) -> Result<SyncResult, BackendError> {
        let params = self.params(employer)?;
        let backends: Vec<String> =
            params.instances.iter().map(|at| format!("{} at {at}", params.backend)).collect();
        self.exclusive_backends.claim(employer, &backends)?;
        // An unreachable instance must not prevent changes on the others.
        let syncs = params.instances.iter().map(|at| self.sync_instance(at, &params, members));
        let mut result = SyncResult::default();
        for sync in join_all(syncs).await {
            merge(&mut result.observed, sync.observed, members);
            result.error = result.error.or(sync.error);
            result.unfulfilled = result.unfulfilled.or(sync.unfulfilled);
        }
        Ok(result)
    }

    /// Applies the desired state at one instance and observes the result.
    async fn sync_instance(
        &self,
        instance: &str,
        params: &Params,
        members: &[DesiredMember],
    ) -> SyncResult {
        let read = || read_slots(instance, &params.backend, &self.backend_ids);
        let mut slots = match self.circuit_breaker.call(instance, read()).await {
            Ok(slots) => slots,
            Err(error) => return error.into(),
        };
        let Commands { commands, is_full } = commands(&slots, params, members);
        let count = slots.len();
        let no_slot = || {
            let backend = &params.backend;
            format!("haproxy at {instance}: backend {backend} has no free slot ({count} slots)")
        };
        let unfulfilled = is_full.then(|| BackendError::InvalidParams(no_slot()));
        let mut error = None;
        if !commands.is_empty() {
            if let Err(rejected) = execute(instance, &commands).await {
                error = Some(rejected);
            }
            slots = match read().await {
                Ok(slots) => slots,
                Err(error) => return SyncResult::unobserved(members, error),
            };
        }
        let observed =
            members.iter().map(|member| (member.uid.clone(), traffic(&slots, member))).collect();
        SyncResult { observed, error, unfulfilled }
    }
}

impl Backend for Haproxy {
    fn release(&self, employer: &str) {
        self.exclusive_backends.release(employer);
    }

    fn sync<'a>(&'a self, employer: &'a Employer, members: &'a [DesiredMember]) -> SyncFuture<'a> {
        Box::pin(async move { self.sync_all(employer, members).await.into() })
    }
}

async fn execute(instance: &str, commands: &[String]) -> Result<(), BackendError> {
    for commands in commands.chunks(COMMANDS_MAX) {
        let commands = commands.join(";");
        let response = request(instance, &commands).await?;
        tracing::debug!(instance, commands, response = response.trim(), "HAProxy commands sent");
        // Only a change of address is acknowledged with text; other commands return empty lines.
        let rejected = response.lines().find(|line| {
            let known = ["IP changed", "no need to change", "port changed"];
            !line.trim().is_empty() && !known.iter().any(|known| line.contains(known))
        });
        if let Some(rejected) = rejected {
            let rejected: String = rejected.chars().take(MESSAGE_MAX).collect();
            return Err(BackendError::InvalidResponse(format!(
                "haproxy at {instance}: {rejected:?}"
            )));
        }
    }
    Ok(())
}

/// Reads the servers of a backend and their statistics, in one request once the ID of the backend
/// is known. The ID is needed because a frontend may have the same name.
async fn read_slots(
    instance: &str,
    backend: &str,
    backend_ids: &BackendIds,
) -> Result<Vec<Slot>, BackendError> {
    let invalid = |error| BackendError::InvalidResponse(format!("haproxy at {instance}: {error}"));
    let key = (instance.to_owned(), backend.to_owned());
    let known_id = backend_ids.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
    if let Some(id) = known_id {
        let both = format!("show servers state {backend};show stat {id} 4 -1");
        let both = request(instance, &both).await?;
        let end = both.find("\n\n").ok_or_else(|| invalid(TRUNCATED.to_owned()))?;
        let (servers, statistics) = both.split_at(end + 2);
        let servers = Servers::read(servers, backend).map_err(invalid)?;
        if servers.backend_id == id {
            return servers.slots(statistics).map_err(invalid);
        }
    }
    let servers = request(instance, &format!("show servers state {backend}")).await?;
    let servers = Servers::read(&servers, backend).map_err(invalid)?;
    let statistics = request(instance, &format!("show stat {} 4 -1", servers.backend_id)).await?;
    let slots = servers.slots(&statistics).map_err(invalid)?;
    let id = servers.backend_id.to_owned();
    backend_ids.lock().unwrap_or_else(PoisonError::into_inner).insert(key, id);
    Ok(slots)
}

/// Merges the observation of one instance into that of the others.
fn merge(observed: &mut TrafficByPod, instance: TrafficByPod, members: &[DesiredMember]) {
    for (uid, traffic) in instance {
        let serve = members
            .iter()
            .any(|member| member.uid == uid && member.traffic == DesiredTraffic::Serve);
        let combined = observed.get(&uid).map_or(traffic, |known| combine(*known, traffic, serve));
        observed.insert(uid, combined);
    }
}

/// A server slot of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Slot {
    name: String,
    address: Option<IpAddr>,
    port: u16,
    running: bool,
    /// `srv_admin_state`.
    admin: u32,
    /// Number of current sessions.
    sessions: u64,
}

impl Slot {
    fn has_address_of(&self, pod: &DesiredMember) -> bool {
        self.address.is_some_and(|a| pod.addresses.contains(&a))
    }

    fn is_assigned_to(&self, pod: &DesiredMember, port: u16) -> bool {
        self.port == port && self.has_address_of(pod)
    }

    fn is_free(&self) -> bool {
        self.admin & MAINTENANCE != 0 && self.sessions == 0
    }

    fn is_in_maintenance_or_drain(&self) -> bool {
        self.admin & (MAINTENANCE | DRAIN) != 0
    }
}

/// Returns the traffic of a slot's Pod.
fn slot_traffic(slot: &Slot) -> Traffic {
    match (slot.admin & MAINTENANCE != 0, slot.admin & DRAIN != 0) {
        (true, _) if slot.sessions == 0 => Traffic::Absent,
        (true, _) | (_, true) => Traffic::Draining(Some(slot.sessions)),
        _ if slot.running => Traffic::Serving,
        _ => Traffic::Unhealthy,
    }
}

/// Returns the traffic of a Pod, combined over all slots with its address: at any port, because
/// `port` may have been changed.
fn traffic(slots: &[Slot], pod: &DesiredMember) -> Traffic {
    let assigned = slots.iter().filter(|slot| slot.has_address_of(pod)).map(slot_traffic);
    let serve = pod.traffic == DesiredTraffic::Serve;
    assigned.fold(Traffic::Absent, |first, second| combine(first, second, serve))
}

/// Commands that bring one instance to the desired state.
struct Commands {
    commands: Vec<String>,
    /// True if a Pod that should serve gets no slot.
    is_full: bool,
}

fn commands(slots: &[Slot], params: &Params, members: &[DesiredMember]) -> Commands {
    let server = |slot: &Slot| format!("{}/{}", params.backend, slot.name);
    let should_serve = |slot: &Slot| {
        members.iter().any(|pod| {
            pod.traffic == DesiredTraffic::Serve && slot.is_assigned_to(pod, params.port)
        })
    };
    let is_assigned = |slot: &Slot| members.iter().any(|pod| slot.is_assigned_to(pod, params.port));
    let mut free = slots.iter().filter(|slot| slot.is_free() && !is_assigned(slot));
    let (mut commands, mut is_full) = (Vec::new(), false);
    let mut set = |slot: &Slot, change: &str| {
        commands.push(format!("set server {} {change}", server(slot)));
    };
    for pod in members.iter().filter(|pod| pod.traffic == DesiredTraffic::Serve) {
        // Two operators may each have assigned a slot: keep one, preferably one in service.
        let mut assigned: Vec<&Slot> =
            slots.iter().filter(|slot| slot.is_assigned_to(pod, params.port)).collect();
        assigned.sort_by_key(|slot| slot.is_in_maintenance_or_drain());
        match (assigned.split_first(), pod.addresses.first()) {
            (Some((slot, surplus)), _) => {
                if slot.is_in_maintenance_or_drain() {
                    set(slot, "state ready");
                }
                let drains = surplus.iter().filter_map(|slot| next_drain_step(slot));
                drains.for_each(|(slot, change)| set(slot, change));
            }
            (None, Some(address)) => match free.next() {
                Some(slot) => {
                    set(slot, &format!("addr {address} port {}", params.port));
                    set(slot, "state ready");
                }
                None => is_full = true,
            },
            (None, None) => {}
        }
    }
    // Drain Pods that should be off, and slots without a member: of a deleted Pod, or restored by a
    // restart of HAProxy. A slot stays in service if a Pod that should serve reused its address.
    let drains = slots.iter().filter(|slot| !should_serve(slot)).filter_map(next_drain_step);
    drains.for_each(|(slot, change)| set(slot, change));
    Commands { commands, is_full }
}

/// Returns the next state change that drains a slot, if one is due.
fn next_drain_step(slot: &Slot) -> Option<(&Slot, &'static str)> {
    match (slot.admin & MAINTENANCE != 0, slot.admin & DRAIN != 0) {
        (true, _) => None,
        (_, true) if slot.sessions > 0 => None,
        (_, true) => Some((slot, "state maint")),
        _ => Some((slot, "state drain")),
    }
}

/// Response to `show servers state <backend>`.
struct Servers<'a> {
    /// Numeric ID of the backend (`be_id`).
    backend_id: &'a str,
    columns: Vec<&'a str>,
    lines: Vec<Vec<&'a str>>,
}

impl<'a> Servers<'a> {
    fn read(response: &'a str, backend: &str) -> Result<Self, String> {
        let mut lines = response.lines();
        let head = lines.find_map(|line| line.strip_prefix("# "));
        let columns: Vec<&str> = head.unwrap_or_default().split_whitespace().collect();
        if columns.first() != Some(&"be_id") {
            return Err(unexpected_response(response, backend));
        }
        if !response.ends_with("\n\n") {
            return Err(TRUNCATED.to_owned());
        }
        let lines = lines.take_while(|line| !line.trim().is_empty());
        let lines: Vec<Vec<&str>> = lines.map(|line| line.split_whitespace().collect()).collect();
        let id = lines.first().and_then(|line| line.first());
        let backend_id = id.ok_or_else(|| format!("backend {backend} has no servers"))?;
        Ok(Self { backend_id, columns, lines })
    }

    fn slots(&self, statistics: &str) -> Result<Vec<Slot>, String> {
        let sessions = sessions(statistics)?;
        self.lines.iter().map(|line| self.slot(line, &sessions)).collect()
    }

    fn slot(&self, line: &[&str], sessions: &BTreeMap<&str, u64>) -> Result<Slot, String> {
        let value = |name: &str| {
            let index = self.columns.iter().position(|column| *column == name);
            let value = index.and_then(|index| line.get(index)).copied();
            value.ok_or_else(|| format!("server state lacks {name}"))
        };
        let number = |name: &str| {
            value(name)?.parse::<u32>().map_err(|_| format!("server state: invalid {name}"))
        };
        let name = value("srv_name")?;
        // An unknown number of sessions must not count as none.
        let sessions =
            sessions.get(name).ok_or_else(|| format!("statistics lack server {name}"))?;
        Ok(Slot {
            name: name.to_owned(),
            address: value("srv_addr")?.parse().ok(),
            port: u16::try_from(number("srv_port")?).unwrap_or_default(),
            running: number("srv_op_state")? == RUNNING,
            admin: number("srv_admin_state")?,
            sessions: *sessions,
        })
    }
}

/// Parses the response to `show stat`: the number of current sessions by server.
fn sessions(statistics: &str) -> Result<BTreeMap<&str, u64>, String> {
    if !statistics.ends_with("\n\n") {
        return Err(TRUNCATED.to_owned());
    }
    let mut lines = statistics.lines();
    let head = lines.find_map(|line| line.strip_prefix("# "));
    let columns: Vec<&str> = head.unwrap_or_default().split(',').collect();
    let index = |name: &str| columns.iter().position(|column| *column == name);
    let (name, current) =
        index("svname").zip(index("scur")).ok_or("statistics lack svname or scur")?;
    let lines = lines.take_while(|line| !line.trim().is_empty());
    let counts = lines.map(|line| {
        let values: Vec<&str> = line.split(',').collect();
        let (name, count) =
            values.get(name).zip(values.get(current)).ok_or("statistics: incomplete line")?;
        let count = count.parse().map_err(|_| "statistics: invalid scur")?;
        Ok((*name, count))
    });
    counts.collect()
}

/// Returns a message with the first line of an unexpected response, bounded because users see it.
fn unexpected_response(response: &str, backend: &str) -> String {
    let line = response.trim().lines().next().unwrap_or_default();
    let line: String = line.chars().take(MESSAGE_MAX).collect();
    format!("backend {backend}: unexpected response {line:?}")
}

/// Sends commands to the Runtime API of an instance and returns the response.
async fn request(instance: &str, commands: &str) -> Result<String, BackendError> {
    let unreachable =
        |reason: String| BackendError::Unreachable(format!("haproxy at {instance}: {reason}"));
    let response = async {
        if let Some(address) = instance.strip_prefix("tcp://") {
            exchange(TcpStream::connect(address).await?, commands).await
        } else if let Some(path) = instance.strip_prefix("unix://") {
            exchange(UnixStream::connect(path).await?, commands).await
        } else {
            Err(std::io::Error::other("instance must be tcp://<address>:<port> or unix://<path>"))
        }
    };
    match timeout(REQUEST_TIMEOUT, response).await {
        Ok(Ok(response)) => Ok(response),
        Ok(Err(error)) => Err(unreachable(error.to_string())),
        Err(_) => Err(unreachable(format!("timeout after {REQUEST_TIMEOUT:?}"))),
    }
}

async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    commands: &str,
) -> std::io::Result<String> {
    stream.write_all(format!("{commands}\n").as_bytes()).await?;
    let mut response = String::new();
    stream.take(RESPONSE_MAX).read_to_string(&mut response).await?;
    Ok(response)
}

#[cfg(test)]
mod tests;
