//! The page about KUDO names a test, or a reason, for each of its known defects, and these tests
//! exist.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use podops_test_cluster::cluster::root;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Number of known defects in our specification.
const DEFECTS: usize = 52;

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn each_known_defect_of_kudo_has_a_test_or_a_reason() {
    let mut files = Vec::new();
    for folder in ["crates", "e2e/tests"] {
        sources(&root().join(folder), &mut files);
    }
    let code: Vec<String> = files.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    let page = fs::read_to_string(root().join("docs/KUDO.md")).unwrap();
    let (_, table) = page.split_once("## Known defects of KUDO").unwrap();
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("| K")).collect();
    assert_eq!(rows.len(), DEFECTS);
    for (index, row) in rows.into_iter().enumerate() {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        assert_eq!(cells[1], format!("K{}", index + 1));
        let named = cells[3].split('`').skip(1).step_by(2).filter(|name| name.contains('_'));
        for test in named {
            // The latter is run by a test that has a cluster for several.
            let functions = ["", "cluster: &Cluster"].map(|of| format!("fn {test}({of}) {{"));
            let is_test = |code: &String| functions.iter().any(|function| code.contains(function));
            assert!(code.iter().any(is_test), "{row}: no test {test}");
        }
        assert!(cells[3].contains('`') || cells[3].starts_with("the command is missing"), "{row}");
    }
}
