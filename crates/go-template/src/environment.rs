//! Inputs of a rendering besides template and data, and its limits.

use std::cell::Cell;

use jiff::Timestamp;

/// Limit of one rendering.
pub(crate) const STEPS: &str = "steps";
/// Limit of several renderings.
pub(crate) const STEPS_OF_ALL: &str = "steps of all templates together";

/// Deepest nesting of actions, parentheses and values.
pub const MAX_DEPTH: usize = 100;

/// Inputs of a rendering besides template and data.
#[derive(Clone, Debug)]
pub struct Environment {
    /// Result of the function `now`.
    pub now: Timestamp,
    /// Source of random functions: equal seeds give equal results.
    pub seed: Vec<u8>,
    /// Limits of the rendering.
    pub limits: Limits,
}

/// Limits of one rendering.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Actions, function calls and list elements.
    pub steps: u64,
    /// Bytes of the output, and of each string that a function makes.
    pub text: usize,
    /// Bytes of all strings that functions make.
    pub memory: usize,
}

/// Steps left for several renderings and their outputs; bounds the cost of many templates.
#[derive(Debug)]
pub struct Budget {
    steps_left: Cell<u64>,
}

impl Budget {
    pub(crate) fn steps_left(&self) -> u64 {
        self.steps_left.get()
    }

    pub(crate) fn spend(&self, steps: u64) {
        self.steps_left.set(self.steps_left().saturating_sub(steps));
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self { steps_left: Cell::new(10 * Limits::default().steps) }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { steps: 1_000_000, text: 2 << 20, memory: 16 << 20 }
    }
}
