//! What a reconcile changes.

use std::{collections::BTreeSet, time::Duration};

use podops_api::kudo::InstanceStatus;
use podops_client::event::ObjectEvent;

use crate::{
    object::ObjectId,
    object_write::{Needs, ObjectWrite},
    schedule::InstanceChange,
};

/// What one reconcile changes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Change of the Instance. Nothing else is planned if it is to be written
    /// [first](InstanceChange::is_first).
    pub change: Option<InstanceChange>,
    /// What is to be read before more can be planned.
    pub needs: Needs,
    /// Changes of objects.
    pub writes: Vec<ObjectWrite>,
    /// Objects whose changes may complete a step.
    pub awaited: BTreeSet<ObjectId>,
    /// Whether nothing more is planned until the status is stored: nothing else would know of what follows if
    /// the operator was killed.
    pub is_status_first: bool,
    /// Time until an attempt of a step or a time limit is due; `None` if none is.
    pub requeue_after: Option<Duration>,
    /// Status to report.
    pub status: InstanceStatus,
    /// Events to publish once the status is written.
    pub events: Vec<ObjectEvent>,
}
