//! Model checks of plans: every reachable state of an Instance under the shipped planning.
//!
//! In each state, two operators act as leader; one has a stale cache, and both may be killed
//! between any two reads and writes. Safety is checked at every write, and from every state the
//! Instance must converge once faults end.
//!
//! - [`progress`]: a run with a step that succeeds or fails, changed parameters, and cancellation;
//! - [`scheduling`]: the plans that run, and their order, for changed parameters, requests and
//!   cancellations;
//! - [`steps`]: attempts, time limits and failures of steps, against a clock;
//! - [`pipes`]: a Pod's artifacts are created once in a run, and used after they exist;
//! - [`children`]: a step waits for the plan of an Instance that it applies;
//! - [`toggle`]: an object that exists while a parameter is true;
//! - [`removal`]: objects removed from the templates, the plan `cleanup`, finalizers, and other
//!   clients that recreate objects.
//!
//! Every protection is tested by a mutant without it, in which the model must find a violation.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::needless_pass_by_value, reason = "a model is consumed by its run")]

mod children;
mod hashed;
mod pipes;
mod progress;
mod properties;
mod removal;
mod scheduling;
mod steps;
mod toggle;
mod world;
