//! `kubectl podops`: the command line of Podops.
//!
//! `cli` has the commands. What they decide is pure: `preflight`, `explain`, `rollout` and `tree` have the objects of a
//! cluster as input. `inventory` and `facts` read the objects, and `live` follows
//! their changes.

pub mod cli;
pub mod target;

pub mod explain;
pub mod preflight;
pub mod rollout;
pub mod tree;

mod pods;

pub mod clock;

pub mod facts;
pub mod inventory;
pub mod live;
