//! Packages of KUDO (`kudo.dev/v1beta1`). Pure: no API server, no files, no clock.
//!
//! The files of a package are read as a [`Package`](package::Package), which is
//! [verified](verify::verify) and converted to the objects in the cluster ([`convert`]). An
//! Instance renders its templates with [`go_template`].

pub mod annotations;
pub mod archive;
pub mod convert;
pub mod manifest;
pub mod package;
pub mod translate;
pub mod values;
pub mod verify;
pub mod yaml;

mod loose;
