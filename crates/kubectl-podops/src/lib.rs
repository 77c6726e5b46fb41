//! `kubectl podops`: the command line of Podops.
//!
//! `cli` has the commands. What they decide is pure: `drain`, `explain`, `pod_change`, `preflight`,
//! `rollout`, `tree` and `uninstall` have the objects of a cluster as input. `inventory`, `facts` and
//! `remains` read the objects, and `live` follows their changes.

pub mod cli;
pub mod target;

pub mod drain;
pub mod explain;
pub mod pod_change;
pub mod preflight;
pub mod rollout;
pub mod tree;
pub mod uninstall;

mod pods;

pub mod clock;

pub mod facts;
pub mod inventory;
pub mod live;
pub mod remains;
