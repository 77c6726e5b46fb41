//! What every model of an Instance must satisfy.

use std::hash::Hash;

use stateright::{Model, Property};

use crate::world::{Setup, World};

/// A model of an Instance.
pub(crate) trait InstanceModel: Model<State: Clone + Hash> {
    fn setup(&self) -> &Setup;

    fn world(state: &mut Self::State) -> &mut World;

    /// First safety property that a state violates.
    fn violation(state: &Self::State) -> Option<&'static str>;

    /// Returns why the Instance does not converge once faults have ended; `None` if it does.
    fn divergence(&self, state: Self::State) -> Option<&'static str>;
}

/// No state violates a safety property, and the Instance converges from each once faults end.
pub(crate) fn properties<M: InstanceModel>() -> Vec<Property<M>> {
    vec![
        Property::always("safe", |_, state: &M::State| M::violation(state).is_none()),
        Property::always("converges", |model: &M, state: &M::State| {
            let mut rest = state.clone();
            M::world(&mut rest).attempts = [None, None];
            model.setup().converging.contains(&rest, |rest| model.divergence(rest))
        }),
    ]
}
