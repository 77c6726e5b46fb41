//! Pod templates: differences between two of them, and the resources of their containers.

pub mod compare;
mod metadata;
pub mod resources;
