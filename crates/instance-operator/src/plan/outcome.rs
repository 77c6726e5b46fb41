//! Result of planning.

use std::{collections::BTreeSet, time::Duration};

use podops_api::kudo::InstanceStatus;
use podops_client::event::ObjectEvent;

use crate::{
    object::ObjectId,
    object_write::{Needs, ObjectWrite},
    schedule::InstanceChange,
};

/// Changes planned by one reconcile.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Change of the Instance itself. Nothing else is planned if the change must be written
    /// [first](InstanceChange::is_first).
    pub change: Option<InstanceChange>,
    /// Reads that are needed before planning can continue.
    pub needs: Needs,
    /// Changes of objects.
    pub writes: Vec<ObjectWrite>,
    /// Objects whose changes may complete a step.
    pub awaited: BTreeSet<ObjectId>,
    /// True if nothing more is planned until the status is stored: if the operator were killed, the
    /// next writes would have no record.
    pub is_status_first: bool,
    /// Time until an attempt of a step or a time limit is due; `None` without either.
    pub requeue_after: Option<Duration>,
    /// Status to report.
    pub status: InstanceStatus,
    /// Events to publish once the status is written.
    pub events: Vec<ObjectEvent>,
}
