//! The plans of an Instance: how far they are, and what has run.

mod history;
mod progress;
mod status;

pub use self::{
    history::history,
    progress::{Baseline, Progress, progress},
    status::status,
};
