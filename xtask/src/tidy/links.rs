//! Links of Markdown pages to files and headings of this repository, and the pages of the
//! documentation site.

use std::{
    collections::BTreeSet,
    path::{Component, Path},
};

use pulldown_cmark::{Event, LinkType, Parser, Tag, TagEnd};

use super::finding::Finding;
use crate::sources;

/// Directory of the documentation site, and its table of contents.
const SITE: &str = "docs";
const CONTENTS: &str = "docs/SUMMARY.md";

/// Fails for each relative link to a file or heading that does not exist, for each link of the
/// documentation site to a file that it does not have, and for each page that its table of contents
/// lacks.
pub(super) fn check() -> anyhow::Result<Vec<Finding>> {
    let mut findings = missing_pages()?;
    for path in sources::with_extension("md")? {
        for target in targets(&sources::text(&path)?) {
            if !exists(&path, &target)? {
                let message = format!("broken link to {target}");
                findings.push(Finding { place: path.clone(), message });
            } else if path.starts_with(SITE) && !is_on_site(&path, &target) {
                let message = format!("the documentation site does not have {target}");
                findings.push(Finding { place: path.clone(), message });
            }
        }
    }
    Ok(findings)
}

fn missing_pages() -> anyhow::Result<Vec<Finding>> {
    let listed = targets(&sources::text(CONTENTS)?);
    let listed: BTreeSet<String> = listed.iter().map(|page| format!("{SITE}/{page}")).collect();
    let pages = sources::with_extension("md")?;
    let missing = pages
        .into_iter()
        .filter(|page| page.starts_with(SITE) && page != CONTENTS && !listed.contains(page));
    let message = format!("{CONTENTS} does not list this page");
    Ok(missing.map(|place| Finding { place, message: message.clone() }).collect())
}

fn targets(text: &str) -> Vec<String> {
    let links = Parser::new_ext(text, options()).filter_map(|event| {
        if let Event::Start(Tag::Link { link_type, dest_url, .. }) = event {
            (link_type != LinkType::Autolink).then(|| dest_url.to_string())
        } else {
            None
        }
    });
    links.filter(|target| !target.contains("://") && !target.starts_with("mailto:")).collect()
}

fn exists(from: &str, target: &str) -> anyhow::Result<bool> {
    let (file, heading) = target.split_once('#').unwrap_or((target, ""));
    let folder = Path::new(from).parent().unwrap_or(Path::new(""));
    let path = if file.is_empty() { Path::new(from).to_owned() } else { folder.join(file) };
    let path = sources::root().join(path);
    if heading.is_empty() || !path.is_file() {
        return Ok(path.exists());
    }
    Ok(headings(&std::fs::read_to_string(path)?).contains(heading))
}

/// Returns whether the documentation site has the target of a link of one of its pages: mdBook
/// copies the content of its directory, and makes an index of each README.
fn is_on_site(from: &str, target: &str) -> bool {
    let file = target.split_once('#').map_or(target, |(file, _)| file);
    let depth = Path::new(from).components().count() - Path::new(SITE).components().count();
    let climbed = Path::new(file).components().filter(|part| *part == Component::ParentDir).count();
    climbed < depth && Path::new(file).file_name() != Some("README.md".as_ref())
}

/// The anchors of a page's headings, as code forges make them.
#[allow(clippy::wildcard_enum_match_arm, reason = "a page has other parts than headings")]
fn headings(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let mut heading: Option<String> = None;
    for event in Parser::new_ext(text, options()) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => anchors.extend(heading.take().map(|h| anchor(&h))),
            Event::Text(part) | Event::Code(part) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&part);
                }
            }
            _ => {}
        }
    }
    anchors
}

fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

fn options() -> pulldown_cmark::Options {
    pulldown_cmark::Options::ENABLE_TABLES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_link_to_what_the_site_has() {
        assert!(is_on_site("docs/index.md", "how-to/scale.md#limits"));
        assert!(is_on_site("docs/reference/backends/envoy.md", "../../GLOSSARY.md"));
        assert!(is_on_site("docs/index.md", "#limits"));
        assert!(!is_on_site("docs/how-to/scale.md", "../../e2e/tests/operations/jobs.rs"));
        assert!(!is_on_site("docs/index.md", "../README.md"));
        assert!(!is_on_site("docs/how-to/monitor.md", "../runbooks/README.md"));
    }
}
