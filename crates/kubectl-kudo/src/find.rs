//! Finds packages in folders, archives and repositories.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail};
use kubectl_kudo::{
    cli::{Connection, Search},
    repository::{Index, RepositoryList, Versions},
    resolve::{Located, Packages},
    source::Source,
};
use podops_packages::{archive, package::Files};

use crate::{
    download::{Schemes, check_digest, download},
    limited::read_up_to,
};

/// List of repositories below the home folder.
const LIST: &str = "repository/repositories.yaml";
/// Index of a repository, below its URL.
const INDEX: &str = "index.yaml";
/// Maximum depth of folders in a package.
const DEPTH_MAX: usize = 32;
/// Maximum size of a folder, in bytes.
const SIZE_MAX: u64 = 32 << 20;

/// Timeout of a download without `--request-timeout`.
const DOWNLOAD_TIMEOUT: Duration = Duration::from_secs(60);

/// Finds the packages that arguments name.
pub(crate) struct Finder {
    /// Timeout of a download.
    timeout: Duration,
    home: Option<PathBuf>,
    repository: Option<String>,
    /// Indexes that were read, by repository URL.
    indexes: RefCell<BTreeMap<String, Arc<Index>>>,
}

impl Finder {
    pub(crate) fn new(connection: &Connection, search: &Search) -> Self {
        let timeout = Duration::from_secs(connection.request_timeout);
        Self {
            timeout: if timeout.is_zero() { DOWNLOAD_TIMEOUT } else { timeout },
            home: connection.home.clone(),
            repository: search.repo.clone(),
            indexes: RefCell::default(),
        }
    }

    /// Returns the URL of the repository, from the argument or the list.
    fn url(&self) -> anyhow::Result<String> {
        let wanted = self.repository.as_deref();
        if let Some(url) = wanted.filter(|wanted| wanted.contains(':')) {
            return Ok(url.to_owned());
        }
        let home = match &self.home {
            Some(home) => home.clone(),
            None => env::home_dir().context("there is no home folder")?.join(".kudo"),
        };
        let path = home.join(LIST);
        if !path.exists() {
            let path = path.display();
            match wanted {
                Some(name) => {
                    bail!("could not load repositories file ({path}): no repository {name}")
                }
                None => bail!("no repository is set; name one by --repo URL, or list it in {path}"),
            }
        }
        let list = repositories(&path)
            .with_context(|| format!("could not load repositories file ({})", path.display()))?;
        Ok(list.url(wanted)?.to_owned())
    }

    fn index(&self, url: &str) -> anyhow::Result<Arc<Index>> {
        if let Some(known) = self.indexes.borrow().get(url) {
            return Ok(known.clone());
        }
        let index = self.downloaded_index(url).with_context(|| {
            format!("{url} is not a valid operator repository or cannot be reached")
        });
        let index = Arc::new(index?);
        self.indexes.borrow_mut().insert(url.to_owned(), index.clone());
        Ok(index)
    }

    fn downloaded_index(&self, url: &str) -> anyhow::Result<Index> {
        let place = format!("{}/{INDEX}", url.trim_end_matches('/'));
        let text = String::from_utf8(download(&place, Schemes::of(url), self.timeout)?)?;
        Ok(Index::read(&text)?)
    }

    fn in_repository(&self, name: &str, versions: &Versions) -> anyhow::Result<Located> {
        let repository = self.url()?;
        let index = self.index(&repository)?;
        let entry = index.find(name, versions)?;
        let mut last = None;
        for url in &entry.urls {
            match download(url, Schemes::of(&repository), self.timeout) {
                Ok(content) => {
                    check_digest(url, &content, &entry.digest)?;
                    return of_archive(&content).with_context(|| url.clone());
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| anyhow::anyhow!("the index has no URL for {name}")))
    }
}

impl Packages for Finder {
    fn find(&self, source: &Source, versions: &Versions) -> anyhow::Result<Located> {
        match source {
            Source::Path(path) => at_path(path),
            Source::Url(url) => of_archive(&download(url, Schemes::of(url), self.timeout)?)
                .with_context(|| url.clone()),
            Source::Name(name) => self.in_repository(name, versions),
        }
    }
}

fn repositories(path: &Path) -> anyhow::Result<RepositoryList> {
    Ok(RepositoryList::read(&fs::read_to_string(path)?)?)
}

fn of_archive(content: &[u8]) -> anyhow::Result<Located> {
    let files = Arc::new(archive::read(content)?);
    Ok(Located { files, folder: String::new(), base: None })
}

/// Returns the files of the package in a folder or archive.
///
/// # Errors
///
/// If the folder or archive cannot be read.
pub(crate) fn at_path(path: &Path) -> anyhow::Result<Located> {
    let metadata = fs::metadata(path).with_context(|| path.display().to_string())?;
    if !metadata.is_dir() {
        let content = read(path, SIZE_MAX)?;
        return of_archive(&content).with_context(|| path.display().to_string());
    }
    let files = Arc::new(of_folder(path)?);
    Ok(Located { files, folder: String::new(), base: Some(path.to_owned()) })
}

/// Reads a file of a package.
///
/// # Errors
///
/// If the file cannot be read, or has more than `limit` bytes.
fn read(path: &Path, limit: u64) -> anyhow::Result<Vec<u8>> {
    let content = read_up_to(path, limit).with_context(|| path.display().to_string())?;
    content.with_context(|| {
        format!("{}: the package has more than {} MiB", path.display(), SIZE_MAX >> 20)
    })
}

/// Returns the files of a folder.
///
/// # Errors
///
/// If a file cannot be read or is not regular, or the folder is too large.
pub(crate) fn of_folder(root: &Path) -> anyhow::Result<Files> {
    let mut files = Files::new();
    let mut left = SIZE_MAX;
    let mut open = vec![(root.to_owned(), 0)];
    while let Some((folder, depth)) = open.pop() {
        if depth > DEPTH_MAX {
            bail!("{}: the folder is nested too deep", folder.display());
        }
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let entry = entry?;
            let path = entry.path();
            let kind = entry.file_type()?;
            if kind.is_dir() {
                open.push((path, depth + 1));
                continue;
            }
            if !kind.is_file() {
                // A link could leave the package, and a device could be endless.
                bail!("{}: a package has only files and folders, and no links", path.display());
            }
            let content = read(&path, left)?;
            left -= u64::try_from(content.len())?;
            let relative = path
                .strip_prefix(root)?
                .to_str()
                .with_context(|| format!("{}: the name is not UTF-8", path.display()))?;
            files.insert(relative.to_owned(), content);
        }
    }
    Ok(files)
}
