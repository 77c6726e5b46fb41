//! Rust sources, as tokens and as syntax trees.

use anyhow::Context as _;
use ra_ap_rustc_lexer::{FrontmatterAllowed, LiteralKind, TokenKind, tokenize};
use syn::{Attribute, Item};

use crate::sources;

/// Role of a source file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// A crate in `crates/`, outside its tests.
    Product,
    /// The `e2e` and `xtask` crates and [`TOOLS`], outside their tests.
    Tooling,
    /// Tests, models, simulations.
    Test,
}

/// One Rust source file.
pub(super) struct RustFile {
    /// Path from the repository's root.
    pub(super) path: String,
    pub(super) role: Role,
    /// Comments and string literals, in order.
    pub(super) texts: Vec<Text>,
    /// Lines that hold code, counted from 1: neither blank nor only a comment.
    pub(super) code_lines: Vec<usize>,
    /// Columns of each line that ends with a line comment.
    comment_columns: Vec<usize>,
    pub(super) syntax: syn::File,
}

/// Text for people in a source file.
pub(super) struct Text {
    /// Counted from 1.
    pub(super) line: usize,
    pub(super) kind: TextKind,
    pub(super) content: String,
}

/// Where a [`Text`] stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextKind {
    Comment,
    String,
}

impl RustFile {
    /// Reads every Rust source of the workspace.
    pub(super) fn read_all() -> anyhow::Result<Vec<Self>> {
        sources::with_extension("rs")?.into_iter().map(Self::read).collect()
    }

    fn read(path: String) -> anyhow::Result<Self> {
        let text = sources::text(&path)?;
        let syntax = syn::parse_file(&text).with_context(|| format!("parsing {path}"))?;
        let (texts, code_lines) = lex(&text);
        let comments = texts.iter().filter(|text| text.kind == TextKind::Comment);
        let lines: Vec<&str> = text.lines().collect();
        let comment_columns =
            comments.filter_map(|text| Some(lines.get(text.line - 1)?.chars().count())).collect();
        Ok(Self { role: role(&path), texts, code_lines, comment_columns, syntax, path })
    }

    /// The crate's folder, such as `crates/api`.
    pub(super) fn krate(&self) -> &str {
        let inside = ["/src/", "/tests/", "/build.rs"].map(|part| self.path.find(part));
        let end = inside.into_iter().flatten().min().unwrap_or(self.path.len());
        &self.path[..end]
    }

    /// Number of lines with a comment and more than `columns_max` columns.
    pub(super) fn wide_comments(&self, columns_max: usize) -> usize {
        self.comment_columns.iter().filter(|columns| **columns > columns_max).count()
    }

    /// Number of code lines from `first` to `last`, both included.
    pub(super) fn count_code(&self, first: usize, last: usize) -> usize {
        self.code_lines.iter().filter(|line| (first..=last).contains(*line)).count()
    }
}

/// Crates that only tests, the demo and measurements use.
const TOOLS: [&str; 3] = ["crates/bench/", "crates/test-cluster/", "crates/test-programs/"];

fn role(path: &str) -> Role {
    let is_test = path.contains("/tests/")
        || path.ends_with("/tests.rs")
        || path.contains("/simulation/")
        || path.ends_with("/simulation.rs")
        || path.starts_with("crates/model-support/");
    let is_tool = TOOLS.iter().any(|tool| path.starts_with(tool));
    if is_test {
        Role::Test
    } else if path.starts_with("crates/") && !is_tool {
        Role::Product
    } else {
        Role::Tooling
    }
}

fn lex(text: &str) -> (Vec<Text>, Vec<usize>) {
    let mut texts = Vec::new();
    let mut code_lines = Vec::new();
    let mut offset = 0;
    let mut line = 1;
    for token in tokenize(text, FrontmatterAllowed::No) {
        let end = offset + token.len as usize;
        let content = &text[offset..end];
        let last = line + content.matches('\n').count();
        let kind = text_kind(token.kind);
        if let Some(kind) = kind {
            texts.push(Text { line, kind, content: content.to_owned() });
        }
        if kind != Some(TextKind::Comment) && !matches!(token.kind, TokenKind::Whitespace) {
            code_lines.extend(line..=last);
        }
        (offset, line) = (end, last);
    }
    code_lines.dedup();
    (texts, code_lines)
}

fn text_kind(token: TokenKind) -> Option<TextKind> {
    use LiteralKind::{RawStr, Str};
    use TokenKind::{BlockComment, LineComment, Literal};
    if matches!(token, LineComment { .. } | BlockComment { .. }) {
        Some(TextKind::Comment)
    } else if matches!(token, Literal { kind: Str { .. } | RawStr { .. }, .. }) {
        Some(TextKind::String)
    } else {
        None
    }
}

/// True if the attributes compile the item for tests only.
pub(super) fn is_test_only(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_cfg = attribute.path().is_ident("cfg");
        let tokens = || attribute.meta.require_list().map(|list| list.tokens.to_string());
        is_test(attribute) || (is_cfg && tokens().is_ok_and(|tokens| names_test(&tokens)))
    })
}

/// True for `#[test]`, `#[tokio::test]` and the like.
pub(super) fn is_test(attribute: &Attribute) -> bool {
    attribute.path().segments.last().is_some_and(|last| last.ident == "test")
}

fn names_test(tokens: &str) -> bool {
    tokens.split(|c: char| !c.is_alphanumeric()).any(|word| word == "test")
}

/// The attributes of an item of a kind that this repository uses.
#[allow(clippy::wildcard_enum_match_arm, reason = "syn's kinds of items are not exhaustive")]
pub(super) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
