//! The demo of packages, and the view of a demo's progress.

pub mod package_demo;
pub mod progress_view;
