//! The code map in `docs/ARCHITECTURE.md`: every source file with the first sentence of its head.

use std::{fmt::Write as _, fs, path::Path};

use anyhow::Context as _;

use crate::sources;

/// Path of the page, and the heading after which the map stands, up to the end of the page.
pub(crate) const PAGE: &str = "docs/ARCHITECTURE.md";
const HEADING: &str = "## Code map\n";

/// Returns the page with its code map up to date.
///
/// # Errors
///
/// If a source or the page cannot be read, or the page lacks the heading.
pub(crate) fn page() -> anyhow::Result<String> {
    let page = sources::text(PAGE)?;
    let (before, after) = page.split_once(HEADING).context("no heading `Code map`")?;
    let introduction = after.split_once("\n### ").map_or(after, |(introduction, _)| introduction);
    let mut map = format!("{before}{HEADING}{}\n", introduction.trim_end());
    let mut folder = String::new();
    for path in sources::with_extension("rs")?.into_iter().filter(|path| !is_test(path)) {
        let root = path.split("/src/").next().unwrap_or_default();
        if root != folder {
            root.clone_into(&mut folder);
            writeln!(map, "\n### {folder}\n\n| file | content |\n|---|---|")?;
        }
        let file = path.trim_start_matches(&*folder).trim_start_matches("/src/");
        writeln!(map, "| `{}` | {} |", file.trim_start_matches('/'), head(&path)?)?;
    }
    Ok(map)
}

fn is_test(path: &str) -> bool {
    let is_tests_file = Path::new(path).file_stem().is_some_and(|stem| stem == "tests");
    path.contains("/tests/") || is_tests_file || !path.contains("/src/")
}

/// The first sentence of a file's head.
fn head(path: &str) -> anyhow::Result<String> {
    let text = fs::read_to_string(sources::root().join(path))?;
    let lines = text.lines().map_while(|line| line.strip_prefix("//!"));
    let paragraph: Vec<&str> = lines.map(str::trim).take_while(|line| !line.is_empty()).collect();
    let paragraph = paragraph.join(" ");
    let sentence = paragraph.split_once(". ").map_or(paragraph.as_str(), |(first, _)| first);
    let sentence = plain_links(sentence.trim_end_matches('.'));
    Ok(format!("{}.", sentence.replace('|', "\\|")))
}

/// Replaces links to items by their names.
fn plain_links(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("[`") {
        let Some((name, after)) = after.split_once("`]") else { break };
        plain.push_str(before);
        plain.push('`');
        plain.push_str(name);
        plain.push('`');
        rest = after
            .strip_prefix('(')
            .and_then(|target| target.split_once(')'))
            .map_or(after, |(_, after)| after);
    }
    plain.push_str(rest);
    plain
}
