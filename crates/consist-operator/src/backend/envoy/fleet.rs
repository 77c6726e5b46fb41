//! What Envoys were served, what they acknowledged, and what they tell of it. Pure but for the lock.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

use super::{BackendError, ChangeNotifier, IpAddr, Params, SyncResult, Traffic, Want, Wanted};

/// How long an Envoy that is away may still send traffic by what it knew: it tries again at least
/// every 30 s, by its own default.
const AWAY: Duration = Duration::from_secs(60);
/// A second stream of the same Envoy is one of another if both last for so long.
const LASTING: Duration = Duration::from_secs(45);
/// An Envoy's threads hear of what it has acknowledged a little later: 7 ms were measured, under full load.
const THREADS: Duration = Duration::from_millis(100);

/// A fleet that servers and passes share.
pub(super) struct Shared {
    fleet: Mutex<Fleet>,
    /// Counts changes that Envoys have to hear of.
    news: watch::Sender<u64>,
    notifier: ChangeNotifier,
}

impl Shared {
    pub(super) fn new(fleet: Fleet, notifier: ChangeNotifier) -> Self {
        Self { fleet: Mutex::new(fleet), news: watch::channel(0).0, notifier }
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
    pub(super) fn notifier(&self, cluster: &str) {
        self.notifier.tell(cluster.to_owned());
    }
}

/// All Envoys and what they are served.
#[derive(Debug)]
pub(super) struct Fleet {
    /// Since when Envoys are served: before, they may know of Pods what nobody here does.
    since: Instant,
    /// The last version of any cluster. None is used twice, as Envoys remember what they were sent.
    version: u64,
    clusters: BTreeMap<String, Cluster>,
    /// What Envoys tell of their requests, by stream.
    loads: BTreeMap<u64, Load>,
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
    /// Whether it served, and was not known to be gone since: it may have requests that nobody counts.
    served: bool,
    /// Whether it was seen without traffic; it gets none before it serves again.
    gone: bool,
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
#[derive(Debug)]
struct Load {
    node: String,
    since: Instant,
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
        Self { since, version: 0, clusters: BTreeMap::new(), loads: BTreeMap::new() }
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
        // What nobody decides on, nobody needs to be remembered for.
        self.clusters.retain(|_, cluster| cluster.version > 0 || !cluster.subscribers.is_empty());
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

    /// An Envoy begins to tell of its requests by a stream.
    pub(super) fn tells(&mut self, stream: u64, node: &str, now: Instant) {
        let new = || Load { node: node.to_owned(), since: now, clusters: BTreeMap::new() };
        self.loads.entry(stream).or_insert_with(new);
    }

    /// A stream has ended by which an Envoy told of its requests.
    pub(super) fn tells_no_more(&mut self, stream: u64) {
        self.loads.remove(&stream);
    }

    /// An Envoy tells of a cluster's requests in flight; whether anybody waits for them.
    pub(super) fn told(
        &mut self,
        stream: u64,
        cluster: &str,
        in_flight: BTreeMap<IpAddr, u64>,
        now: Instant,
    ) -> bool {
        if let Some(load) = self.loads.get_mut(&stream) {
            load.clusters.insert(cluster.to_owned(), (now, in_flight));
        }
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
    pub(super) fn sync(
        &mut self,
        name: &str,
        params: &Params,
        wanted: &[Wanted],
        now: Instant,
    ) -> SyncResult {
        let cluster = self.clusters.entry(name.to_owned()).or_default();
        if cluster.wish(params.port, wanted, self.version + 1) {
            self.version += 1;
        }
        cluster.settle(now);
        let nodes: BTreeSet<&String> = cluster.subscribers.values().map(|s| &s.node).collect();
        let loads: Vec<&Load> = self.loads.values().filter(|l| nodes.contains(&l.node)).collect();
        let telling: BTreeSet<&String> = loads.iter().map(|load| &load.node).collect();
        let mute = nodes.difference(&telling).next().map(|node| (*node).clone());
        let missing = cluster.missing(params, now.duration_since(self.since));
        let known = Known { name, loads, mute, missing, params, now };
        let mut observed = BTreeMap::new();
        for pod in wanted {
            let traffic = match pod.addresses.first() {
                Some(ip) => cluster.traffic(*ip, pod.want, &known),
                None => Some(Traffic::Absent),
            };
            observed.extend(traffic.map(|traffic| (pod.uid.clone(), traffic)));
        }
        cluster.curious = params.load_reports && cluster.is_waited_for();
        SyncResult { fault: cluster.fault(known), ..SyncResult::of(observed) }
    }
}

/// What an endpoint is judged by.
struct Known<'a> {
    name: &'a str,
    /// What Envoys tell.
    loads: Vec<&'a Load>,
    /// An Envoy that does not tell of its requests, if there is one.
    mute: Option<String>,
    /// Which Envoys may send traffic by what nobody here knows, if some may.
    missing: Option<String>,
    params: &'a Params,
    now: Instant,
}

impl Known<'_> {
    /// A node ID that two Envoys have: each tells by one stream, and one that is dead is soon found out.
    fn twins(&self) -> Option<&String> {
        let lasting = self.loads.iter().filter(|l| self.now.duration_since(l.since) > LASTING);
        let mut known = BTreeSet::new();
        lasting.map(|load| &load.node).find(|node| !known.insert(*node))
    }
}

impl Endpoint {
    /// Whether it is on its way out, and not known to be.
    fn is_leaving(&self) -> bool {
        self.stage != Stage::Healthy && !self.gone
    }

    /// Notes that it has no traffic, if that is all there is to know.
    fn has_gone(&mut self, surely: bool) -> Traffic {
        if surely {
            (self.gone, self.served) = (true, false);
        }
        Traffic::Draining(Some(0))
    }
}

impl Cluster {
    /// Moves endpoints to the stages that are wanted, as the next version if any moves; whether one did.
    fn wish(&mut self, port: u16, wanted: &[Wanted], next: u64) -> bool {
        let of = |want: Want| {
            let pods = wanted.iter().filter(move |pod| pod.want == want);
            pods.filter_map(|pod| pod.addresses.first().copied()).collect::<BTreeSet<IpAddr>>()
        };
        let serve = of(Want::Serve);
        let off = of(Want::Off).into_iter().filter(|ip| !serve.contains(ip));
        // At another port nobody is listed, and nobody counted, who was at the one before.
        let elsewhere = self.version > 0 && self.port != port;
        let leaves = if serve.is_empty() { Stage::Hidden } else { Stage::Draining };
        let known = self.known;
        let mut moved = self.version == 0 || elsewhere;
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
                Endpoint { stage, version: next, acked: None, served, gone: false }
            });
            endpoint.served |= served;
            endpoint.gone &= !served;
            let hides = elsewhere && stage == Stage::Draining && !endpoint.gone;
            let stage = if hides { Stage::Hidden } else { stage };
            // One that was hidden is known no better when it is listed again.
            let goes_back = endpoint.stage == Stage::Hidden && stage == Stage::Draining;
            if (endpoint.stage != stage || elsewhere) && !goes_back {
                (endpoint.stage, endpoint.version, endpoint.acked) = (stage, next, None);
                moved = true;
            }
        }
        self.port = port;
        if moved {
            self.version = next;
        }
        moved
    }

    /// Whether one of its endpoints is on its way out.
    fn is_waited_for(&self) -> bool {
        self.endpoints.values().any(Endpoint::is_leaving)
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
    fn traffic(&mut self, ip: IpAddr, want: Want, known: &Known<'_>) -> Option<Traffic> {
        let Known { name, loads, mute, missing, params, now } = known;
        let Some(endpoint) = self.endpoints.get_mut(&ip) else { return Some(Traffic::Absent) };
        if endpoint.stage == Stage::Healthy {
            // One Envoy is enough to send it traffic.
            let some = self.subscribers.values().any(|s| s.acked >= endpoint.version);
            let before = want == Want::Off;
            return Some(if some || before { Traffic::Serving } else { Traffic::Absent });
        }
        if endpoint.gone {
            return Some(Traffic::Draining(Some(0)));
        }
        // Of one that never served here nothing is claimed that was not seen.
        let unsure = |otherwise: Traffic| endpoint.served.then_some(otherwise);
        let Some(acked) = endpoint.acked else { return unsure(Traffic::Serving) };
        let seconds = |n: u32| Duration::from_secs(n.into());
        let pause = match endpoint.stage {
            Stage::Hidden => seconds(params.request_seconds),
            Stage::Healthy | Stage::Draining => seconds(params.connect_seconds),
        };
        let from = acked + pause.max(THREADS);
        if !params.load_reports {
            return if *now < acked + THREADS {
                unsure(Traffic::Draining(Some(1)))
            } else {
                Some(Traffic::Draining(None))
            };
        }
        if endpoint.stage == Stage::Hidden {
            return if *now < from {
                unsure(Traffic::Draining(Some(1)))
            } else {
                Some(endpoint.has_gone(missing.is_none()))
            };
        }
        let told = loads.iter().filter_map(|load| load.clusters.get(*name));
        let fresh: Vec<_> = told.filter(|(at, _)| *at >= from).collect();
        let count = fresh.iter().map(|(_, left)| left.get(&ip).copied().unwrap_or_default()).sum();
        match (mute.is_none() && fresh.len() == loads.len(), count) {
            (true, 0) => Some(endpoint.has_gone(missing.is_none())),
            (true, count) => Some(Traffic::Draining(Some(count))),
            // One may wait for a connection, where nobody counts it.
            (false, count) => unsure(Traffic::Draining(Some(count.max(1)))),
        }
    }

    /// Which Envoys may send traffic by what nobody here knows, if some may.
    fn missing(&self, params: &Params, age: Duration) -> Option<String> {
        if let Some(node) = self.away.keys().next() {
            return Some(format!("Envoy {node} is away, and may send traffic"));
        }
        let nodes: BTreeSet<&String> = self.subscribers.values().map(|s| &s.node).collect();
        let (there, all) = (nodes.len(), params.proxies.unwrap_or(1));
        if there < all {
            return Some(format!("{there} of {all} Envoys are connected"));
        }
        // Whoever was served by the process before may not be back yet.
        let early = params.proxies.is_none() && age < AWAY;
        (early && self.is_waited_for()).then(|| "Envoys may not be back yet".to_owned())
    }

    /// Why not all is known that there is to be known.
    fn fault(&self, known: Known<'_>) -> Option<BackendError> {
        let refusal = self.subscribers.values().find_map(|subscriber| {
            let (_, words) = subscriber.refused.as_ref().filter(|(v, _)| *v == self.version)?;
            Some(format!("Envoy {} refuses its endpoints: {words}", subscriber.node))
        });
        if let Some(refusal) = refusal {
            return Some(BackendError::Garbage(refusal));
        }
        if let Some(node) = known.twins() {
            return Some(BackendError::Params(format!("two Envoys have the node ID {node}")));
        }
        let mute = known.mute.filter(|_| self.is_waited_for() && known.params.load_reports);
        let mute = mute.map(|node| format!("Envoy {node} tells of no requests in flight"));
        known.missing.or(mute).map(BackendError::Unreachable)
    }
}

#[cfg(test)]
mod tests;
