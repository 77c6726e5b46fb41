//! A real control plane with simulated nodes, and the operators as separate processes on it.

pub mod audit;
pub mod balancers;
pub mod bench;
pub mod control_plane;
pub mod lab;
pub mod measure;
pub mod nodes;
pub mod outages;
pub mod process;
pub mod programs;
pub mod scenarios;
pub mod server;
pub mod show;
pub mod soak;
pub mod traffic;
