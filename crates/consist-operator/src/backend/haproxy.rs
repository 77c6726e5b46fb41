//! HAProxy's Runtime API: Pods get slots of a `server-template`, are drained in them, and the sessions
//! that HAProxy counts are what is still in flight.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use serde::Deserialize;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpStream, UnixStream},
    time::timeout,
};

use super::{Answer, Backend, Employer, Fault, Seen, Wanted};
use crate::{plan::Want, view::Traffic};

/// How long one exchange may take.
const EXCHANGE: Duration = Duration::from_secs(2);
/// The longest answer that is read.
const ANSWER_MAX: u64 = 4 << 20;
/// How many commands go into one exchange; its line must fit into HAProxy's buffer of 16 KiB.
const COMMANDS_MAX: usize = 50;
/// Bits of a server's administrative state: any maintenance that is in force, and any drain.
const MAINTENANCE: u32 = 0x01 | 0x02 | 0x20 | 0x40;
const DRAIN: u32 = 0x08 | 0x10;
/// The operational state of a server that is up.
const RUNNING: u32 = 2;

/// The annotation's content.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Params {
    /// Where the Runtime APIs of all instances are: `tcp://<address>:<port>` or `unix://<path>`.
    instances: Vec<String>,
    /// The name of the backend in HAProxy's configuration.
    backend: String,
    /// The port of the Pods.
    port: u16,
}

/// Drives HAProxy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Haproxy;

impl Backend for Haproxy {
    fn pass<'a>(&'a self, employer: &'a Employer, wanted: &'a [Wanted]) -> Answer<'a> {
        Box::pin(async move {
            let params: Params = serde_json::from_value(employer.params.clone())
                .map_err(|error| Fault::Params(error.to_string()))?;
            if params.instances.is_empty() {
                return Err(Fault::Params("instances: there are none".to_owned()));
            }
            let mut seen = Seen::new();
            for instance in &params.instances {
                let here = at_one(instance, &params, wanted).await?;
                merge(&mut seen, here, wanted);
            }
            Ok(seen)
        })
    }
}

/// Brings about what is wanted at one instance, and looks.
async fn at_one(instance: &str, params: &Params, wanted: &[Wanted]) -> Result<Seen, Fault> {
    let mut slots = look(instance, &params.backend).await?;
    let commands = commands(&slots, params, wanted);
    for commands in commands.chunks(COMMANDS_MAX) {
        let commands = commands.join(";");
        let said = ask(instance, &commands).await?;
        tracing::debug!(instance, commands, said = said.trim(), "Told HAProxy");
    }
    if !commands.is_empty() {
        slots = look(instance, &params.backend).await?;
    }
    Ok(wanted.iter().map(|w| (w.uid.clone(), traffic(&slots, params.port, w))).collect())
}

async fn look(instance: &str, backend: &str) -> Result<Vec<Slot>, Fault> {
    let garbage = |fault| Fault::Garbage(format!("haproxy at {instance}: {fault}"));
    let servers = ask(instance, &format!("show servers state {backend}")).await?;
    let servers = Servers::read(&servers, backend).map_err(garbage)?;
    // By its number, as a frontend may have the same name.
    let statistics = ask(instance, &format!("show stat {} 4 -1", servers.backend)).await?;
    servers.slots(&statistics).map_err(garbage)
}

/// What all instances together say of a Pod: the worst for what is wanted of it.
fn merge(seen: &mut Seen, here: Seen, wanted: &[Wanted]) {
    for (uid, there) in here {
        let serve = wanted.iter().any(|w| w.uid == uid && w.want == Want::Serve);
        let both = match (seen.get(&uid).copied(), there) {
            (None, there) => there,
            (Some(Traffic::Serving), there) if serve => there,
            (Some(known), _) if serve => known,
            (Some(Traffic::Draining(a)), Traffic::Draining(b)) => {
                Traffic::Draining(a.zip(b).map(|(a, b)| a + b))
            }
            (Some(known), Traffic::Absent) => known,
            (Some(Traffic::Absent), there) => there,
            (Some(_), _) => Traffic::Serving,
        };
        seen.insert(uid, both);
    }
}

/// A slot of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Slot {
    name: String,
    address: Option<IpAddr>,
    port: u16,
    running: bool,
    admin: u32,
    sessions: u64,
}

impl Slot {
    fn holds(&self, pod: &Wanted, port: u16) -> bool {
        self.port == port && self.address.is_some_and(|a| pod.addresses.contains(&a))
    }

    fn is_free(&self) -> bool {
        self.admin & MAINTENANCE != 0 && self.sessions == 0
    }
}

fn traffic(slots: &[Slot], port: u16, pod: &Wanted) -> Traffic {
    let Some(slot) = slots.iter().find(|slot| slot.holds(pod, port)) else {
        return Traffic::Absent;
    };
    match (slot.admin & MAINTENANCE != 0, slot.admin & DRAIN != 0) {
        (true, _) if slot.sessions == 0 => Traffic::Absent,
        (true, _) | (_, true) => Traffic::Draining(Some(slot.sessions)),
        _ if slot.running => Traffic::Serving,
        _ => Traffic::Unhealthy,
    }
}

/// What has to be said so that what is wanted comes about.
fn commands(slots: &[Slot], params: &Params, wanted: &[Wanted]) -> Vec<String> {
    let server = |slot: &Slot| format!("{}/{}", params.backend, slot.name);
    let held = |slot: &Slot| wanted.iter().any(|pod| slot.holds(pod, params.port));
    let mut free = slots.iter().filter(|slot| slot.is_free() && !held(slot));
    let mut commands = Vec::new();
    for pod in wanted {
        let slot = slots.iter().find(|slot| slot.holds(pod, params.port));
        match (pod.want, slot) {
            (Want::Serve, Some(slot)) if slot.admin & (MAINTENANCE | DRAIN) != 0 => {
                commands.push(format!("set server {} state ready", server(slot)));
            }
            (Want::Serve, None) => {
                let (Some(slot), Some(address)) = (free.next(), pod.addresses.first()) else {
                    continue;
                };
                let server = server(slot);
                commands.push(format!("set server {server} addr {address} port {}", params.port));
                commands.push(format!("set server {server} state ready"));
            }
            (Want::Off, Some(slot)) if slot.admin & (MAINTENANCE | DRAIN) == 0 => {
                commands.push(format!("set server {} state drain", server(slot)));
            }
            // Its sessions have ended: the slot can be another Pod's.
            (Want::Off, Some(slot)) if slot.admin & MAINTENANCE == 0 && slot.sessions == 0 => {
                commands.push(format!("set server {} state maint", server(slot)));
            }
            _ => {}
        }
    }
    // Who is in a slot and is nobody's: a Pod that is gone, or a restart's leftover.
    let strangers = slots.iter().filter(|slot| slot.admin & MAINTENANCE == 0 && !held(slot));
    commands.extend(strangers.map(|slot| format!("set server {} state maint", server(slot))));
    commands
}

/// The states of a backend's servers, as HAProxy writes them.
struct Servers<'a> {
    /// The number of the backend.
    backend: &'a str,
    columns: Vec<&'a str>,
    lines: Vec<Vec<&'a str>>,
}

impl<'a> Servers<'a> {
    fn read(answer: &'a str, backend: &str) -> Result<Self, String> {
        let mut lines = answer.lines();
        let head = lines.find_map(|line| line.strip_prefix("# "));
        let columns: Vec<&str> = head.unwrap_or_default().split_whitespace().collect();
        if columns.first() != Some(&"be_id") {
            return Err(first_line(answer, backend));
        }
        let lines = lines.take_while(|line| !line.trim().is_empty());
        let lines: Vec<Vec<&str>> = lines.map(|line| line.split_whitespace().collect()).collect();
        let number = lines.first().and_then(|line| line.first());
        let number = number.ok_or_else(|| format!("{backend}: it has no servers"))?;
        Ok(Self { backend: number, columns, lines })
    }

    fn slots(&self, statistics: &str) -> Result<Vec<Slot>, String> {
        let sessions = sessions(statistics)?;
        self.lines.iter().map(|line| self.slot(line, &sessions)).collect()
    }

    fn slot(&self, line: &[&str], sessions: &BTreeMap<&str, u64>) -> Result<Slot, String> {
        let value = |name: &str| {
            let place = self.columns.iter().position(|column| *column == name);
            let value = place.and_then(|place| line.get(place)).copied();
            value.ok_or_else(|| format!("servers have no {name}"))
        };
        let number = |name: &str| {
            value(name)?.parse::<u32>().map_err(|_| format!("{name} of a server is no number"))
        };
        let name = value("srv_name")?;
        // Not to know how many there are is not to know that there are none.
        let sessions = sessions.get(name).ok_or_else(|| format!("no statistics of {name}"))?;
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

/// Reads how many sessions each server has.
fn sessions(statistics: &str) -> Result<BTreeMap<&str, u64>, String> {
    let mut lines = statistics.lines();
    let head = lines.find_map(|line| line.strip_prefix("# "));
    let columns: Vec<&str> = head.unwrap_or_default().split(',').collect();
    let place = |name: &str| columns.iter().position(|column| *column == name);
    let (name, current) =
        place("svname").zip(place("scur")).ok_or("the statistics lack columns")?;
    let lines = lines.take_while(|line| !line.trim().is_empty());
    let read = lines.map(|line| {
        let values: Vec<&str> = line.split(',').collect();
        let (name, count) = values.get(name).zip(values.get(current)).ok_or("a line is short")?;
        let count = count.parse().map_err(|_| "sessions are no number")?;
        Ok((*name, count))
    });
    read.collect()
}

/// What was said instead: in bounds, as it is shown to people.
fn first_line(answer: &str, backend: &str) -> String {
    let line: String = answer.trim().lines().next().unwrap_or_default().chars().take(80).collect();
    format!("{backend}: {line:?}")
}

/// Says something, and reads what is answered.
async fn ask(instance: &str, command: &str) -> Result<String, Fault> {
    let fault = |reason: String| Fault::Unreachable(format!("haproxy at {instance}: {reason}"));
    let answer = async {
        if let Some(address) = instance.strip_prefix("tcp://") {
            exchange(TcpStream::connect(address).await?, command).await
        } else if let Some(path) = instance.strip_prefix("unix://") {
            exchange(UnixStream::connect(path).await?, command).await
        } else {
            Err(std::io::Error::other("an instance is tcp://<address>:<port> or unix://<path>"))
        }
    };
    match timeout(EXCHANGE, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(fault(error.to_string())),
        Err(_) => Err(fault(format!("no answer within {} s", EXCHANGE.as_secs()))),
    }
}

async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    command: &str,
) -> std::io::Result<String> {
    stream.write_all(format!("{command}\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.take(ANSWER_MAX).read_to_string(&mut answer).await?;
    Ok(answer)
}

#[cfg(test)]
mod tests;
