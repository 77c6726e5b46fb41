//! Packages of KUDO (`kudo.dev/v1beta1`). Pure: no API server, no files, no clock.
//!
//! The files of a package become a [`Package`](package::Package), and that the objects which a cluster
//! stores ([`convert`]). An instance renders its [`template`]s.

pub mod archive;
pub mod convert;
pub mod manifest;
pub mod package;
pub mod template;
pub mod yaml;

mod loose;
