//! Trees, such as plans with their phases and steps.

use std::fmt;

/// Node with its children.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    text: String,
    children: Vec<Node>,
}

impl Node {
    /// Returns a node without children.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), children: Vec::new() }
    }

    /// Returns a node with a tag before its text.
    #[must_use]
    pub fn tagged(tag: &str, text: &str) -> Self {
        Self::new(format!("[{tag}]  {text}"))
    }

    /// Adds children.
    #[must_use]
    pub fn with(mut self, children: impl IntoIterator<Item = Node>) -> Self {
        self.children.extend(children);
        self
    }

    /// Adds a child.
    pub fn add(&mut self, child: Node) {
        self.children.push(child);
    }

    fn write_children(&self, prefix: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, child) in self.children.iter().enumerate() {
            let is_last = index + 1 == self.children.len();
            let (edge, below) =
                if is_last { ("└── ", "    ") } else { ("├── ", "│   ") };
            writeln!(f, "{prefix}{edge}{}", child.text)?;
            child.write_children(&format!("{prefix}{below}"), f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.text)?;
        self.write_children("", f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_hang_on_their_parents() {
        let step = Node::tagged("step", "everything").with(["infra", "app"].map(Node::new));
        let phase = Node::tagged("phase", "zookeeper (parallel)").with([step]);
        let tree = Node::new("plans")
            .with([Node::new("deploy (serial)").with([phase]), Node::new("validation (serial)")]);
        let expected = "\
plans
├── deploy (serial)
│   └── [phase]  zookeeper (parallel)
│       └── [step]  everything
│           ├── infra
│           └── app
└── validation (serial)
";
        assert_eq!(tree.to_string(), expected);
    }
}
