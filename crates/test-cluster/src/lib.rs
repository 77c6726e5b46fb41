//! Test cluster: a control plane with fake nodes, the operators as separate processes, and the
//! load, balancers and measurements of scenarios.

pub mod audit;
pub mod availability;
pub mod balancers;
pub mod cluster;
pub mod control_plane;
pub mod folders;
pub mod forged_review;
pub mod http;
pub mod kubelets;
pub mod kuperator;
pub mod measure;
pub mod memory_cgroup;
pub mod nodes;
mod operator_processes;
pub mod package_history;
pub mod package_kills;
pub mod package_rollout;
pub mod permissions;
pub mod process;
pub mod prometheus;
pub mod relay;
pub mod run_to_end;
pub mod scenarios;
pub mod server;
pub mod suite;
pub mod tenant;
pub mod traffic;
pub mod updates;
