//! Properties that every model of an Instance must satisfy.

use std::hash::Hash;

use stateright::{Model, Property};

use crate::world::{Setup, TURNS_MAX, World};

/// A model of an Instance.
pub(crate) trait InstanceModel: Model<State: Clone + Hash> {
    fn setup(&self) -> &Setup;

    fn world(state: &mut Self::State) -> &mut World;

    /// First safety property that a state violates.
    fn violation(state: &Self::State) -> Option<&'static str>;

    /// Returns why the Instance does not converge once faults have ended; `None` if it converges.
    fn divergence(&self, state: Self::State) -> Option<&'static str>;

    /// Lets the up-to-date operator reconcile alone, deletions finish and `others` act, until
    /// nothing changes; `others` returns whether a change was made. Returns whether each reconcile
    /// ends.
    fn settle(&self, state: &mut Self::State, others: impl Fn(&mut Self::State) -> bool) -> bool {
        for _ in 0..TURNS_MAX {
            let world = Self::world(state);
            if !world.settle(self.setup()) {
                return false;
            }
            let deleted = world.deleted().next().cloned();
            match deleted {
                Some(name) => drop(world.objects.remove(&name)),
                None if others(state) => {}
                None => break,
            }
        }
        true
    }

    /// Like [`Self::settle`]; returns why the last run is not complete afterwards, `None` if it is.
    fn unsettled(
        &self,
        state: &mut Self::State,
        others: impl Fn(&mut Self::State) -> bool,
    ) -> Option<&'static str> {
        if !self.settle(state, others) {
            return Some("a reconcile does not end");
        }
        Self::world(state).incomplete()
    }
}

/// No state violates a safety property, and the Instance converges from each once faults end.
pub(crate) fn properties<M: InstanceModel>() -> Vec<Property<M>> {
    vec![
        Property::always("safe", |_, state: &M::State| M::violation(state).is_none()),
        Property::always("converges", |model: &M, state: &M::State| {
            let mut rest = state.clone();
            // Only the up-to-date operator continues.
            let world = M::world(&mut rest);
            world.attempts = [None, None];
            world.cache = world.instance.clone();
            model.setup().converging.contains(&rest, |rest| model.divergence(rest))
        }),
    ]
}
