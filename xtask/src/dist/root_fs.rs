//! Files of an image: the program, its libraries, certificates, and the user that it runs as.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
};

use anyhow::Context as _;

use super::{archive::Entry, debian::Runtime};

/// User and group that the program runs as.
pub(super) const USER: u32 = 65_532;

/// Files of an image, by path from the root.
pub(super) struct RootFs(BTreeMap<String, Entry>);

impl RootFs {
    /// Entries, directories before their contents.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.0.iter().map(|(path, entry)| (path.as_str(), entry))
    }

    /// Size of all files in bytes.
    pub(super) fn size(&self) -> u64 {
        let sizes = self.0.values().map(|entry| match entry {
            Entry::Directory | Entry::Link { .. } => 0,
            Entry::File { content, .. } => content.len() as u64,
        });
        sizes.sum()
    }

    /// Writes the files into a new directory.
    ///
    /// # Errors
    ///
    /// If the directory exists, or a file cannot be written.
    pub(super) fn write(&self, directory: &Path) -> anyhow::Result<()> {
        if let Some(parent) = directory.parent() {
            fs::create_dir_all(parent)?;
        }
        create_dir(directory)?;
        for (path, entry) in self.entries() {
            let path = directory.join(path);
            match entry {
                Entry::Directory => create_dir(&path)?,
                Entry::Link { target } => symlink(target, &path)?,
                Entry::File { content, mode } => {
                    fs::write(&path, content)?;
                    fs::set_permissions(path, fs::Permissions::from_mode(*mode))?;
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, path: &str, content: Vec<u8>, mode: u32) {
        for (index, _) in path.match_indices('/') {
            self.0.entry(path[..index].to_owned()).or_insert(Entry::Directory);
        }
        self.0.insert(path.to_owned(), Entry::File { content, mode });
    }
}

/// Creates a directory that every user may read, whatever the umask.
fn create_dir(path: &Path) -> anyhow::Result<()> {
    fs::create_dir(path).with_context(|| path.display().to_string())?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o755))?)
}

/// Path of a program in its image.
pub(super) fn program_path(name: &str) -> String {
    format!("usr/bin/{name}")
}

/// Returns the files of a program's image.
///
/// # Errors
///
/// If the program cannot be read.
pub(super) fn read(programs: &Path, name: &str, runtime: &Runtime) -> anyhow::Result<RootFs> {
    let program = programs.join(name);
    let program = fs::read(&program).with_context(|| program.display().to_string())?;
    let mut files = RootFs(BTreeMap::new());
    files.add(&program_path(name), program, 0o755);
    for (path, content) in &runtime.libraries {
        files.add(path, content.clone(), 0o755);
    }
    for (path, content) in &runtime.data {
        files.add(path, content.clone(), 0o644);
    }
    let passwd = format!("nonroot:x:{USER}:{USER}::/:/nonexistent\n");
    files.add("etc/passwd", passwd.into_bytes(), 0o644);
    files.add("etc/group", format!("nonroot:x:{USER}:\n").into_bytes(), 0o644);
    Ok(files)
}
