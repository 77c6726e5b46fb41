//! Desired traffic of an employer's Pods, as its backend must apply it.

use crate::{
    backends::DesiredMember,
    traffic::DesiredTraffic,
    view::{EmployerState, MemberView},
};

/// Returns the desired state of a Pod at its employer's backend.
#[must_use]
pub fn desired_traffic(state: EmployerState, member: &MemberView) -> DesiredTraffic {
    if state == EmployerState::Active
        && member.selected
        && member.ready
        && !member.addresses.is_empty()
    {
        DesiredTraffic::Serve
    } else {
        DesiredTraffic::Off
    }
}

/// Returns the Pods of an employer with their desired traffic, in the same order.
#[must_use]
pub fn desired_members(state: EmployerState, members: &[MemberView]) -> Vec<DesiredMember> {
    members.iter().map(|member| desired_member(state, member)).collect()
}

fn desired_member(state: EmployerState, member: &MemberView) -> DesiredMember {
    DesiredMember {
        name: member.name.clone(),
        uid: member.uid.clone(),
        // The address of a terminal Pod may have been reassigned.
        addresses: if member.terminal { Vec::new() } else { member.addresses.clone() },
        traffic: desired_traffic(state, member),
    }
}

/// Returns whether no Pod waits for its traffic: those with the protection finalizer should serve,
/// and no others.
#[must_use]
pub fn is_stable(state: EmployerState, members: &[MemberView], finalizer: &str) -> bool {
    members.iter().all(|member| {
        member.has_finalizer(finalizer) == (desired_traffic(state, member) == DesiredTraffic::Serve)
    })
}
