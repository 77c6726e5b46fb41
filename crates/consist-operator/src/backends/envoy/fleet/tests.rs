//! Fleets of one or two Envoys.

use std::time::Duration;

use podops_api::ids::Uid;

use super::*;
use crate::traffic::{DesiredTraffic, InFlight};

const NAME: &str = "Service/ns/web";

/// A fleet at a point in time.
struct World {
    fleet: Fleet,
    start: Instant,
    /// Seconds since the start.
    second: u64,
    params: Params,
}

fn ip(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

fn pod(last: u8, traffic: DesiredTraffic) -> DesiredMember {
    DesiredMember {
        name: last.to_string().into(),
        uid: last.to_string().into(),
        addresses: vec![ip(last)],
        traffic,
    }
}

impl World {
    fn new() -> Self {
        let start = Instant::now();
        let params = Params {
            port: 80,
            proxies: Some(1),
            load_reports: true,
            connect_seconds: 5,
            request_seconds: 15,
        };
        Self { fleet: Fleet::new(start), start, second: 0, params }
    }

    fn now(&self) -> Instant {
        self.start + Duration::from_secs(self.second)
    }

    fn sync(&mut self, serve: &[u8], off: &[u8]) -> SyncResult {
        let serve = serve.iter().map(|last| pod(*last, DesiredTraffic::Serve));
        let members: Vec<_> =
            serve.chain(off.iter().map(|last| pod(*last, DesiredTraffic::Off))).collect();
        let now = self.now();
        self.fleet.sync(NAME, &self.params, &members, now)
    }

    fn subscribe(&mut self, stream: u64) {
        self.fleet.subscribe(stream, &format!("node-{stream}"), &[NAME.to_owned()].into());
    }

    fn ack(&mut self, stream: u64) {
        let sent = self.fleet.assignment(NAME).unwrap().version;
        let now = self.now();
        self.fleet.record_response(stream, &sent, None, now);
    }

    /// Lets one Envoy acknowledge two Pods, and that the first one drains.
    fn drain_one_of_two(&mut self) {
        self.subscribe(1);
        self.sync(&[1, 2], &[]);
        self.ack(1);
        self.sync(&[2], &[1]);
        self.ack(1);
    }

    fn report(&mut self, stream: u64, in_flight: &[(u8, u64)]) {
        let counts = in_flight.iter().map(|(last, count)| (ip(*last), *count)).collect();
        let now = self.now();
        self.fleet.start_reports(stream, &format!("node-{stream}"), now);
        self.fleet.record_report(stream, NAME, counts, now);
    }

    /// Returns the last bytes of the listed addresses, negative for draining endpoints.
    fn listed(&self) -> Vec<i16> {
        let all = self.fleet.assignment(NAME).unwrap().endpoints;
        let last = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => i16::from(ip.octets()[3]),
            IpAddr::V6(_) => 0,
        };
        all.into_iter()
            .map(|e| if e.is_draining { -last(e.address) } else { last(e.address) })
            .collect()
    }
}

fn of(sync: &SyncResult, last: u8) -> Option<Traffic> {
    sync.observed.get(&Uid::from(last.to_string())).copied()
}

const DRAINED: Option<Traffic> = Some(Traffic::Draining(InFlight::Count(0)));
const UNCOUNTED: Option<Traffic> = Some(Traffic::Draining(InFlight::Uncounted));

#[test]
fn a_pod_is_drained_once_all_envoys_acked_and_count_no_request() {
    let mut world = World::new();
    for stream in [1, 2] {
        world.subscribe(stream);
    }
    assert_eq!(of(&world.sync(&[1, 2], &[]), 1), Some(Traffic::Absent));
    world.ack(1);
    assert_eq!(of(&world.sync(&[1, 2], &[]), 1), Some(Traffic::Serving));
    world.ack(2);
    for stream in [1, 2] {
        world.report(stream, &[]);
    }
    assert_eq!(of(&world.sync(&[2], &[1]), 1), Some(Traffic::Serving));
    assert_eq!(world.listed(), [-1, 2]);
    world.ack(1);
    assert_eq!(
        of(&world.sync(&[2], &[1]), 1),
        Some(Traffic::Serving),
        "the other Envoy has not acknowledged it"
    );
    world.ack(2);
    assert_eq!(of(&world.sync(&[2], &[1]), 1), UNCOUNTED);
    assert!(world.fleet.needs_load_reports());
    world.second = 4;
    for stream in [1, 2] {
        world.report(stream, &[]);
    }
    let early = of(&world.sync(&[2], &[1]), 1);
    assert_eq!(early, UNCOUNTED, "a request may wait for a connection");
    world.second = 6;
    world.report(1, &[]);
    assert_eq!(of(&world.sync(&[2], &[1]), 1), early, "no report of the other Envoy");
    world.report(2, &[(1, 3)]);
    assert_eq!(of(&world.sync(&[2], &[1]), 1), Some(Traffic::Draining(InFlight::Count(3))));
    world.report(2, &[]);
    assert_eq!(of(&world.sync(&[2], &[1]), 1), DRAINED);
    assert!(!world.fleet.needs_load_reports());
    // The Pod serves again; then it is deleted, and is not listed any more.
    assert_eq!(of(&world.sync(&[1, 2], &[]), 1), Some(Traffic::Absent));
    for stream in [1, 2] {
        world.ack(stream);
    }
    world.sync(&[2], &[]);
    assert_eq!(world.listed(), [2]);
}

#[test]
fn requests_in_flight_are_unknown_without_load_reports() {
    let mut world = World::new();
    world.drain_one_of_two();
    world.second = 20;
    let sync = world.sync(&[2], &[1]);
    assert_eq!(of(&sync, 1), UNCOUNTED);
    assert!(sync.error.is_some_and(|error| error.to_string().contains("sends no load reports")));
    world.params.load_reports = false;
    let sync = world.sync(&[2], &[1]);
    assert_eq!((of(&sync, 1), sync.error), (Some(Traffic::Draining(InFlight::Unreported)), None));
}

#[test]
fn a_drained_pod_stays_drained_when_envoys_or_pods_change() {
    let mut world = World::new();
    world.drain_one_of_two();
    world.second = 6;
    world.report(1, &[]);
    assert_eq!(of(&world.sync(&[2], &[1]), 1), DRAINED);
    // The last Pod drains, an Envoy connects, and another stops reporting, while the first Pod is
    // operated on.
    assert_eq!(of(&world.sync(&[], &[1, 2]), 1), DRAINED);
    world.subscribe(2);
    assert_eq!(of(&world.sync(&[], &[1, 2]), 1), DRAINED);
    world.fleet.end_reports(1);
    assert_eq!(of(&world.sync(&[], &[1, 2]), 1), DRAINED);
    // Once it serves again, it drains like any other Pod.
    world.sync(&[1], &[2]);
    assert_eq!(of(&world.sync(&[], &[1, 2]), 1), Some(Traffic::Serving));
}

#[test]
fn a_drained_pod_is_not_final_while_an_envoy_is_missing() {
    let mut world = World::new();
    world.params.proxies = Some(2);
    world.drain_one_of_two();
    world.second = 6;
    world.report(1, &[]);
    let sync = world.sync(&[2], &[1]);
    assert!(of(&sync, 1) == DRAINED && sync.error.is_some(), "{sync:?}");
    world.subscribe(2);
    world.report(2, &[]);
    let sync = world.sync(&[2], &[1]);
    assert_eq!((of(&sync, 1), sync.error), (Some(Traffic::Serving), None));
}

#[test]
fn versions_are_never_reused() {
    let mut world = World::new();
    world.subscribe(1);
    world.sync(&[1], &[]);
    let previous = world.fleet.assignment(NAME).unwrap().version.version;
    world.ack(1);
    world.fleet.forget(NAME);
    assert_eq!(world.fleet.assignment(NAME), None);
    assert_eq!(
        of(&world.sync(&[2], &[]), 2),
        Some(Traffic::Absent),
        "no Envoy has acknowledged it"
    );
    assert!(world.fleet.assignment(NAME).unwrap().version.version > previous);
}

#[test]
fn a_port_change_resets_acknowledgements() {
    let mut world = World::new();
    world.drain_one_of_two();
    world.second = 6;
    world.params.port = 81;
    let sync = world.sync(&[2], &[1]);
    assert_eq!((of(&sync, 1), of(&sync, 2)), (Some(Traffic::Serving), Some(Traffic::Absent)));
    assert_eq!(world.listed(), [2]);
}

#[test]
fn two_envoys_with_one_node_id_are_reported() {
    let mut world = World::new();
    world.subscribe(1);
    world.sync(&[1], &[]);
    world.ack(1);
    let now = world.now();
    for stream in [7, 8] {
        world.fleet.start_reports(stream, "node-1", now);
    }
    assert_eq!(world.sync(&[1], &[]).error, None, "one Envoy may have reconnected");
    world.second = 46;
    assert!(world.sync(&[1], &[]).error.is_some_and(|e| e.to_string().contains("two Envoys")));
}

#[test]
fn draining_pods_are_hidden_when_no_pod_serves() {
    let mut world = World::new();
    world.subscribe(1);
    world.sync(&[1], &[]);
    world.ack(1);
    world.report(1, &[]);
    world.sync(&[], &[1]);
    assert_eq!(world.listed(), [0_i16; 0]);
    world.ack(1);
    world.report(1, &[]);
    assert_eq!(of(&world.sync(&[], &[1]), 1), UNCOUNTED);
    world.second = 16;
    assert_eq!(of(&world.sync(&[], &[1]), 1), DRAINED);
    // The Pod is not listed again when another Pod serves.
    world.sync(&[2], &[1]);
    assert_eq!(world.listed(), [2]);
}

#[test]
fn disconnected_envoys_may_still_send_traffic() {
    let mut world = World::new();
    assert!(world.sync(&[1, 2], &[]).error.is_some(), "no Envoy is connected");
    for stream in [1, 2] {
        world.subscribe(stream);
        world.ack(stream);
        world.report(stream, &[]);
    }
    assert_eq!(world.sync(&[1, 2], &[]).error, None);
    let now = world.now();
    assert_eq!(world.fleet.disconnect(2, now), [NAME]);
    world.sync(&[2], &[1]);
    world.ack(1);
    let sync = world.sync(&[2], &[1]);
    assert!(sync.error.is_some_and(|error| error.to_string().contains("node-2 is disconnected")));
    assert_eq!(sync.observed.get(&Uid::from("1")), Some(&Traffic::Serving));
    world.second = 61;
    assert_eq!(world.sync(&[2], &[1]).error, None);
    world.params.proxies = Some(2);
    assert!(world.sync(&[2], &[1]).error.is_some(), "one of two");
    world.params.proxies = None;
    assert_eq!(world.sync(&[2], &[1]).error, None);
    let now = world.now();
    world.fleet.start(now);
    assert!(world.sync(&[2], &[1]).error.is_some(), "a new process waits for Envoys to reconnect");
}

#[test]
fn pods_from_before_a_restart_may_have_traffic() {
    let mut world = World::new();
    world.subscribe(1);
    // The process has just started: whether Envoy routes traffic to the Pod is unknown.
    assert_eq!(of(&world.sync(&[2], &[1]), 1), None);
    assert_eq!(world.listed(), [-1, 2]);
    world.ack(1);
    world.report(1, &[]);
    assert_eq!(of(&world.sync(&[2], &[1]), 1), None);
    world.second = 6;
    world.report(1, &[]);
    assert_eq!(of(&world.sync(&[2], &[1]), 1), DRAINED);
    let version = world.fleet.assignment(NAME).unwrap().version;
    assert_eq!(of(&world.sync(&[2], &[1, 3]), 3), Some(Traffic::Absent));
    assert_eq!(world.fleet.assignment(NAME).unwrap().version, version, "no new version is sent");
}

#[test]
fn a_rejection_is_reported_with_its_message() {
    let mut world = World::new();
    world.subscribe(1);
    world.sync(&[1], &[]);
    let now = world.now();
    let sent = world.fleet.assignment(NAME).unwrap().version;
    world.fleet.record_response(1, &sent, Some("no".to_owned()), now);
    let sync = world.sync(&[1], &[]);
    assert_eq!(of(&sync, 1), Some(Traffic::Absent));
    assert!(sync.error.is_some_and(|error| error.to_string().contains("rejected")));
}

#[test]
fn reports_are_kept_only_of_clusters_that_an_employer_uses() {
    let mut world = World::new();
    world.drain_one_of_two();
    world.report(1, &[]);
    let now = world.now();
    for name in ["Service/ns/other", "another"] {
        world.fleet.subscribe(1, "node-1", &[NAME.to_owned(), name.to_owned()].into());
        assert!(!world.fleet.record_report(1, name, BTreeMap::new(), now));
    }
    let kept = |world: &World| world.fleet.loads[&1].reports.keys().cloned().collect::<Vec<_>>();
    assert_eq!(kept(&world), [NAME]);
    world.fleet.forget(NAME);
    assert!(kept(&world).is_empty());
}

#[test]
fn names_that_a_stream_no_longer_subscribes_to_are_dropped() {
    let mut world = World::new();
    for n in 0..100 {
        let names = [NAME.to_owned(), format!("Service/ns/unknown-{n}")];
        world.fleet.subscribe(1, "node-1", &names.into());
    }
    let names: Vec<&String> = world.fleet.clusters.keys().collect();
    assert_eq!(names, ["Service/ns/unknown-99", NAME]);
}
