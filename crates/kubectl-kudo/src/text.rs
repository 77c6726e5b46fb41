//! Text output in KUDO's format.

mod output;
mod table;
mod tree;

pub use self::{
    output::{Format, UnknownFormat, list, object},
    table::{Table, wrapped},
    tree::Node,
};
