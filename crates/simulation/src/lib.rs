//! Predicts the effects of a changed CollaSet: runs the operators' own decision functions against
//! an API server in memory that has the objects of a namespace.
//!
//! Assumed are kubelets that start every container, and traffic adapters that end traffic when they
//! have to. The services of webhook rules are not called: their rules are left out.

mod actors;
mod difference;
mod operators;
mod prediction;
mod rollout;

pub use prediction::{End, Method, PodPrediction, Prediction};
pub use rollout::{Namespace, Settings, SimulationError, simulate};
