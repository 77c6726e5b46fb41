//! Location of a package, as written in an argument or a KudoOperator task.

use std::path::{Component, Path, PathBuf};

/// Location of a package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Folder or archive, relative to the working directory or the parent package.
    Path(PathBuf),
    /// URL of an archive.
    Url(String),
    /// Name in a repository.
    Name(String),
}

impl Source {
    /// Parses an argument: a path contains a separator, or is `.`, `..` or the name of an archive.
    #[must_use]
    pub fn parse(argument: &str) -> Self {
        if argument.starts_with("http://") || argument.starts_with("https://") {
            return Self::Url(argument.to_owned());
        }
        let is_path = argument.contains('/')
            || [".", ".."].contains(&argument)
            || Path::new(argument).extension().is_some_and(|extension| extension == "tgz");
        if is_path {
            return Self::Path(PathBuf::from(argument));
        }
        Self::Name(argument.to_owned())
    }
}

/// Returns the folder in an archive at a path relative to `from`; `None` if the path is outside.
#[must_use]
pub fn folder_in_archive(from: &str, path: &Path) -> Option<String> {
    let mut parts: Vec<String> =
        from.split('/').filter(|part| !part.is_empty()).map(ToOwned::to_owned).collect();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => drop(parts.pop()?),
            Component::Normal(part) => parts.push(part.to_str()?.to_owned()),
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_a_separator_and_names_do_not() {
        let path = |text: &str| Source::Path(PathBuf::from(text));
        assert_eq!(Source::parse("./kafka"), path("./kafka"));
        assert_eq!(Source::parse("."), path("."));
        assert_eq!(Source::parse("kafka-1.tgz"), path("kafka-1.tgz"));
        assert_eq!(Source::parse("kafka"), Source::Name("kafka".to_owned()));
        let url = "https://example.com/kafka-1.tgz";
        assert_eq!(Source::parse(url), Source::Url(url.to_owned()));
    }

    #[test]
    fn paths_stay_in_their_archive() {
        let found = |from: &str, path: &str| folder_in_archive(from, Path::new(path));
        assert_eq!(found("", "./child").as_deref(), Some("child"));
        assert_eq!(found("a/b", "../c").as_deref(), Some("a/c"));
        assert_eq!(found("a", "..").as_deref(), Some(""));
        assert_eq!(found("", "../x"), None);
        assert_eq!(found("a", "/etc"), None);
    }
}
