//! One Envoy or two, by example.

use super::*;

const NAME: &str = "Service/ns/web";

/// A fleet, and how many seconds it is old.
struct World {
    fleet: Fleet,
    begin: Instant,
    second: u64,
    params: Params,
}

fn ip(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

fn pod(last: u8, want: Want) -> Wanted {
    Wanted { name: last.to_string(), uid: last.to_string(), addresses: vec![ip(last)], want }
}

impl World {
    fn new() -> Self {
        let begin = Instant::now();
        let params = Params {
            port: 80,
            proxies: Some(1),
            load_reports: true,
            connect_seconds: 5,
            request_seconds: 15,
        };
        Self { fleet: Fleet::new(begin), begin, second: 0, params }
    }

    fn now(&self) -> Instant {
        self.begin + Duration::from_secs(self.second)
    }

    fn sync(&mut self, serve: &[u8], off: &[u8]) -> SyncResult {
        let serve = serve.iter().map(|last| pod(*last, Want::Serve));
        let wanted: Vec<_> = serve.chain(off.iter().map(|last| pod(*last, Want::Off))).collect();
        let now = self.now();
        self.fleet.sync(NAME, &self.params, &wanted, now)
    }

    fn join(&mut self, stream: u64) {
        self.fleet.subscribe(stream, &format!("node-{stream}"), &[NAME.to_owned()].into());
    }

    fn ack(&mut self, stream: u64) {
        let version = self.fleet.assignment(NAME).unwrap().version;
        let now = self.now();
        self.fleet.answered(stream, (NAME, version), None, now);
    }

    /// An Envoy has heard of two Pods, and that the first leaves.
    fn one_of_two_leaves(&mut self) {
        self.join(1);
        self.sync(&[1, 2], &[]);
        self.ack(1);
        self.sync(&[2], &[1]);
        self.ack(1);
    }

    fn tell(&mut self, stream: u64, in_flight: &[(u8, u64)]) {
        let of = in_flight.iter().map(|(last, count)| (ip(*last), *count)).collect();
        let now = self.now();
        self.fleet.tells(stream, &format!("node-{stream}"), now);
        self.fleet.told(stream, NAME, of, now);
    }

    /// Who is listed; a minus stands for who drains.
    fn listed(&self) -> Vec<i16> {
        let all = self.fleet.assignment(NAME).unwrap().endpoints;
        let last = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => i16::from(ip.octets()[3]),
            IpAddr::V6(_) => 0,
        };
        all.into_iter().map(|(ip, drains)| if drains { -last(ip) } else { last(ip) }).collect()
    }
}

fn of(sync: &SyncResult, last: u8) -> Option<Traffic> {
    sync.observed.get(&last.to_string()).copied()
}

const GONE: Option<Traffic> = Some(Traffic::Draining(Some(0)));

#[test]
fn a_pod_serves_once_an_envoy_has_it_and_leaves_when_all_have_heard_and_none_counts_it() {
    let mut world = World::new();
    for stream in [1, 2] {
        world.join(stream);
    }
    assert_eq!(of(&world.sync(&[1, 2], &[]), 1), Some(Traffic::Absent));
    world.ack(1);
    assert_eq!(of(&world.sync(&[1, 2], &[]), 1), Some(Traffic::Serving));
    world.ack(2);
    for stream in [1, 2] {
        world.tell(stream, &[]);
    }
    assert_eq!(of(&world.sync(&[2], &[1]), 1), Some(Traffic::Serving));
    assert_eq!(world.listed(), [-1, 2]);
    world.ack(1);
    assert_eq!(of(&world.sync(&[2], &[1]), 1), Some(Traffic::Serving), "the other sends it some");
    world.ack(2);
    assert_eq!(of(&world.sync(&[2], &[1]), 1), Some(Traffic::Draining(Some(1))));
    assert!(world.fleet.is_curious());
    world.second = 4;
    for stream in [1, 2] {
        world.tell(stream, &[]);
    }
    let early = of(&world.sync(&[2], &[1]), 1);
    assert_eq!(early, Some(Traffic::Draining(Some(1))), "it may wait for a connection");
    world.second = 6;
    world.tell(1, &[]);
    assert_eq!(of(&world.sync(&[2], &[1]), 1), early, "the other has not told");
    world.tell(2, &[(1, 3)]);
    assert_eq!(of(&world.sync(&[2], &[1]), 1), Some(Traffic::Draining(Some(3))));
    world.tell(2, &[]);
    assert_eq!(of(&world.sync(&[2], &[1]), 1), GONE);
    assert!(!world.fleet.is_curious());
    // It comes back; then it is gone, and nobody needs to be told of it.
    assert_eq!(of(&world.sync(&[1, 2], &[]), 1), Some(Traffic::Absent));
    for stream in [1, 2] {
        world.ack(stream);
    }
    world.sync(&[2], &[]);
    assert_eq!(world.listed(), [2]);
}

#[test]
fn without_reports_nobody_knows_what_is_in_flight() {
    let mut world = World::new();
    world.one_of_two_leaves();
    world.second = 20;
    let sync = world.sync(&[2], &[1]);
    assert_eq!(of(&sync, 1), Some(Traffic::Draining(Some(1))));
    assert!(sync.fault.is_some_and(|fault| fault.to_string().contains("tells of no requests")));
    world.params.load_reports = false;
    let sync = world.sync(&[2], &[1]);
    assert_eq!((of(&sync, 1), sync.fault), (Some(Traffic::Draining(None)), None));
}

#[test]
fn who_was_seen_to_be_gone_stays_so_whatever_becomes_of_others() {
    let mut world = World::new();
    world.one_of_two_leaves();
    world.second = 6;
    world.tell(1, &[]);
    assert_eq!(of(&world.sync(&[2], &[1]), 1), GONE);
    // The last one leaves, another Envoy comes, and one does not tell any more: the first is operated on.
    assert_eq!(of(&world.sync(&[], &[1, 2]), 1), GONE);
    world.join(2);
    assert_eq!(of(&world.sync(&[], &[1, 2]), 1), GONE);
    world.fleet.tells_no_more(1);
    assert_eq!(of(&world.sync(&[], &[1, 2]), 1), GONE);
    // It serves again, and is no more gone than any other.
    world.sync(&[1], &[2]);
    assert_eq!(of(&world.sync(&[], &[1, 2]), 1), Some(Traffic::Serving));
}

#[test]
fn what_one_envoy_shows_is_not_the_end_of_it_while_another_is_missing() {
    let mut world = World::new();
    world.params.proxies = Some(2);
    world.one_of_two_leaves();
    world.second = 6;
    world.tell(1, &[]);
    let sync = world.sync(&[2], &[1]);
    assert!(of(&sync, 1) == GONE && sync.fault.is_some(), "nobody relies on it: {sync:?}");
    world.join(2);
    world.tell(2, &[]);
    let sync = world.sync(&[2], &[1]);
    assert_eq!((of(&sync, 1), sync.fault), (Some(Traffic::Serving), None));
}

#[test]
fn a_version_is_never_used_twice_as_envoys_remember_it() {
    let mut world = World::new();
    world.join(1);
    world.sync(&[1], &[]);
    let before = world.fleet.assignment(NAME).unwrap().version;
    world.ack(1);
    world.fleet.forget(NAME);
    assert_eq!(world.fleet.assignment(NAME), None);
    assert_eq!(of(&world.sync(&[2], &[]), 2), Some(Traffic::Absent), "nobody has it yet");
    assert!(world.fleet.assignment(NAME).unwrap().version > before);
}

#[test]
fn at_another_port_nobody_is_known() {
    let mut world = World::new();
    world.one_of_two_leaves();
    world.second = 6;
    world.params.port = 81;
    let sync = world.sync(&[2], &[1]);
    assert_eq!((of(&sync, 1), of(&sync, 2)), (Some(Traffic::Serving), Some(Traffic::Absent)));
    assert_eq!(world.listed(), [2]);
}

#[test]
fn two_envoys_of_one_name_are_told_of() {
    let mut world = World::new();
    world.join(1);
    world.sync(&[1], &[]);
    world.ack(1);
    let now = world.now();
    for stream in [7, 8] {
        world.fleet.tells(stream, "node-1", now);
    }
    assert_eq!(world.sync(&[1], &[]).fault, None, "one may be the same, connected anew");
    world.second = 46;
    assert!(world.sync(&[1], &[]).fault.is_some_and(|f| f.to_string().contains("two Envoys")));
}

#[test]
fn who_drains_with_nobody_left_to_serve_is_not_listed_as_envoy_would_send_it_everything() {
    let mut world = World::new();
    world.join(1);
    world.sync(&[1], &[]);
    world.ack(1);
    world.tell(1, &[]);
    world.sync(&[], &[1]);
    assert_eq!(world.listed(), [0_i16; 0]);
    world.ack(1);
    world.tell(1, &[]);
    assert_eq!(of(&world.sync(&[], &[1]), 1), Some(Traffic::Draining(Some(1))));
    world.second = 16;
    assert_eq!(of(&world.sync(&[], &[1]), 1), GONE);
    // Nor is it listed again when others come.
    world.sync(&[2], &[1]);
    assert_eq!(world.listed(), [2]);
}

#[test]
fn an_envoy_that_is_away_or_not_yet_back_may_send_traffic() {
    let mut world = World::new();
    assert!(world.sync(&[1, 2], &[]).fault.is_some(), "nobody is there");
    for stream in [1, 2] {
        world.join(stream);
        world.ack(stream);
        world.tell(stream, &[]);
    }
    assert_eq!(world.sync(&[1, 2], &[]).fault, None);
    let now = world.now();
    assert_eq!(world.fleet.lost(2, now), [NAME]);
    world.sync(&[2], &[1]);
    world.ack(1);
    let sync = world.sync(&[2], &[1]);
    assert!(sync.fault.is_some_and(|fault| fault.to_string().contains("node-2 is away")));
    assert_eq!(sync.observed.get("1"), Some(&Traffic::Serving));
    world.second = 61;
    assert_eq!(world.sync(&[2], &[1]).fault, None);
    world.params.proxies = Some(2);
    assert!(world.sync(&[2], &[1]).fault.is_some(), "one of two");
    world.params.proxies = None;
    assert_eq!(world.sync(&[2], &[1]).fault, None);
    let now = world.now();
    world.fleet.begin(now);
    assert!(
        world.sync(&[2], &[1]).fault.is_some(),
        "a new process waits for those it may not know"
    );
}

#[test]
fn a_pod_that_no_envoy_ever_heard_of_has_no_traffic_and_one_of_before_may_have_some() {
    let mut world = World::new();
    world.join(1);
    // This process has just begun: nobody knows whether Envoy sends it traffic.
    assert_eq!(of(&world.sync(&[2], &[1]), 1), None);
    assert_eq!(world.listed(), [-1, 2]);
    world.ack(1);
    world.tell(1, &[]);
    assert_eq!(of(&world.sync(&[2], &[1]), 1), None);
    world.second = 6;
    world.tell(1, &[]);
    assert_eq!(of(&world.sync(&[2], &[1]), 1), GONE);
    let version = world.fleet.assignment(NAME).unwrap().version;
    assert_eq!(of(&world.sync(&[2], &[1, 3]), 3), Some(Traffic::Absent));
    assert_eq!(world.fleet.assignment(NAME).unwrap().version, version, "nobody is told of it");
}

#[test]
fn a_refusal_is_told_with_the_words() {
    let mut world = World::new();
    world.join(1);
    world.sync(&[1], &[]);
    let now = world.now();
    let version = world.fleet.assignment(NAME).unwrap().version;
    world.fleet.answered(1, (NAME, version), Some("no".to_owned()), now);
    let sync = world.sync(&[1], &[]);
    assert_eq!(of(&sync, 1), Some(Traffic::Absent));
    assert!(sync.fault.is_some_and(|fault| fault.to_string().contains("refuses")));
}
