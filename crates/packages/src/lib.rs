//! Packages of KUDO (`kudo.dev/v1beta1`). Pure: no API server, no files, no clock.
//!
//! So far it holds the [`template`] engine, and the [`yaml`] that packages are written in.

pub mod template;
pub mod yaml;
