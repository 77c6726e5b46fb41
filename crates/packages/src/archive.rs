//! Packages as gzipped tar archives; equal files give equal bytes.

#![expect(clippy::wildcard_enum_match_arm, reason = "any other entry is refused")]

use std::{
    fmt,
    io::{self, Read as _, Write as _},
};

use flate2::{Compression, GzBuilder, read::GzDecoder};
use tar::{Archive, Builder, EntryType, Header};

use crate::package::Files;

/// Maximum size of an archive's content, in bytes; objects in a cluster have at most 1.5 MB.
const SIZE_MAX: u64 = 32 << 20;
/// Maximum size before compression, with headers, which grow with long paths.
const ARCHIVE_MAX: u64 = 2 * SIZE_MAX;
/// Maximum number of files in an archive.
const FILES_MAX: usize = 10_000;
/// Mode of all files.
const MODE: u32 = 0o644;

/// Error of reading or writing an archive.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The bytes are not a gzipped tar archive.
    #[error("no archive of a package")]
    Malformed(#[from] io::Error),
    /// An entry has a path outside of the package.
    #[error("{0}: a path must not be absolute or contain '..'")]
    Path(String),
    /// An entry is neither a file nor a folder.
    #[error("{path}: a {kind} is not allowed in a package")]
    Kind {
        /// Path of the entry.
        path: String,
        /// Kind of the entry.
        kind: EntryKind,
    },
    /// Two entries have the same path.
    #[error("{0} is in the archive twice")]
    Duplicate(String),
    /// The content is too large.
    #[error("the archive exceeds the limit of {0}")]
    Limit(&'static str),
}

/// Kind of an entry that is not allowed in a package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A symbolic or hard link.
    Link,
    /// A device, pipe or other special file.
    Special,
}

impl fmt::Display for EntryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Link => "link",
            Self::Special => "special file",
        })
    }
}

/// Writes an archive: regular files owned by root, ordered by path, without times.
///
/// # Errors
///
/// [`Error`] if [`read`] would reject the archive: a path is invalid, or the files exceed a limit.
pub fn write(files: &Files) -> Result<Vec<u8>, Error> {
    if files.len() > FILES_MAX {
        return Err(Error::Limit("10000 files"));
    }
    if files.values().map(|content| content.len() as u64).sum::<u64>() > SIZE_MAX {
        return Err(Error::Limit("32 MiB"));
    }
    let mut builder = Builder::new(Vec::new());
    for (path, content) in files {
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(MODE);
        header.set_uid(0);
        header.set_gid(0);
        header.set_username("root")?;
        header.set_groupname("root")?;
        header.set_mtime(0);
        header.set_size(content.len() as u64);
        builder.append_data(&mut header, path, content.as_slice())?;
    }
    let tar = builder.into_inner()?;
    let mut encoder = GzBuilder::new().mtime(0).write(Vec::new(), Compression::default());
    encoder.write_all(&tar)?;
    Ok(encoder.finish()?)
}

/// Reads an archive. Folders are ignored.
///
/// # Errors
///
/// [`Error`] if the archive is malformed or too large, or has entries that are not allowed.
pub fn read(archive: &[u8]) -> Result<Files, Error> {
    let content = GzDecoder::new(archive).take(ARCHIVE_MAX);
    let mut archive = Archive::new(content);
    let mut files = Files::new();
    let mut left = SIZE_MAX;
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let kind = entry.header().entry_type();
        let is_file = match kind {
            EntryType::Directory | EntryType::XGlobalHeader => false,
            EntryType::Regular | EntryType::Continuous => true,
            EntryType::Link | EntryType::Symlink => {
                return Err(Error::Kind { path, kind: EntryKind::Link });
            }
            _ => return Err(Error::Kind { path, kind: EntryKind::Special }),
        };
        if !is_file {
            continue;
        }
        let name = relative(&path)?;
        left = left.checked_sub(entry.size()).ok_or(Error::Limit("32 MiB"))?;
        if files.len() == FILES_MAX {
            return Err(Error::Limit("10000 files"));
        }
        let mut content = Vec::new();
        entry.read_to_end(&mut content)?;
        if files.insert(name.clone(), content).is_some() {
            return Err(Error::Duplicate(name));
        }
    }
    // The reader ends at the limit, as if the archive ended there.
    if archive.into_inner().limit() == 0 {
        return Err(Error::Limit("64 MiB before it is compressed"));
    }
    Ok(files)
}

/// Returns a path without `.` and empty parts; [`Error::Path`] if the path leaves the package.
fn relative(path: &str) -> Result<String, Error> {
    let parts: Vec<&str> = path.split('/').collect();
    if path.starts_with('/') || parts.contains(&"..") || path.contains('\\') {
        return Err(Error::Path(path.to_owned()));
    }
    let parts: Vec<&str> = parts.into_iter().filter(|part| !matches!(*part, "" | ".")).collect();
    if parts.is_empty() { Err(Error::Path(path.to_owned())) } else { Ok(parts.join("/")) }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn files() -> Files {
        let entries = [("operator.yaml", "name: x\n"), ("templates/a/b.yaml", "a: b\n")];
        entries.map(|(path, text)| (path.to_owned(), text.as_bytes().to_vec())).into()
    }

    /// Returns an archive with one entry.
    fn archive(kind: EntryType, path: &str, content: &[u8]) -> Vec<u8> {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_size(content.len() as u64);
        // The crate's own functions reject such a path.
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_cksum();
        let mut builder = Builder::new(Vec::new());
        builder.append(&header, content).unwrap();
        let mut encoder = GzBuilder::new().write(Vec::new(), Compression::fast());
        encoder.write_all(&builder.into_inner().unwrap()).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn the_same_files_are_the_same_bytes() {
        let archive = write(&files()).unwrap();
        assert_eq!(archive, write(&files()).unwrap());
        assert_eq!(read(&archive).unwrap(), files());
    }

    #[test]
    fn paths_outside_of_the_package_are_rejected() {
        for path in ["../a.yaml", "/etc/passwd", "a/../../b.yaml", "..", "a\\..\\b"] {
            let error = read(&archive(EntryType::Regular, path, b"x")).unwrap_err();
            assert!(error.to_string().starts_with(&format!("{path}: a path must not")), "{error}");
        }
        let plain = read(&archive(EntryType::Regular, "./op//a.yaml", b"x")).unwrap();
        assert_eq!(plain.keys().collect::<Vec<_>>(), ["op/a.yaml"]);
    }

    #[test]
    fn links_and_devices_are_rejected() {
        for (kind, name) in [
            (EntryType::Symlink, "link"),
            (EntryType::Link, "link"),
            (EntryType::Fifo, "special file"),
            (EntryType::Char, "special file"),
        ] {
            let error = read(&archive(kind, "a.yaml", b"")).unwrap_err().to_string();
            assert_eq!(error, format!("a.yaml: a {name} is not allowed in a package"));
        }
        assert!(read(&archive(EntryType::Directory, "templates", b"")).unwrap().is_empty());
    }

    #[test]
    fn an_archive_that_grows_without_end_is_rejected() {
        // A file of 1 GiB.
        let size = 1 << 30;
        let mut header = Header::new_ustar();
        header.set_size(size);
        let encoder = GzBuilder::new().write(Vec::new(), Compression::fast());
        let mut builder = Builder::new(encoder);
        builder.append_data(&mut header, "a.yaml", io::repeat(0).take(size)).unwrap();
        let bomb = builder.into_inner().unwrap().finish().unwrap();
        assert!(bomb.len() < 16 << 20, "it is small");
        let started = Instant::now();
        assert_eq!(read(&bomb).unwrap_err().to_string(), "the archive exceeds the limit of 32 MiB");
        assert!(started.elapsed() < Duration::from_secs(5), "it is not read to its end");
        // Folders have headers and no content.
        let mut builder = Builder::new(Vec::new());
        for n in 0..150_000 {
            let mut header = Header::new_ustar();
            header.set_entry_type(EntryType::Directory);
            header.set_size(0);
            builder.append_data(&mut header, format!("d{n}"), &b""[..]).unwrap();
        }
        let mut encoder = GzBuilder::new().write(Vec::new(), Compression::fast());
        encoder.write_all(&builder.into_inner().unwrap()).unwrap();
        let error = read(&encoder.finish().unwrap()).unwrap_err().to_string();
        assert_eq!(error, "the archive exceeds the limit of 64 MiB before it is compressed");
        let many: Files = (0..=FILES_MAX).map(|n| (format!("{n}.yaml"), Vec::new())).collect();
        let error = write(&many).unwrap_err().to_string();
        assert_eq!(error, "the archive exceeds the limit of 10000 files");
    }

    #[test]
    fn what_is_no_archive_is_rejected() {
        for text in [&b""[..], b"name: x\n", &write(&files()).unwrap()[..40]] {
            assert!(matches!(read(text), Err(Error::Malformed(_))), "{text:?}");
        }
    }
}
