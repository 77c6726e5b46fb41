//! Measurements on a test cluster that write pages and images of the documentation.

pub mod bench;
pub mod comparison;
pub mod histories;
pub mod packages;
mod page;
pub mod panels;
pub mod plots;
pub mod recording;
pub mod soak;
mod terminal;
