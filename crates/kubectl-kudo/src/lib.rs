//! `kubectl kudo`: the command line for packages of KUDO.
//!
//! `cli` defines the commands. Decisions are pure: `manifests`, `parameters`, `source`,
//! `repository`, `resolve`, `plans`, `preview` and `text`.

pub mod cli;
pub mod failure;

pub mod manifests;
pub mod parameters;
pub mod plans;
pub mod preview;
pub mod repository;
pub mod resolve;
pub mod source;
pub mod text;
