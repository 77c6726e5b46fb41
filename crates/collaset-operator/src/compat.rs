//! Kuperator's formats: hashes of claim templates and revisions, revision data, canonical
//! quantities.
//!
//! They decide whether an object that Kuperator created is recognized, so they are reproduced byte
//! for byte.

pub mod claim_hash;
pub mod quantity;
pub mod revision_data;
pub mod revision_hash;
