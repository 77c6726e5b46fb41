//! What Envoys were served, what they acknowledged, and what they tell of it. Pure but for the lock.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

use super::{Fault, IpAddr, Nudge, Params, Pass, Traffic, Want, Wanted};

/// How long an Envoy that is away may still send traffic by what it knew: it tries again at least
/// every 30 s, by its own default.
const AWAY: Duration = Duration::from_secs(60);
/// An Envoy's threads hear of what it has acknowledged a little later: 7 ms were measured, under full load.
const THREADS: Duration = Duration::from_millis(100);

/// A fleet that servers and passes share.
pub(super) struct Shared {
    fleet: Mutex<Fleet>,
    /// Counts changes that Envoys have to hear of.
    news: watch::Sender<u64>,
    nudge: Nudge,
}

impl Shared {
    pub(super) fn new(fleet: Fleet, nudge: Nudge) -> Self {
        Self { fleet: Mutex::new(fleet), news: watch::channel(0).0, nudge }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Fleet> {
        self.fleet.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells servers of Envoys that something may have changed.
    pub(super) fn publish(&self) {
        self.news.send_modify(|count| *count += 1);
    }

    pub(super) fn news(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }

    /// Has an employer looked at.
    pub(super) fn nudge(&self, cluster: &str) {
        self.nudge.tell(cluster.to_owned());
    }
}

/// All Envoys and what they are served.
#[derive(Debug)]
pub(super) struct Fleet {
    /// Since when Envoys are served: before, they may know of Pods what nobody here does.
    since: Instant,
    clusters: BTreeMap<String, Cluster>,
    loads: BTreeMap<String, Load>,
}

/// The endpoints of one employer.
#[derive(Debug, Default)]
struct Cluster {
    /// None of it was decided yet at 0.
    version: u64,
    port: u16,
    endpoints: BTreeMap<IpAddr, Endpoint>,
    subscribers: BTreeMap<u64, Subscriber>,
    /// Envoys whose stream ended, and when.
    away: BTreeMap<String, Instant>,
    /// Whether every Envoy once knew just what is here.
    known: bool,
    /// Whether requests in flight are waited for.
    curious: bool,
}

#[derive(Debug)]
struct Endpoint {
    stage: Stage,
    /// The version that brought it to this stage.
    version: u64,
    /// Since when every Envoy has that version.
    acked: Option<Instant>,
    /// Whether it served at any time.
    served: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Healthy,
    Draining,
    /// Not in the list: with nobody healthy in it, Envoy sends traffic to who drains.
    Hidden,
}

#[derive(Debug)]
struct Subscriber {
    node: String,
    acked: u64,
    refused: Option<(u64, String)>,
}

/// What one Envoy told last of its requests.
#[derive(Debug, Default)]
struct Load {
    /// By cluster: when, and how many are in flight by address.
    clusters: BTreeMap<String, (Instant, BTreeMap<IpAddr, u64>)>,
}

/// One cluster as Envoys are served it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Assignment {
    pub(super) cluster: String,
    pub(super) version: u64,
    pub(super) port: u16,
    /// Addresses, and whether each drains.
    pub(super) endpoints: Vec<(IpAddr, bool)>,
}

impl Fleet {
    pub(super) fn new(since: Instant) -> Self {
        Self { since, clusters: BTreeMap::new(), loads: BTreeMap::new() }
    }

    /// Envoys are served from now on.
    pub(super) fn begin(&mut self, now: Instant) {
        self.since = now;
    }

    /// A stream asks for clusters, all that it wants by now.
    pub(super) fn subscribe(&mut self, stream: u64, node: &str, clusters: &BTreeSet<String>) {
        for name in clusters {
            let cluster = self.clusters.entry(name.clone()).or_default();
            cluster.away.remove(node);
            let new = || Subscriber { node: node.to_owned(), acked: 0, refused: None };
            cluster.subscribers.entry(stream).or_insert_with(new);
        }
        for (name, cluster) in &mut self.clusters {
            if !clusters.contains(name) {
                cluster.subscribers.remove(&stream);
            }
        }
    }

    /// A stream has ended; its Envoy goes on by what it knows.
    pub(super) fn lost(&mut self, stream: u64, now: Instant) -> Vec<String> {
        let mut of = Vec::new();
        for (name, cluster) in &mut self.clusters {
            if let Some(subscriber) = cluster.subscribers.remove(&stream) {
                let elsewhere = cluster.subscribers.values().any(|s| s.node == subscriber.node);
                if !elsewhere {
                    cluster.away.insert(subscriber.node, now);
                }
                of.push(name.clone());
            }
        }
        of
    }

    /// A stream has taken a version, or refuses it in these words.
    pub(super) fn answered(
        &mut self,
        stream: u64,
        (name, version): (&str, u64),
        refused: Option<String>,
        now: Instant,
    ) {
        let Some(cluster) = self.clusters.get_mut(name) else { return };
        if let Some(subscriber) = cluster.subscribers.get_mut(&stream) {
            match refused {
                Some(words) => subscriber.refused = Some((version, words)),
                None => subscriber.acked = subscriber.acked.max(version),
            }
        }
        cluster.settle(now);
    }

    /// What Envoys are to know of a cluster, once that is decided.
    pub(super) fn assignment(&self, name: &str) -> Option<Assignment> {
        let cluster = self.clusters.get(name).filter(|cluster| cluster.version > 0)?;
        let listed = cluster.endpoints.iter().filter(|(_, e)| e.stage != Stage::Hidden);
        Some(Assignment {
            cluster: name.to_owned(),
            version: cluster.version,
            port: cluster.port,
            endpoints: listed.map(|(ip, e)| (*ip, e.stage == Stage::Draining)).collect(),
        })
    }

    /// An Envoy begins to tell of its requests.
    pub(super) fn tells(&mut self, node: &str) {
        self.loads.entry(node.to_owned()).or_default();
    }

    /// An Envoy does not tell any more.
    pub(super) fn tells_no_more(&mut self, node: &str) {
        self.loads.remove(node);
    }

    /// An Envoy tells of a cluster's requests in flight; whether anybody waits for them.
    pub(super) fn told(
        &mut self,
        node: &str,
        cluster: &str,
        in_flight: BTreeMap<IpAddr, u64>,
        now: Instant,
    ) -> bool {
        let load = self.loads.entry(node.to_owned()).or_default();
        load.clusters.insert(cluster.to_owned(), (now, in_flight));
        self.clusters.get(cluster).is_some_and(|cluster| cluster.curious)
    }

    /// Whether Envoys are to tell of their requests.
    pub(super) fn is_curious(&self) -> bool {
        self.clusters.values().any(|cluster| cluster.curious)
    }

    /// Drops what is known of an employer's Pods; its Envoys keep what they know.
    pub(super) fn forget(&mut self, name: &str) {
        if let Some(cluster) = self.clusters.get_mut(name) {
            (cluster.endpoints, cluster.version, cluster.curious) = (BTreeMap::new(), 0, false);
            cluster.known = false;
            if cluster.subscribers.is_empty() {
                self.clusters.remove(name);
            }
        }
    }

    /// Brings about what is wanted, and says what is known to be so.
    pub(super) fn pass(
        &mut self,
        name: &str,
        params: &Params,
        wanted: &[Wanted],
        now: Instant,
    ) -> Pass {
        let cluster = self.clusters.entry(name.to_owned()).or_default();
        cluster.wish(params.port, wanted);
        cluster.settle(now);
        let tells = |s: &Subscriber| self.loads.get(&s.node);
        let loads: Option<Vec<&Load>> = cluster.subscribers.values().map(tells).collect();
        let known = Known { name, loads: loads.as_deref(), params, now };
        let mut seen = BTreeMap::new();
        for pod in wanted {
            let traffic = match pod.addresses.first() {
                Some(ip) => cluster.traffic(*ip, pod.want, &known),
                None => Some(Traffic::Absent),
            };
            seen.extend(traffic.map(|traffic| (pod.uid.clone(), traffic)));
        }
        let waits = |t: &Traffic| matches!(t, Traffic::Draining(Some(left)) if *left > 0);
        cluster.curious = seen.values().any(waits);
        Pass { seen, fault: cluster.fault(params, self.since, now) }
    }
}

/// What an endpoint is judged by.
struct Known<'a> {
    name: &'a str,
    /// What each Envoy tells; nothing if one of them does not.
    loads: Option<&'a [&'a Load]>,
    params: &'a Params,
    now: Instant,
}

impl Cluster {
    /// Moves endpoints to the stages that are wanted, as one new version if any moves.
    fn wish(&mut self, port: u16, wanted: &[Wanted]) {
        let of = |want: Want| {
            let pods = wanted.iter().filter(move |pod| pod.want == want);
            pods.filter_map(|pod| pod.addresses.first().copied()).collect::<BTreeSet<IpAddr>>()
        };
        let serve = of(Want::Serve);
        let off = of(Want::Off).into_iter().filter(|ip| !serve.contains(ip));
        let leaves = if serve.is_empty() { Stage::Hidden } else { Stage::Draining };
        let (next, known) = (self.version + 1, self.known);
        let mut moved = self.version == 0 || self.port != port;
        let before = self.endpoints.len();
        let mut stages: BTreeMap<IpAddr, Stage> =
            serve.iter().map(|ip| (*ip, Stage::Healthy)).collect();
        // Whom no Envoy ever heard of need not be told of.
        stages.extend(
            off.filter(|ip| !known || self.endpoints.contains_key(ip)).map(|ip| (ip, leaves)),
        );
        self.endpoints.retain(|ip, _| stages.contains_key(ip));
        moved |= self.endpoints.len() != before;
        for (ip, stage) in stages {
            let served = stage == Stage::Healthy;
            let endpoint = self.endpoints.entry(ip).or_insert_with(|| {
                moved = true;
                Endpoint { stage, version: next, acked: None, served }
            });
            endpoint.served |= served;
            // One that was hidden is known no better when it is listed again.
            let goes_back = endpoint.stage == Stage::Hidden && stage == Stage::Draining;
            if endpoint.stage != stage && !goes_back {
                (endpoint.stage, endpoint.version, endpoint.acked) = (stage, next, None);
                moved = true;
            }
        }
        self.port = port;
        if moved {
            self.version = next;
        }
    }

    fn has(&self, version: u64) -> bool {
        let mut all = self.subscribers.values();
        !self.subscribers.is_empty() && all.all(|subscriber| subscriber.acked >= version)
    }

    /// Notes which versions every Envoy has by now.
    fn settle(&mut self, now: Instant) {
        self.away.retain(|_, since| now.duration_since(*since) < AWAY);
        let there = self.away.is_empty();
        self.known |= there && self.version > 0 && self.has(self.version);
        let acked: Vec<bool> =
            self.endpoints.values().map(|e| there && self.has(e.version)).collect();
        for (endpoint, acked) in self.endpoints.values_mut().zip(acked) {
            endpoint.acked = acked.then(|| endpoint.acked.unwrap_or(now));
        }
    }

    /// What is known of an endpoint's traffic, if anything is.
    fn traffic(&self, ip: IpAddr, want: Want, known: &Known<'_>) -> Option<Traffic> {
        let Known { name, loads, params, now } = *known;
        let Some(endpoint) = self.endpoints.get(&ip) else { return Some(Traffic::Absent) };
        if endpoint.stage == Stage::Healthy {
            // One Envoy is enough to send it traffic.
            let some = self.subscribers.values().any(|s| s.acked >= endpoint.version);
            let before = want == Want::Off;
            return Some(if some || before { Traffic::Serving } else { Traffic::Absent });
        }
        let unsure = |otherwise: Traffic| endpoint.served.then_some(otherwise);
        let Some(acked) = endpoint.acked else { return unsure(Traffic::Serving) };
        let Some(loads) = loads else { return Some(Traffic::Draining(None)) };
        let seconds = |n: u32| Duration::from_secs(n.into());
        if endpoint.stage == Stage::Hidden {
            let over = now >= acked + seconds(params.request_seconds);
            return if over { Some(Traffic::Absent) } else { unsure(Traffic::Draining(Some(1))) };
        }
        let from = acked + seconds(params.connect_seconds).max(THREADS);
        let told = loads.iter().filter_map(|load| load.clusters.get(name));
        let fresh: Vec<_> = told.filter(|(at, _)| *at >= from).collect();
        let count = fresh.iter().map(|(_, left)| left.get(&ip).copied().unwrap_or_default()).sum();
        if fresh.len() == loads.len() {
            return Some(Traffic::Draining(Some(count)));
        }
        // One may wait for a connection, where nobody counts it.
        unsure(Traffic::Draining(Some(count.max(1))))
    }

    /// Why not all is known that there is to be known.
    fn fault(&self, params: &Params, since: Instant, now: Instant) -> Option<Fault> {
        let refusal = self.subscribers.values().find_map(|subscriber| {
            let (_, words) = subscriber.refused.as_ref().filter(|(v, _)| *v == self.version)?;
            Some(Fault::Garbage(format!(
                "Envoy {} refuses its endpoints: {words}",
                subscriber.node
            )))
        });
        if refusal.is_some() {
            return refusal;
        }
        if let Some(node) = self.away.keys().next() {
            return Some(Fault::Unreachable(format!("Envoy {node} is away, and may send traffic")));
        }
        let nodes: BTreeSet<&String> = self.subscribers.values().map(|s| &s.node).collect();
        let (there, all) = (nodes.len(), params.proxies.unwrap_or(1));
        if there < all {
            return Some(Fault::Unreachable(format!("{there} of {all} Envoys are connected")));
        }
        (params.proxies.is_none() && now.duration_since(since) < AWAY)
            .then(|| Fault::Unreachable("Envoys may not be back yet".to_owned()))
    }
}

#[cfg(test)]
mod tests;
