//! Archives whose bytes depend only on their content.

use std::{fs, io::Write as _, path::Path};

use anyhow::Context as _;
use flate2::{Compression, GzBuilder};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

use super::release::Release;

/// Entry of an archive.
pub(super) enum Entry {
    Directory,
    File {
        content: Vec<u8>,
        mode: u32,
    },
    /// Symbolic link to another entry.
    Link {
        target: &'static str,
    },
}

/// Returns a tar archive of these entries, which belong to root and have no time.
pub(super) fn tar<'a>(
    entries: impl IntoIterator<Item = (&'a str, &'a Entry)>,
) -> anyhow::Result<Vec<u8>> {
    let mut builder = Builder::new(Vec::new());
    for (path, entry) in entries {
        let mut header = Header::new_ustar();
        header.set_mtime(0);
        header.set_uid(0);
        header.set_gid(0);
        let (kind, mode, content): (_, _, &[u8]) = match entry {
            Entry::Directory => (EntryType::Directory, 0o755, &[]),
            Entry::File { content, mode } => (EntryType::Regular, *mode, content),
            Entry::Link { target } => {
                header.set_link_name(target)?;
                (EntryType::Symlink, 0o777, &[])
            }
        };
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(content.len() as u64);
        builder.append_data(&mut header, path, content)?;
    }
    Ok(builder.into_inner()?)
}

/// Compresses without a time.
pub(super) fn gzip(content: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut encoder = GzBuilder::new().mtime(0).write(Vec::new(), Compression::default());
    encoder.write_all(content)?;
    Ok(encoder.finish()?)
}

/// SHA-256 in hexadecimal.
pub(super) fn sha256(content: &[u8]) -> String {
    hex::encode(Sha256::digest(content))
}

/// Writes the archive of a program, `<name>-<version>-linux-<architecture>.tar.gz`, with links to
/// it that have other names; returns the size of the program in bytes.
pub(super) fn write_program(
    release: &Release,
    directory: &Path,
    name: &'static str,
    links: &[&'static str],
) -> anyhow::Result<u64> {
    let program = directory.join(name);
    let content = fs::read(&program).with_context(|| program.display().to_string())?;
    let size = content.len() as u64;
    let license = fs::read(crate::sources::root().join("LICENSE"))?;
    let mut entries = vec![
        ("LICENSE", Entry::File { content: license, mode: 0o644 }),
        (name, Entry::File { content, mode: 0o755 }),
    ];
    entries.extend(links.iter().map(|link| (*link, Entry::Link { target: name })));
    let archive = gzip(&tar(entries.iter().map(|(path, entry)| (*path, entry)))?)?;
    let file = format!("{name}-{}-linux-{}.tar.gz", release.version, release.platform.architecture);
    fs::write(release.output.join(file), archive)?;
    Ok(size)
}
