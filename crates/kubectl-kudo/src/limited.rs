//! Reads files of unknown size.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

/// Returns the content of a file, which may be an endless device; `None` if the file has more than
/// `limit` bytes.
///
/// # Errors
///
/// If the file cannot be read.
pub(crate) fn read_up_to(path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let mut content = Vec::new();
    let length = File::open(path)?.take(limit.saturating_add(1)).read_to_end(&mut content)?;
    let is_whole = u64::try_from(length).is_ok_and(|length| length <= limit);
    Ok(is_whole.then_some(content))
}
