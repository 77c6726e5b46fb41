//! Parts of both command lines: tables, trees and screens of a terminal, errors, and the connection
//! to a cluster.

pub mod clock;
pub mod color;
pub mod connection;
pub mod errors;
pub mod fit;
pub mod screen;
pub mod table;
pub mod tree;
