//! Support of the model checkers, for tests only.

use std::{fmt::Debug, hash::Hash};

use stateright::{Checker as _, HasDiscoveries, Model};

/// Number of threads of a search.
const THREADS: usize = 2;

/// Result of a search.
#[derive(Clone, Debug)]
pub struct Search {
    /// Number of different states that were reached.
    pub states: usize,
    /// First violation: the property, and the actions that lead to it.
    pub violation: Option<String>,
}

/// A model that can be searched with several threads.
pub trait SearchableModel:
    Model<
        State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
        Action: Clone + Debug + PartialEq + Send + Sync + 'static,
    > + Send
    + Sync
    + 'static
{
}

impl<M> SearchableModel for M where
    M: Model<
            State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
            Action: Clone + Debug + PartialEq + Send + Sync + 'static,
        > + Send
        + Sync
        + 'static
{
}

/// Searches all reachable states of a model, until one violates a property.
pub fn search(model: impl SearchableModel) -> Search {
    let threads = model.checker().threads(THREADS);
    let checked = threads.finish_when(HasDiscoveries::Any).spawn_bfs().join();
    let discovery = checked.discoveries().into_iter().next();
    let violation =
        discovery.map(|(property, path)| format!("{property}: {:#?}", path.into_actions()));
    Search { states: checked.unique_state_count(), violation }
}

/// Asserts that no reachable state violates a property. The model must have at least `min_states`
/// states, so that it cannot become trivial unnoticed.
///
/// # Panics
///
/// If it has a violation, or fewer states.
#[track_caller]
pub fn assert_holds(model: impl SearchableModel, min_states: usize) {
    let Search { states, violation } = search(model);
    assert_eq!(violation, None, "after {states} states");
    assert!(states >= min_states, "the model has become smaller: {states} states");
}

/// Asserts that a model without the protection `without` has a violation.
///
/// # Panics
///
/// If it has none.
#[track_caller]
pub fn assert_violated(model: impl SearchableModel, without: impl Debug) {
    let Search { states, violation } = search(model);
    assert!(violation.is_some(), "no violation without {without:?} in {states} states");
}

/// Renumbers the resourceVersions of a state from the lowest in use, so that equivalent states are
/// equal. `visit` calls its argument with each version.
pub fn renumber<S>(state: &mut S, visit: impl Fn(&mut S, &mut dyn FnMut(&mut u8))) {
    let mut is_used = [false; 256];
    visit(state, &mut |version| is_used[usize::from(*version)] = true);
    let mut ranks = [0_u8; 256];
    let mut next = 0;
    for (rank, is_used) in ranks.iter_mut().zip(is_used) {
        *rank = next;
        next += u8::from(is_used);
    }
    visit(state, &mut |version| *version = ranks[usize::from(*version)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_keep_their_order() {
        let mut versions = [9, 0, 4, 9, 7];
        renumber(&mut versions, |versions, visit| versions.iter_mut().for_each(visit));
        assert_eq!(versions, [3, 0, 1, 3, 2]);
        let mut later = [7, 5];
        renumber(&mut later, |versions, visit| versions.iter_mut().for_each(visit));
        assert_eq!(later, [1, 0]);
    }
}
