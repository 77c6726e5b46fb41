//! End-to-end test harness: a control plane with fake nodes, and the operators as separate
//! processes.

pub mod audit;
pub mod availability;
pub mod balancers;
pub mod bench;
pub mod cluster;
pub mod comparison;
pub mod control_plane;
pub mod folders;
pub mod forged_review;
pub mod http;
pub mod kuperator;
pub mod measure;
pub mod memory_cgroup;
pub mod nodes;
pub mod package_demo;
pub mod package_history;
pub mod package_kills;
pub mod package_rollout;
pub mod packages;
mod page;
pub mod panels;
pub mod permissions;
pub mod plots;
pub mod process;
pub mod progress_view;
pub mod prometheus;
pub mod recording;
pub mod run_to_end;
pub mod scenarios;
pub mod server;
pub mod soak;
pub mod suite;
pub mod tenant;
mod terminal;
pub mod traffic;
pub mod updates;
