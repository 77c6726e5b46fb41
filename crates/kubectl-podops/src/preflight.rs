//! Findings that prevent, or result from, a switch between Kuperator and Podops. Pure: the objects
//! of a cluster in, findings out.

mod decorations;
mod direction;
mod installation;
mod jobs;
mod objects;
mod rules;
mod sets;

pub use direction::Direction;
pub use objects::Inventory;

use crate::finding::Findings;

/// Checks a cluster before a switch.
#[must_use]
pub fn check(inventory: &Inventory, direction: Direction) -> Findings {
    let mut findings = Findings::default();
    installation::check(inventory, direction, &mut findings);
    for set in &inventory.sets {
        sets::check(set, direction, &mut findings);
    }
    sets::check_together(inventory, direction, &mut findings);
    for rule in &inventory.rules {
        rules::check(rule, direction, &mut findings);
    }
    for decoration in &inventory.decorations {
        decorations::check(decoration, direction, &mut findings);
    }
    for job in &inventory.jobs {
        jobs::check(job, direction, &mut findings);
    }
    jobs::check_pods(inventory, &mut findings);
    findings.sort();
    findings
}

#[cfg(test)]
mod tests;
