//! Texts for people, in KUDO's form.

mod output;
mod table;
mod tree;

pub use self::{
    output::{Format, UnknownFormat, list, object},
    table::{Table, wrapped},
    tree::Node,
};
