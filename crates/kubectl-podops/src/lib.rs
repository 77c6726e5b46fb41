//! `kubectl podops`: the command line of Podops.
//!
//! `cli` has the commands. What they decide is pure: `check`, `demo`, `drain`, `explain`, `pod_change`,
//! `preflight`, `rollout`, `simulate`, `top`, `trace`, `tree` and `uninstall` have the objects of a
//! cluster as input.
//! `fit` wraps lines for a terminal; `names` are those of the objects that an output is about.
//! `inventory`, `facts` and `installed` read the objects, and `live` follows their changes; `answer` reads why the
//! API server has rejected a request.

pub mod cli;
pub mod target;

pub mod check;
pub mod demo;
pub mod drain;
pub mod explain;
pub mod pod_change;
pub mod preflight;
pub mod rollout;
pub mod simulate;
pub mod top;
pub mod trace;
pub mod tree;
pub mod uninstall;

pub mod finding;
pub mod fit;
pub mod installation;
pub mod names;
mod pods;

pub mod clock;

pub mod answer;
pub mod facts;
pub mod installed;
pub mod inventory;
pub mod live;
