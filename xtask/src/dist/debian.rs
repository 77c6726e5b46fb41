//! Files of Debian packages: the libraries that the programs are linked with, and the certificates
//! of public certificate authorities.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail, ensure};

use crate::prerequisites;

/// Packages whose files are in each image.
const PACKAGES: [&str; 3] = ["ca-certificates", "libc6", "libgcc-s1"];
/// Libraries that the programs are linked with.
const LIBRARIES: [&str; 3] = ["libc.so.6", "libgcc_s.so.1", "libm.so.6"];

/// Platform of the programs.
pub(crate) struct Platform {
    /// Architecture, as in image indexes and Debian packages.
    pub(crate) architecture: &'static str,
    /// Path of the dynamic loader, from the root.
    loader: &'static str,
    /// Directory of libraries, from the root.
    libraries: &'static str,
}

impl Platform {
    /// Platform of the machine that builds.
    pub(super) fn of_this_machine() -> anyhow::Result<Self> {
        Ok(match env::consts::ARCH {
            "x86_64" => Self {
                architecture: "amd64",
                loader: "lib64/ld-linux-x86-64.so.2",
                libraries: "lib/x86_64-linux-gnu",
            },
            "aarch64" => Self {
                architecture: "arm64",
                loader: "lib/ld-linux-aarch64.so.1",
                libraries: "lib/aarch64-linux-gnu",
            },
            other => bail!("images of {other} are not supported"),
        })
    }
}

/// Version of a Debian package.
pub(crate) struct Package {
    /// Name.
    pub(crate) name: String,
    /// Version.
    pub(crate) version: String,
    /// Architecture.
    pub(crate) architecture: String,
}

/// Files that the programs need at run time.
pub(crate) struct Runtime {
    /// Packages that the files are from.
    pub(crate) packages: Vec<Package>,
    /// Paths from the root, and contents, of executable files.
    pub(crate) libraries: Vec<(String, Vec<u8>)>,
    /// Paths from the root, and contents, of other files.
    pub(crate) data: Vec<(String, Vec<u8>)>,
}

/// Downloads the packages, of the versions in the lists of this machine, and returns their files.
///
/// # Errors
///
/// If a package cannot be downloaded, or has not the expected files.
pub(super) fn runtime(platform: &Platform) -> anyhow::Result<Runtime> {
    let work = tempfile::tempdir()?;
    let downloads = work.path().join("downloads");
    let unpacked = work.path().join("unpacked");
    fs::create_dir_all(&downloads)?;
    download(&PACKAGES, &downloads)?;
    let mut packages = Vec::new();
    for archive in archives(&downloads)? {
        let fields = ["Package", "Version", "Architecture"];
        let control = run(Command::new("dpkg-deb").arg("--field").arg(&archive).args(fields))?;
        packages.push(package(&control)?);
        run(Command::new("dpkg-deb").arg("--extract").arg(&archive).arg(&unpacked))?;
    }
    let loader = Path::new(platform.loader).file_name().context("file name")?.to_string_lossy();
    let mut libraries = vec![(platform.loader.to_owned(), library(&unpacked, &loader)?)];
    for name in LIBRARIES {
        libraries.push((format!("{}/{name}", platform.libraries), library(&unpacked, name)?));
    }
    let mut data = vec![(
        "etc/ssl/certs/ca-certificates.crt".to_owned(),
        certificates(&unpacked.join("usr/share/ca-certificates"))?,
    )];
    for name in PACKAGES {
        data.push((format!("usr/share/doc/{name}/copyright"), copyright(&unpacked, name)?));
    }
    Ok(Runtime { packages, libraries, data })
}

/// Downloads packages. The lists of packages are updated if they are missing.
fn download(packages: &[&str], directory: &Path) -> anyhow::Result<()> {
    let download = || {
        let mut command = Command::new("apt-get");
        run(command.args(["--quiet", "download"]).args(packages).current_dir(directory))
    };
    if download().is_err() {
        prerequisites::update_package_lists();
        download()?;
    }
    Ok(())
}

/// Copyright of a package, which may be in another package that its directory is a link to.
fn copyright(unpacked: &Path, package: &str) -> anyhow::Result<Vec<u8>> {
    let directory = unpacked.join("usr/share/doc").join(package);
    if let Ok(link) = fs::read_link(&directory) {
        let other = link.to_string_lossy();
        download(&[&other], unpacked)?;
        let archive = archives(unpacked)?.pop().with_context(|| format!("no package {other}"))?;
        run(Command::new("dpkg-deb").arg("--extract").arg(&archive).arg(unpacked))?;
        fs::remove_file(archive)?;
    }
    let file = directory.join("copyright");
    fs::read(&file).with_context(|| file.display().to_string())
}

/// Archives of packages in a directory, sorted.
fn archives(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut archives = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            archives.push(path);
        }
    }
    archives.sort_unstable();
    Ok(archives)
}

/// Parses the fields that `dpkg-deb --field` prints.
fn package(control: &str) -> anyhow::Result<Package> {
    let field = |name: &str| {
        let mut lines = control.lines().filter_map(|line| line.split_once(": "));
        let found = lines.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned());
        found.with_context(|| format!("the package has no field {name}"))
    };
    Ok(Package {
        name: field("Package")?,
        version: field("Version")?,
        architecture: field("Architecture")?,
    })
}

/// Content of a library in one of the directories that distributions use. Links are not followed:
/// an absolute one leads to the machine that builds.
fn library(unpacked: &Path, name: &str) -> anyhow::Result<Vec<u8>> {
    let mut directories = vec![unpacked.to_owned()];
    let mut found = Vec::new();
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                directories.push(entry.path());
            } else if entry.file_type()?.is_file() && entry.file_name() == name {
                found.push(entry.path());
            }
        }
    }
    match &found[..] {
        [file] => fs::read(file).with_context(|| file.display().to_string()),
        [] => bail!("no package has {name}"),
        [..] => bail!("the packages have several {name}"),
    }
}

/// All certificates of a directory, in the order of their paths.
fn certificates(directory: &Path) -> anyhow::Result<Vec<u8>> {
    let mut directories = vec![directory.to_owned()];
    let mut files = Vec::new();
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            let is_directory = entry.file_type()?.is_dir();
            if is_directory { &mut directories } else { &mut files }.push(entry.path());
        }
    }
    files.sort_unstable();
    ensure!(!files.is_empty(), "the package has no certificates");
    let mut bundle = Vec::new();
    for file in files {
        let certificate = fs::read(file)?;
        let is_complete = certificate.ends_with(b"\n");
        bundle.extend(certificate);
        if !is_complete {
            bundle.push(b'\n');
        }
    }
    Ok(bundle)
}

/// Runs a command, and returns its output.
fn run(command: &mut Command) -> anyhow::Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("starting {program}"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} failed: {}", error.trim());
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn libraries_are_never_those_of_the_machine_that_builds() {
        let work = tempfile::tempdir().unwrap();
        let outside = work.path().join("outside");
        let unpacked = work.path().join("unpacked");
        fs::write(&outside, "of the machine").unwrap();
        for directory in ["lib64", "usr/lib"] {
            fs::create_dir_all(unpacked.join(directory)).unwrap();
        }
        symlink(&outside, unpacked.join("lib64/ld.so")).unwrap();
        assert!(library(&unpacked, "ld.so").is_err());
        fs::write(unpacked.join("usr/lib/ld.so"), "of the package").unwrap();
        assert_eq!(library(&unpacked, "ld.so").unwrap(), b"of the package");
        fs::write(unpacked.join("ld.so"), "another").unwrap();
        assert!(library(&unpacked, "ld.so").is_err(), "which of them is not known");
    }

    #[test]
    fn certificates_are_separated() {
        let work = tempfile::tempdir().unwrap();
        fs::write(work.path().join("b"), "second\n").unwrap();
        fs::write(work.path().join("a"), "first").unwrap();
        assert_eq!(certificates(work.path()).unwrap(), b"first\nsecond\n");
    }
}
