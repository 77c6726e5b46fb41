//! The community packages of KUDO are valid, and their archives are reproducible. The packages are
//! not committed: without them, nothing is tested.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use podops_packages::{
    archive,
    package::{Files, OPERATOR_FILE, Package},
    verify::verify,
};

/// Returns the folder with the packages, next to the repository.
fn community() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/kudo/packages")
}

/// Collects the folders below `folder` that have an `operator.yaml`.
fn packages(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            packages(&path, found);
        } else if path.ends_with(OPERATOR_FILE) {
            found.push(folder.to_owned());
        }
    }
}

fn read(root: &Path, folder: &Path, files: &mut Files) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read(root, &path, files);
        } else {
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            files.insert(name, fs::read(path).unwrap());
        }
    }
}

#[test]
fn community_packages_are_valid() {
    if !community().is_dir() {
        eprintln!("there are no community packages");
        return;
    }
    let mut folders = Vec::new();
    packages(&community(), &mut folders);
    assert_eq!(folders.len(), 14, "{folders:?}");
    for folder in folders {
        let mut files = Files::new();
        read(&folder, &folder, &mut files);
        let package = Package::read(&files).unwrap();
        let report = verify(&package);
        assert!(report.is_valid(), "{}: {:#?}", folder.display(), report.errors);
        let archive = archive::write(&files).unwrap();
        assert_eq!(archive, archive::write(&files).unwrap());
        assert_eq!(archive::read(&archive).unwrap(), files);
    }
}
