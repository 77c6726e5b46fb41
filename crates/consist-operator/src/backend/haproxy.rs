//! HAProxy's Runtime API: Pods get slots of a `server-template`, are drained in them, and the sessions
//! that HAProxy counts are what is still in flight.

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
    Answer, Backend, BackendError, CircuitBreaker, Employer, ExclusiveBackends, SyncResult,
    TrafficByPod, Wanted, permit, together,
};
use crate::{plan::Want, view::Traffic};

/// How long one exchange may take.
const EXCHANGE: Duration = Duration::from_secs(2);
/// The longest answer that is read.
const ANSWER_MAX: u64 = 4 << 20;
/// How much of an answer that is none is shown to people.
const SHOWN_MAX: usize = 80;
/// What is said of an answer without its closing line: what is missing may be what matters.
const CUT_OFF: &str = "its answer was cut off";
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
#[derive(Debug, Default)]
pub struct Haproxy {
    /// Which instances employers may name, as [`permit`] has it: who can speak to a Runtime API can do
    /// anything to it.
    allowed: Vec<String>,
    exclusive_backends: ExclusiveBackends,
    circuit_breaker: CircuitBreaker,
    numbers: Numbers,
}

/// By which number each instance counts a backend, as far as that is known.
type Numbers = Mutex<BTreeMap<(String, String), String>>;

impl Haproxy {
    /// Drives these instances.
    #[must_use]
    pub fn new(allowed: Vec<String>) -> Self {
        Self { allowed, ..Self::default() }
    }

    fn params(&self, employer: &Employer) -> Result<Params, BackendError> {
        let params: Params = employer.params()?;
        let plain = |c: char| c.is_ascii_alphanumeric() || "_.:-".contains(c);
        if params.backend.is_empty() || !params.backend.chars().all(plain) {
            return Err(BackendError::Params(
                "backend-params: backend is no name of one".to_owned(),
            ));
        }
        if params.instances.is_empty() {
            return Err(BackendError::Params("backend-params: there are no instances".to_owned()));
        }
        for instance in &params.instances {
            permit(&self.allowed, &employer.namespace, instance, "instances")?;
        }
        Ok(params)
    }

    async fn at_all(
        &self,
        employer: &Employer,
        wanted: &[Wanted],
    ) -> Result<SyncResult, BackendError> {
        let params = self.params(employer)?;
        let own: Vec<String> =
            params.instances.iter().map(|at| format!("{} at {at}", params.backend)).collect();
        self.exclusive_backends.claim(employer, &own)?;
        // One that does not answer keeps nobody from telling the others.
        let all = params.instances.iter().map(|at| self.at_one(at, &params, wanted));
        let mut sync = SyncResult::default();
        for here in join_all(all).await {
            merge(&mut sync.observed, here.observed, wanted);
            sync.fault = sync.fault.or(here.fault);
            sync.unfulfilled = sync.unfulfilled.or(here.unfulfilled);
        }
        Ok(sync)
    }

    /// Brings about what is wanted at one instance, and looks.
    async fn at_one(&self, instance: &str, params: &Params, wanted: &[Wanted]) -> SyncResult {
        let look = || look(instance, &params.backend, &self.numbers);
        let mut slots = match self.circuit_breaker.ask(instance, look()).await {
            Ok(slots) => slots,
            Err(fault) => return fault.into(),
        };
        let Commands { said, full } = commands(&slots, params, wanted);
        let no_slot = || format!("haproxy at {instance}: {} has no free slot", params.backend);
        let unfulfilled = full.then(|| BackendError::Params(no_slot()));
        let mut fault = None;
        if !said.is_empty() {
            if let Err(refused) = tell(instance, &said).await {
                fault = Some(refused);
            }
            slots = match look().await {
                Ok(slots) => slots,
                Err(fault) => return SyncResult::blind(wanted, fault),
            };
        }
        let observed = wanted.iter().map(|w| (w.uid.clone(), traffic(&slots, w))).collect();
        SyncResult { observed, fault, unfulfilled }
    }
}

impl Backend for Haproxy {
    fn release(&self, employer: &str) {
        self.exclusive_backends.release(employer);
    }

    fn sync<'a>(&'a self, employer: &'a Employer, wanted: &'a [Wanted]) -> Answer<'a> {
        Box::pin(async move { self.at_all(employer, wanted).await.into() })
    }
}

async fn tell(instance: &str, commands: &[String]) -> Result<(), BackendError> {
    for commands in commands.chunks(COMMANDS_MAX) {
        let commands = commands.join(";");
        let said = ask(instance, &commands).await?;
        tracing::debug!(instance, commands, said = said.trim(), "Told HAProxy");
        // A change of address is acknowledged in words, and everything else in none.
        let refused = said.lines().find(|line| {
            let known = ["IP changed", "no need to change", "port changed"];
            !line.trim().is_empty() && !known.iter().any(|known| line.contains(known))
        });
        if let Some(refused) = refused {
            let refused: String = refused.chars().take(SHOWN_MAX).collect();
            return Err(BackendError::Garbage(format!("haproxy at {instance}: {refused:?}")));
        }
    }
    Ok(())
}

/// What is said of servers and of their statistics: in one exchange, once it is known by which number
/// HAProxy counts the backend. A frontend may have the same name.
async fn look(instance: &str, backend: &str, numbers: &Numbers) -> Result<Vec<Slot>, BackendError> {
    let garbage = |fault| BackendError::Garbage(format!("haproxy at {instance}: {fault}"));
    let of = (instance.to_owned(), backend.to_owned());
    let known = numbers.lock().unwrap_or_else(PoisonError::into_inner).get(&of).cloned();
    if let Some(number) = known {
        let both = format!("show servers state {backend};show stat {number} 4 -1");
        let both = ask(instance, &both).await?;
        let end = both.find("\n\n").ok_or_else(|| garbage(CUT_OFF.to_owned()))?;
        let (servers, statistics) = both.split_at(end + 2);
        let servers = Servers::read(servers, backend).map_err(garbage)?;
        if servers.backend == number {
            return servers.slots(statistics).map_err(garbage);
        }
    }
    let servers = ask(instance, &format!("show servers state {backend}")).await?;
    let servers = Servers::read(&servers, backend).map_err(garbage)?;
    let statistics = ask(instance, &format!("show stat {} 4 -1", servers.backend)).await?;
    let slots = servers.slots(&statistics).map_err(garbage)?;
    let number = servers.backend.to_owned();
    numbers.lock().unwrap_or_else(PoisonError::into_inner).insert(of, number);
    Ok(slots)
}

/// What all instances together say of Pods.
fn merge(observed: &mut TrafficByPod, here: TrafficByPod, wanted: &[Wanted]) {
    for (uid, there) in here {
        let serve = wanted.iter().any(|w| w.uid == uid && w.want == Want::Serve);
        let both = observed.get(&uid).map_or(there, |known| together(*known, there, serve));
        observed.insert(uid, both);
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
    fn is_of(&self, pod: &Wanted) -> bool {
        self.address.is_some_and(|a| pod.addresses.contains(&a))
    }

    fn holds(&self, pod: &Wanted, port: u16) -> bool {
        self.port == port && self.is_of(pod)
    }

    fn is_free(&self) -> bool {
        self.admin & MAINTENANCE != 0 && self.sessions == 0
    }
}

/// What a slot's state means for the Pod that it holds.
fn state(slot: &Slot) -> Traffic {
    match (slot.admin & MAINTENANCE != 0, slot.admin & DRAIN != 0) {
        (true, _) if slot.sessions == 0 => Traffic::Absent,
        (true, _) | (_, true) => Traffic::Draining(Some(slot.sessions)),
        _ if slot.running => Traffic::Serving,
        _ => Traffic::Unhealthy,
    }
}

/// What all slots that hold a Pod say of it, at whatever port: another one may have been named before.
fn traffic(slots: &[Slot], pod: &Wanted) -> Traffic {
    let holding = slots.iter().filter(|slot| slot.is_of(pod)).map(state);
    holding.fold(Traffic::Absent, |one, other| together(one, other, pod.want == Want::Serve))
}

/// What has to be said so that what is wanted comes about.
struct Commands {
    said: Vec<String>,
    /// Whether a Pod is left without a slot.
    full: bool,
}

fn commands(slots: &[Slot], params: &Params, wanted: &[Wanted]) -> Commands {
    let server = |slot: &Slot| format!("{}/{}", params.backend, slot.name);
    let serving = |slot: &Slot| {
        wanted.iter().any(|pod| pod.want == Want::Serve && slot.holds(pod, params.port))
    };
    let held = |slot: &Slot| wanted.iter().any(|pod| slot.holds(pod, params.port));
    let mut free = slots.iter().filter(|slot| slot.is_free() && !held(slot));
    let (mut said, mut full) = (Vec::new(), false);
    let mut say = |slot: &Slot, what: &str| {
        said.push(format!("set server {} {what}", server(slot)));
    };
    for pod in wanted.iter().filter(|pod| pod.want == Want::Serve) {
        // Where two operators gave it a slot each, one is enough; the one that serves, if one does.
        let mut holding: Vec<&Slot> =
            slots.iter().filter(|slot| slot.holds(pod, params.port)).collect();
        holding.sort_by_key(|slot| slot.admin & (MAINTENANCE | DRAIN) != 0);
        match (holding.split_first(), pod.addresses.first()) {
            (Some((slot, surplus)), _) => {
                if slot.admin & (MAINTENANCE | DRAIN) != 0 {
                    say(slot, "state ready");
                }
                surplus.iter().filter_map(|slot| leave(slot)).for_each(|(s, what)| say(s, what));
            }
            (None, Some(address)) => match free.next() {
                Some(slot) => {
                    say(slot, &format!("addr {address} port {}", params.port));
                    say(slot, "state ready");
                }
                None => full = true,
            },
            (None, None) => {}
        }
    }
    // Pods that are to have no traffic; and who is in a slot and is nobody's: a Pod that is gone, or
    // what a restart left. One address may have passed on to a Pod that serves.
    let leaving = slots.iter().filter(|slot| !serving(slot)).filter_map(leave);
    leaving.for_each(|(slot, what)| say(slot, what));
    Commands { said, full }
}

/// The next step of a slot on its way to be empty.
fn leave(slot: &Slot) -> Option<(&Slot, &'static str)> {
    match (slot.admin & MAINTENANCE != 0, slot.admin & DRAIN != 0) {
        (true, _) => None,
        (_, true) if slot.sessions > 0 => None,
        (_, true) => Some((slot, "state maint")),
        _ => Some((slot, "state drain")),
    }
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
        if !answer.ends_with("\n\n") {
            return Err(CUT_OFF.to_owned());
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
    if !statistics.ends_with("\n\n") {
        return Err(CUT_OFF.to_owned());
    }
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
    let line = answer.trim().lines().next().unwrap_or_default();
    let line: String = line.chars().take(SHOWN_MAX).collect();
    format!("{backend}: {line:?}")
}

/// Says something, and reads what is answered.
async fn ask(instance: &str, command: &str) -> Result<String, BackendError> {
    let fault =
        |reason: String| BackendError::Unreachable(format!("haproxy at {instance}: {reason}"));
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
