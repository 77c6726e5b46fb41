//! `kubectl podops`: the command line of Podops.
//!
//! `preflight` is pure: the objects of a cluster in, findings out. `inventory` reads the objects.

pub mod preflight;

pub mod inventory;
