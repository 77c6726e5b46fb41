//! The steps of a plan, each a function over the [`Planner`](super::planner::Planner).

pub(super) mod claims;
pub(super) mod dry_run;
pub(super) mod membership;
pub(super) mod reclaim;
pub(super) mod replace;
pub(super) mod revision;
pub(super) mod scale;
pub(super) mod update;
