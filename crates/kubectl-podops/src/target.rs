//! Objects that commands name: `pod/web-1`, `collaset/web`.

use std::{fmt, str::FromStr};

/// Argument that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidArgument(pub String);

/// Object that a command names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A Pod.
    Pod(String),
    /// A CollaSet.
    CollaSet(String),
    /// A node.
    Node(String),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(name) => write!(f, "pod/{name}"),
            Self::CollaSet(name) => write!(f, "collaset/{name}"),
            Self::Node(name) => write!(f, "node/{name}"),
        }
    }
}

impl FromStr for Target {
    type Err = InvalidArgument;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (kind, name) = text.split_once('/').unwrap_or(("collaset", text));
        let name = name.to_owned();
        match kind {
            _ if name.is_empty() || name.contains('/') => {
                Err(InvalidArgument(format!("{text} is not <kind>/<name>")))
            }
            "pod" | "pods" | "po" => Ok(Self::Pod(name)),
            "collaset" | "collasets" | "cls" => Ok(Self::CollaSet(name)),
            "node" | "nodes" | "no" => Ok(Self::Node(name)),
            other => Err(InvalidArgument(format!(
                "{other} is no known kind; known are collaset, node and pod"
            ))),
        }
    }
}

/// Parses the name of a CollaSet, with or without its kind.
///
/// # Errors
///
/// [`InvalidArgument`] if the text names something else.
pub fn set_name(text: &str) -> Result<String, InvalidArgument> {
    match text.parse()? {
        Target::CollaSet(name) => Ok(name),
        other @ (Target::Pod(_) | Target::Node(_)) => {
            Err(InvalidArgument(format!("{other} is no CollaSet")))
        }
    }
}

/// Parses the name of a Pod, with or without its kind.
///
/// # Errors
///
/// [`InvalidArgument`] if the text names something else.
pub fn pod_name(text: &str) -> Result<String, InvalidArgument> {
    let qualified = if text.contains('/') { text.to_owned() } else { format!("pod/{text}") };
    match qualified.parse()? {
        Target::Pod(name) => Ok(name),
        other @ (Target::CollaSet(_) | Target::Node(_)) => {
            Err(InvalidArgument(format!("{other} is no Pod")))
        }
    }
}

/// Parses the name of a node, with or without its kind.
///
/// # Errors
///
/// [`InvalidArgument`] if the text names something else.
pub fn node_name(text: &str) -> Result<String, InvalidArgument> {
    let qualified = if text.contains('/') { text.to_owned() } else { format!("node/{text}") };
    match qualified.parse()? {
        Target::Node(name) => Ok(name),
        other @ (Target::Pod(_) | Target::CollaSet(_)) => {
            Err(InvalidArgument(format!("{other} is no node")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_kinds() {
        assert_eq!("web".parse(), Ok(Target::CollaSet("web".to_owned())));
        assert_eq!("cls/web".parse(), Ok(Target::CollaSet("web".to_owned())));
        assert_eq!("po/web-1".parse(), Ok(Target::Pod("web-1".to_owned())));
        for invalid in ["", "pod/", "pod/a/b", "service/a"] {
            assert!(invalid.parse::<Target>().is_err(), "{invalid}");
        }
        assert_eq!(pod_name("web-1"), Ok("web-1".to_owned()));
        assert_eq!(pod_name("pod/web-1"), Ok("web-1".to_owned()));
        assert!(pod_name("collaset/web").is_err());
    }
}
