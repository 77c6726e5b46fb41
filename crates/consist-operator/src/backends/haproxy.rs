//! Backend `haproxy`: servers and sessions as HAProxy's Runtime API reports them, and the commands
//! that bring them to the desired state.
//!
//! A Pod is assigned to a free slot of a `server-template` and drained in it; the requests in
//! flight are the sessions that HAProxy counts for the slot.

pub mod reader;
pub mod response;

use std::net::IpAddr;

use serde::Deserialize;

use super::{BackendError, DesiredMember, Employer, TrafficByPod, check_allowed};
use crate::traffic::{DesiredTraffic, InFlight, Traffic};

/// Maximum length of an unexpected response in a message, in characters.
const MESSAGE_MAX: usize = 80;
/// Maximum number of commands in one request; the line must fit into HAProxy's buffer of 16 KiB.
const COMMANDS_MAX: usize = 50;
/// Texts that acknowledge a command; others return empty lines.
const ACKNOWLEDGEMENTS: [&str; 3] = ["IP changed", "no need to change", "port changed"];
/// Bits of `srv_admin_state`: any maintenance in force.
const MAINTENANCE: u32 = 0x01 | 0x02 | 0x20 | 0x40;
/// Bits of `srv_admin_state`: any drain in force.
const DRAIN: u32 = 0x08 | 0x10;

/// Content of the annotation `backend-params`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Params {
    /// Runtime APIs of all instances: `tcp://<address>:<port>` or `unix://<path>`.
    pub instances: Vec<String>,
    /// Name of the backend in HAProxy's configuration.
    pub backend: String,
    /// Port of the Pods.
    pub port: u16,
}

impl Params {
    /// Parses the parameters of an employer. `allowed` are the backends that employers may use, as
    /// patterns `<namespace>/<instance>/<backend>` for [`check_allowed`]: all servers of a backend
    /// that are not Pods of the employer are cleared.
    ///
    /// # Errors
    ///
    /// [`BackendError::InvalidParams`] if they are invalid or not allowed.
    pub fn read(employer: &Employer, allowed: &[String]) -> Result<Self, BackendError> {
        let params: Self = employer.params()?;
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
            if !is_canonical(instance) {
                return Err(BackendError::InvalidParams(format!(
                    "backend-params.instances: the port of {instance} must be a number without \
                     leading zeros"
                )));
            }
            let resource = format!("{instance}/{}", params.backend);
            check_allowed(allowed, &employer.namespace, &resource, "--haproxy-backends")?;
        }
        Ok(params)
    }

    /// Returns the names of the employer's exclusive backends, one for each instance.
    #[must_use]
    pub fn exclusive_backends(&self) -> Vec<String> {
        self.instances.iter().map(|instance| format!("{} at {instance}", self.backend)).collect()
    }
}

/// Returns whether an instance is written in its canonical form; any other form would be a second
/// instance.
fn is_canonical(instance: &str) -> bool {
    let Some(address) = instance.strip_prefix("tcp://") else { return true };
    let port = address.rsplit_once(':').map_or("", |(_, port)| port);
    port.parse::<u16>().is_ok_and(|number| number.to_string() == port)
}

/// Returns whether a character of a backend name is safe in a command.
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_.:-".contains(c)
}

/// Merges the observation of one instance into that of the others.
pub fn merge(observed: &mut TrafficByPod, instance: TrafficByPod) {
    for (uid, traffic) in instance {
        let combined = observed.get(&uid).map_or(traffic, |known| known.combine(traffic));
        observed.insert(uid, combined);
    }
}

/// A server slot of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
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

    /// Returns whether a Pod that should serve has this slot.
    fn should_serve(&self, members: &[DesiredMember], port: u16) -> bool {
        let mut serving = members.iter().filter(|pod| pod.traffic == DesiredTraffic::Serve);
        serving.any(|pod| self.is_assigned_to(pod, port))
    }

    /// Returns the next state change that drains the slot, if one is due.
    fn next_drain_step(&self) -> Option<&'static str> {
        match (self.admin & MAINTENANCE != 0, self.admin & DRAIN != 0) {
            (true, _) => None,
            (_, true) if self.sessions > 0 => None,
            (_, true) => Some("state maint"),
            _ => Some("state drain"),
        }
    }

    /// Returns the traffic of the slot's Pod.
    fn traffic(&self) -> Traffic {
        match (self.admin & MAINTENANCE != 0, self.admin & DRAIN != 0) {
            (true, _) if self.sessions == 0 => Traffic::Absent,
            (true, _) | (_, true) => Traffic::Draining(InFlight::Count(self.sessions)),
            _ if self.running => Traffic::Serving,
            _ => Traffic::Unhealthy,
        }
    }
}

/// Returns the traffic of a Pod, combined over all slots with its address: at any port, because
/// `port` may have been changed.
fn traffic(slots: &[Slot], pod: &DesiredMember) -> Traffic {
    let assigned = slots.iter().filter(|slot| slot.has_address_of(pod));
    assigned.map(Slot::traffic).fold(Traffic::Absent, Traffic::combine)
}

/// Returns the traffic of all Pods at one instance.
#[must_use]
pub fn observe(slots: &[Slot], members: &[DesiredMember]) -> TrafficByPod {
    members.iter().map(|member| (member.uid.clone(), traffic(slots, member))).collect()
}

/// Commands that bring one instance to the desired state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commands {
    commands: Vec<String>,
    /// True if a Pod that should serve gets no slot.
    pub is_full: bool,
}

impl Commands {
    /// Returns the commands as requests, each of which fits into HAProxy's buffer.
    #[must_use]
    pub fn requests(&self) -> Vec<String> {
        self.commands.chunks(COMMANDS_MAX).map(|commands| commands.join(";")).collect()
    }

    fn set(&mut self, params: &Params, slot: &Slot, change: &str) {
        self.commands.push(format!("set server {}/{} {change}", params.backend, slot.name));
    }

    /// Drains a slot by one step, if one is due.
    fn drain(&mut self, params: &Params, slot: &Slot) {
        if let Some(change) = slot.next_drain_step() {
            self.set(params, slot, change);
        }
    }
}

/// Decides the commands that bring one instance from its observed slots to the desired state.
#[must_use]
pub fn commands(slots: &[Slot], params: &Params, members: &[DesiredMember]) -> Commands {
    let mut planned = Commands::default();
    let mut free = slots.iter().filter(|slot| {
        slot.is_free() && !members.iter().any(|pod| slot.is_assigned_to(pod, params.port))
    });
    for pod in members.iter().filter(|pod| pod.traffic == DesiredTraffic::Serve) {
        // Two operators may each have assigned a slot: keep one, preferably one in service.
        let mut assigned: Vec<&Slot> =
            slots.iter().filter(|slot| slot.is_assigned_to(pod, params.port)).collect();
        assigned.sort_by_key(|slot| slot.is_in_maintenance_or_drain());
        match (assigned.split_first(), pod.addresses.first()) {
            (Some((slot, surplus)), _) => {
                if slot.is_in_maintenance_or_drain() {
                    planned.set(params, slot, "state ready");
                }
                for slot in surplus {
                    planned.drain(params, slot);
                }
            }
            (None, Some(address)) => match free.next() {
                Some(slot) => {
                    planned.set(params, slot, &format!("addr {address} port {}", params.port));
                    planned.set(params, slot, "state ready");
                }
                None => planned.is_full = true,
            },
            (None, None) => {}
        }
    }
    // Drain Pods that should be off, and slots without a member: of a deleted Pod, or restored by a
    // restart of HAProxy. A slot stays in service if a Pod that should serve reused its address.
    for slot in slots.iter().filter(|slot| !slot.should_serve(members, params.port)) {
        planned.drain(params, slot);
    }
    planned
}

/// Returns the error of an instance without a free slot for a Pod.
#[must_use]
pub fn no_free_slot(instance: &str, params: &Params, slots: usize) -> BackendError {
    let backend = &params.backend;
    BackendError::InvalidParams(format!(
        "haproxy at {instance}: backend {backend} has no free slot ({slots} slots)"
    ))
}

/// Returns the error of an instance that rejected a command: the first line of the response that is
/// not an acknowledgement, bounded because users see it.
#[must_use]
pub fn rejection(instance: &str, response: &str) -> Option<BackendError> {
    let rejected = response.lines().find(|line| {
        !line.trim().is_empty() && !ACKNOWLEDGEMENTS.iter().any(|text| line.contains(text))
    })?;
    let rejected: String = rejected.chars().take(MESSAGE_MAX).collect();
    Some(BackendError::InvalidResponse(format!("haproxy at {instance}: {rejected:?}")))
}

#[cfg(test)]
mod tests;
