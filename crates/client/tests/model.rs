//! Model check of a cache and the operator's own writes: the content of the cache when the operator
//! decides, for every order of events, lists of several pages and interrupted watches.
//!
//! Modelled actors: the API server with two objects, each on a page of its own; another client that
//! changes the objects and removes them from the watch's selector; the watch; and an operator, which
//! writes only while its cache contains its last write. The cache and the decision whether it
//! contains the write are those of the product.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::needless_pass_by_value, reason = "a model is consumed by its run")]

use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::watcher::Event;
use podops_client::{
    freshness::{CacheVersion, LastWrite},
    object_key::ObjectKey,
    shell::store::IndexedStore,
};
use podops_model_support::{assert_holds, assert_violated};
use stateright::{Model, Property};

/// Names of the objects, in the order of a list.
const NAMES: [&str; 2] = ["a", "b"];
const OWN_WRITES: u8 = 2;
const OTHER_WRITES: u8 = 1;
const DESELECTIONS: u8 = 1;
const INTERRUPTIONS: u8 = 1;

/// One object of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Object {
    version: u8,
    /// True if the selector of the watch matches the object.
    selected: bool,
}

/// Change of one object, as the server stores it for watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Change {
    object: usize,
    was_selected: bool,
    now: Object,
}

/// Event of the watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum CacheEvent {
    Init,
    InitApply { object: usize, version: u8 },
    InitDone,
    Apply { object: usize, version: u8 },
    Delete { object: usize, version: u8 },
}

/// State of the watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Watch {
    Interrupted,
    /// A list of all objects as they were at `version`, before the page `page`.
    Listing {
        snapshot: [Object; 2],
        version: u8,
        page: usize,
    },
    /// All changes up to `version` have been received.
    Watching {
        version: u8,
    },
}

/// A write on its way to the server or back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Request {
    object: usize,
    /// State of the cache when the operator decided.
    observed: Observed,
    /// Version in the response, once the server has stored the write.
    stored: Option<u8>,
}

/// The operator's last write after its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Written {
    object: usize,
    version: u8,
    observed: Observed,
}

/// State of the cache, as [`CacheVersion`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Observed {
    resource_version: u64,
    lists_begun: u64,
    lists_done: u64,
}

impl From<CacheVersion> for Observed {
    fn from(version: CacheVersion) -> Self {
        let CacheVersion { resource_version, lists_begun, lists_done } = version;
        Self { resource_version, lists_begun, lists_done }
    }
}

impl From<Observed> for CacheVersion {
    fn from(observed: Observed) -> Self {
        let Observed { resource_version, lists_begun, lists_done } = observed;
        Self { resource_version, lists_begun, lists_done }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    objects: [Object; 2],
    version: u8,
    changes: Vec<Change>,
    watch: Watch,
    /// Everything that the cache has received.
    received: Vec<CacheEvent>,
    request: Option<Request>,
    last_write: Option<Written>,
    own_writes: u8,
    other_writes: u8,
    deselections: u8,
    interruptions: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    OtherWrites {
        object: usize,
    },
    Deselected {
        object: usize,
    },
    Decides {
        object: usize,
    },
    Stores,
    Responds,
    ListBegins,
    Page,
    ListEnds,
    WatchEvent,
    Interrupted,
    /// The cache has not contained the last write for a while, without any event.
    ListedAgain,
}

/// A protection that the product has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    /// The versions of listed objects are valid only once the list is complete.
    CompleteLists,
    /// A cache that stays behind is listed again.
    ListingAgain,
    /// A list contains a write only if it began after the write.
    OrderOfLists,
    /// The list must have begun after the response, not after the decision.
    OrderOfResponses,
}

struct CacheModel(Option<Without>);

fn config_map(object: usize, version: u8) -> ConfigMap {
    let mut config_map = ConfigMap::default();
    config_map.metadata.name = NAMES.get(object).map(ToString::to_string);
    config_map.metadata.resource_version = Some(version.to_string());
    config_map
}

impl CacheEvent {
    fn event(self) -> Event<ConfigMap> {
        match self {
            Self::Init => Event::Init,
            Self::InitApply { object, version } => Event::InitApply(config_map(object, version)),
            Self::InitDone => Event::InitDone,
            Self::Apply { object, version } => Event::Apply(config_map(object, version)),
            Self::Delete { object, version } => Event::Delete(config_map(object, version)),
        }
    }
}

impl World {
    /// The product's cache after everything that was received.
    fn cache(&self) -> Arc<IndexedStore<ConfigMap>> {
        let cache = IndexedStore::new(|_| None);
        for event in &self.received {
            cache.apply_event(event.event());
        }
        cache
    }

    fn cache_version(&self, without: Option<Without>) -> CacheVersion {
        let mut version = self.cache().progress.version();
        if without == Some(Without::CompleteLists) {
            let listed = self.received.iter().filter_map(|event| match event {
                CacheEvent::InitApply { version, .. } => Some(u64::from(*version)),
                CacheEvent::Init
                | CacheEvent::InitDone
                | CacheEvent::Apply { .. }
                | CacheEvent::Delete { .. } => None,
            });
            version.resource_version = version.resource_version.max(listed.max().unwrap_or(0));
        }
        version
    }

    /// Returns true if the operator considers its cache to contain its last write.
    fn is_fresh(&self, without: Option<Without>) -> bool {
        let Some(Written { version, observed, .. }) = self.last_write else { return true };
        let now = self.cache_version(without);
        if without == Some(Without::OrderOfLists) && now.lists_done > observed.lists_done {
            return true;
        }
        let mut write = LastWrite::default();
        write.record(Some(&version.to_string()), observed.into());
        write.is_observed_by(now)
    }

    /// Returns true if the operator would decide on a state without its last write.
    fn decides_without_last_write(&self, without: Option<Without>) -> bool {
        let Some(Written { object, version, .. }) = self.last_write else { return false };
        if self.request.is_some() || !self.is_fresh(without) {
            return false;
        }
        let cached = self.cache().get(&ObjectKey::new("", NAMES[object]));
        match cached {
            Some(cached) => {
                let cached = cached.metadata.resource_version.as_deref();
                cached.unwrap().parse::<u8>().unwrap() < version
            }
            None => self.objects[object].selected,
        }
    }

    fn has_listed(&self) -> bool {
        self.received.contains(&CacheEvent::InitDone)
    }

    /// Stores a new version of an object, and returns its version.
    fn store(&mut self, object: usize, selected: bool) -> u8 {
        self.version += 1;
        let was_selected = self.objects[object].selected;
        let now = Object { version: self.version, selected };
        self.objects[object] = now;
        self.changes.push(Change { object, was_selected, now });
        self.version
    }

    /// The first change after a version, and its event if the watch selects it.
    fn next_change(&self, after: u8) -> Option<(Change, Option<CacheEvent>)> {
        let change = *self.changes.iter().find(|change| change.now.version > after)?;
        let (object, version) = (change.object, change.now.version);
        let event = match (change.was_selected, change.now.selected) {
            (_, true) => Some(CacheEvent::Apply { object, version }),
            (true, false) => Some(CacheEvent::Delete { object, version }),
            (false, false) => None,
        };
        Some((change, event))
    }

    /// Returns true if the watch delivers nothing more unless an object changes.
    fn is_quiet(&self) -> bool {
        matches!(self.watch, Watch::Watching { version } if self.next_change(version).is_none())
    }

    /// The next step of the watch.
    fn watch_step(&self) -> Option<Step> {
        match self.watch {
            Watch::Interrupted => Some(Step::ListBegins),
            Watch::Listing { page, .. } if page < NAMES.len() => Some(Step::Page),
            Watch::Listing { .. } => Some(Step::ListEnds),
            Watch::Watching { .. } => (!self.is_quiet()).then_some(Step::WatchEvent),
        }
    }

    /// Performs a step of the watch.
    fn advance_watch(&mut self) {
        self.watch = match self.watch {
            Watch::Interrupted => {
                self.received.push(CacheEvent::Init);
                Watch::Listing { snapshot: self.objects, version: self.version, page: 0 }
            }
            Watch::Listing { snapshot, version, page } if page < NAMES.len() => {
                let listed = snapshot[page];
                if listed.selected {
                    let (object, version) = (page, listed.version);
                    self.received.push(CacheEvent::InitApply { object, version });
                }
                Watch::Listing { snapshot, version, page: page + 1 }
            }
            Watch::Listing { version, .. } => {
                self.received.push(CacheEvent::InitDone);
                Watch::Watching { version }
            }
            Watch::Watching { version } => {
                let Some((change, event)) = self.next_change(version) else { return };
                self.received.extend(event);
                Watch::Watching { version: change.now.version }
            }
        };
    }
}

impl Model for CacheModel {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let objects =
            [Object { version: 1, selected: true }, Object { version: 2, selected: true }];
        vec![World {
            objects,
            version: 2,
            changes: Vec::new(),
            watch: Watch::Interrupted,
            received: Vec::new(),
            request: None,
            last_write: None,
            own_writes: 0,
            other_writes: 0,
            deselections: 0,
            interruptions: 0,
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        let is_fresh = world.is_fresh(self.0);
        let can_decide = world.request.is_none()
            && world.own_writes < OWN_WRITES
            && world.has_listed()
            && is_fresh;
        for object in 0..NAMES.len() {
            if world.other_writes < OTHER_WRITES {
                steps.push(Step::OtherWrites { object });
            }
            if world.deselections < DESELECTIONS && world.objects[object].selected {
                steps.push(Step::Deselected { object });
            }
            if can_decide {
                steps.push(Step::Decides { object });
            }
        }
        steps.extend(world.request.map(|request| match request.stored {
            None => Step::Stores,
            Some(_) => Step::Responds,
        }));
        steps.extend(world.watch_step());
        if world.watch != Watch::Interrupted && world.interruptions < INTERRUPTIONS {
            steps.push(Step::Interrupted);
        }
        let is_behind = world.request.is_none() && !is_fresh && world.is_quiet();
        if is_behind && self.0 != Some(Without::ListingAgain) {
            steps.push(Step::ListedAgain);
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut next = world.clone();
        match step {
            Step::OtherWrites { object } => {
                next.other_writes += 1;
                next.store(object, world.objects[object].selected);
            }
            Step::Deselected { object } => {
                next.deselections += 1;
                next.store(object, false);
            }
            Step::Decides { object } => {
                next.own_writes += 1;
                let observed = world.cache_version(self.0).into();
                next.request = Some(Request { object, observed, stored: None });
            }
            Step::Stores => {
                let mut request = next.request?;
                let selected = world.objects[request.object].selected;
                request.stored = Some(next.store(request.object, selected));
                next.request = Some(request);
            }
            Step::Responds => {
                let Request { object, observed, stored } = next.request.take()?;
                let observed = match self.0 {
                    Some(Without::OrderOfResponses) => observed,
                    _ => world.cache_version(self.0).into(),
                };
                next.last_write = Some(Written { object, version: stored?, observed });
            }
            Step::ListBegins | Step::Page | Step::ListEnds | Step::WatchEvent => {
                next.advance_watch();
            }
            Step::Interrupted => {
                next.interruptions += 1;
                next.watch = Watch::Interrupted;
            }
            Step::ListedAgain => next.watch = Watch::Interrupted,
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("decides on its own last write", |model: &Self, world: &World| {
                !world.decides_without_last_write(model.0)
            }),
            Property::always("never waits forever", |model: &Self, world: &World| {
                let mut steps = Vec::new();
                model.actions(world, &mut steps);
                !steps.is_empty() || world.is_fresh(model.0)
            }),
        ]
    }
}

#[test]
fn the_operator_decides_on_its_own_last_write() {
    assert_holds(CacheModel(None), 10_000);
}

#[test]
fn every_protection_is_needed() {
    for without in [
        Without::CompleteLists,
        Without::ListingAgain,
        Without::OrderOfLists,
        Without::OrderOfResponses,
    ] {
        assert_violated(CacheModel(Some(without)), without);
    }
}
