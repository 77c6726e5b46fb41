//! `kubectl podops`: the command line of Podops.
//!
//! `cli` has the commands. Decisions are pure: `check`, `demo`, `drain`, `emergency`, `explain`, `list`, `pod_change`,
//! `preflight`, `rollout`, `simulate`, `top`, `trace`, `tree` and `uninstall` have the objects of a
//! cluster as input. `fit` wraps lines for a terminal; `names` returns the names for the output
//! format `name`. `inventory`, `facts` and `installed` read objects, and `live` watches them;
//! `answer` reads why the API server rejected a request.

pub mod cli;
mod counted;
pub mod target;

pub mod check;
pub mod demo_objects;
pub mod drain;
pub mod emergency;
pub mod explain;
pub mod list;
pub mod pod_change;
pub mod preflight;
pub mod rollout;
pub mod simulate;
pub mod top;
pub mod trace;
pub mod tree;
pub mod uninstall;

pub mod finding;
pub mod installation;
pub mod names;
mod pods;

pub mod answer;
pub mod facts;
pub mod installed;
pub mod inventory;
pub mod live;
