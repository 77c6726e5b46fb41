//! Status, progress and history of the plans of an Instance.

mod history;
mod progress;
mod status;

pub use self::{
    history::history,
    progress::{Baseline, Progress, progress},
    status::status,
};
