//! Semantic versions and constraints, as in Masterminds semver 1.5.0.

use std::{cmp::Ordering, fmt};

use crate::text::run_length;

/// Version; minor and patch may be missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Version {
    /// Major, minor, patch.
    pub(crate) numbers: [i64; 3],
    pub(crate) prerelease: String,
    pub(crate) metadata: String,
    pub(crate) original: String,
}

impl Version {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let parts = Parts::parse(text, |c| c.is_ascii_digit())?;
        Some(Self {
            numbers: [
                number(Some(parts.numbers[0]?))?,
                number(parts.numbers[1])?,
                number(parts.numbers[2])?,
            ],
            prerelease: parts.prerelease.to_owned(),
            metadata: parts.metadata.to_owned(),
            original: text.to_owned(),
        })
    }

    pub(crate) fn order(&self, other: &Self) -> Ordering {
        self.numbers.cmp(&other.numbers).then_with(|| {
            match (self.prerelease.is_empty(), other.prerelease.is_empty()) {
                (true, true) => Ordering::Equal,
                (true, false) => Ordering::Greater,
                (false, true) => Ordering::Less,
                (false, false) => order_of_prereleases(&self.prerelease, &other.prerelease),
            }
        })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.numbers;
        write!(formatter, "{major}.{minor}.{patch}")?;
        if !self.prerelease.is_empty() {
            write!(formatter, "-{}", self.prerelease)?;
        }
        if !self.metadata.is_empty() {
            write!(formatter, "+{}", self.metadata)?;
        }
        Ok(())
    }
}

fn number(part: Option<&str>) -> Option<i64> {
    part.map_or(Some(0), |part| part.parse().ok())
}

fn order_of_prereleases(left: &str, right: &str) -> Ordering {
    let mut left = left.split('.');
    let mut right = right.split('.');
    loop {
        let order = match (left.next(), right.next()) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => Ordering::Less,
            (Some(_), None) => Ordering::Greater,
            (Some(left), Some(right)) => match (left.parse::<u64>(), right.parse::<u64>()) {
                _ if left == right => Ordering::Equal,
                (Ok(left), Ok(right)) if left > right => Ordering::Greater,
                (Ok(_), Ok(_)) => Ordering::Less,
                (Ok(_), Err(_)) => Ordering::Less,
                (Err(_), Ok(_)) => Ordering::Greater,
                (Err(_), Err(_)) => left.cmp(right),
            },
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

/// Parts of a version's text.
struct Parts<'a> {
    numbers: [Option<&'a str>; 3],
    /// Prerelease and metadata with their separators.
    suffix: &'a str,
    prerelease: &'a str,
    metadata: &'a str,
}

impl<'a> Parts<'a> {
    /// Splits a version; `is_digit` accepts the characters of its numbers.
    fn parse(text: &'a str, is_digit: fn(char) -> bool) -> Option<Self> {
        let mut rest = text.strip_prefix('v').unwrap_or(text);
        let mut numbers = [None; 3];
        for (index, number) in numbers.iter_mut().enumerate() {
            let part = match (index, rest.strip_prefix('.')) {
                (0, _) => rest,
                (_, Some(part)) => part,
                (_, None) => break,
            };
            let length = run_length(part, is_digit);
            if length == 0 {
                return None;
            }
            *number = Some(&part[..length]);
            rest = &part[length..];
        }
        let suffix = rest;
        let (prerelease, metadata) = match rest.strip_prefix('-') {
            Some(rest) => match rest.split_once('+') {
                Some((prerelease, metadata)) => (Some(prerelease), Some(metadata)),
                None => (Some(rest), None),
            },
            None if rest.is_empty() => (None, None),
            None => (None, Some(rest.strip_prefix('+')?)),
        };
        if !prerelease.is_none_or(is_dotted) || !metadata.is_none_or(is_dotted) {
            return None;
        }
        let prerelease = prerelease.unwrap_or("");
        let metadata = metadata.unwrap_or("");
        Some(Self { numbers, suffix, prerelease, metadata })
    }
}

/// Returns true for identifiers separated by dots.
fn is_dotted(text: &str) -> bool {
    text.split('.')
        .all(|part| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'))
}

/// Alternatives; all constraints of one alternative must hold.
pub(crate) struct Constraints(Vec<Vec<Constraint>>);

impl Constraints {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = with_ranges_rewritten(text);
        let mut alternatives = Vec::new();
        for alternative in text.split("||") {
            let all: Option<Vec<_>> = alternative.split(',').map(Constraint::parse).collect();
            alternatives.push(all?);
        }
        Some(Self(alternatives))
    }

    pub(crate) fn accept(&self, version: &Version) -> bool {
        self.0.iter().any(|all| all.iter().all(|constraint| constraint.accepts(version)))
    }
}

fn is_digit_or_wildcard(character: char) -> bool {
    character.is_ascii_digit() || matches!(character, '|' | 'x' | 'X' | '*')
}

/// Rewrites `1.2 - 3` as `>= 1.2, <= 3`.
fn with_ranges_rewritten(text: &str) -> String {
    let pattern = r"\s*(v?[0-9|xX*]+(?:\.[0-9|xX*]+)?(?:\.[0-9|xX*]+)?(?:-[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?)\s+-\s+(v?[0-9|xX*]+(?:\.[0-9|xX*]+)?(?:\.[0-9|xX*]+)?(?:-[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?)\s*";
    match regex::Regex::new(pattern) {
        Ok(range) => range.replace_all(text, ">= $1, <= $2").into_owned(),
        Err(_) => text.to_owned(),
    }
}

/// White space of Go's regular expressions.
const SPACES: [char; 5] = [' ', '\t', '\n', '\r', '\x0c'];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operator {
    Equal,
    NotEqual,
    Greater,
    Less,
    AtLeast,
    AtMost,
    Tilde,
    Caret,
}

/// Operator and version; minor or patch may be a wildcard.
struct Constraint {
    operator: Operator,
    version: Version,
    minor_is_open: bool,
    patch_is_open: bool,
    /// True if any part is a wildcard.
    is_open: bool,
}

impl Constraint {
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim_matches(SPACES);
        let operators = [
            ("!=", Operator::NotEqual),
            (">=", Operator::AtLeast),
            ("=>", Operator::AtLeast),
            ("<=", Operator::AtMost),
            ("=<", Operator::AtMost),
            ("~>", Operator::Tilde),
            ("=", Operator::Equal),
            (">", Operator::Greater),
            ("<", Operator::Less),
            ("~", Operator::Tilde),
            ("^", Operator::Caret),
            ("", Operator::Equal),
        ];
        let (rest, operator) = operators
            .iter()
            .find_map(|(sign, operator)| Some((text.strip_prefix(sign)?, *operator)))?;
        let rest = rest.trim_start_matches(SPACES);
        let parts = Parts::parse(rest, is_digit_or_wildcard)?;
        let [major, minor, patch] = parts.numbers;
        let mut minor_is_open = false;
        let mut patch_is_open = false;
        let version = if is_wildcard(major) {
            "0.0.0".to_owned()
        } else if is_wildcard(minor) || minor.is_none() {
            minor_is_open = true;
            format!("{}.0.0{}", major?, parts.prerelease_with_sign())
        } else if is_wildcard(patch) {
            patch_is_open = true;
            format!("{}.{}.0{}", major?, minor?, parts.prerelease_with_sign())
        } else {
            rest.to_owned()
        };
        let is_open = is_wildcard(major) || minor_is_open || patch_is_open;
        let version = Version::parse(&version)?;
        Some(Self { operator, version, minor_is_open, patch_is_open, is_open })
    }

    fn accepts(&self, version: &Version) -> bool {
        let is_unwanted_prerelease =
            !version.prerelease.is_empty() && self.version.prerelease.is_empty();
        if is_unwanted_prerelease && (self.operator != Operator::NotEqual || self.is_open) {
            return false;
        }
        let order = version.order(&self.version);
        let [major, minor, _] = version.numbers;
        let [own_major, own_minor, _] = self.version.numbers;
        let is_within = major <= own_major && (minor <= own_minor || self.minor_is_open);
        match self.operator {
            Operator::Equal if self.is_open => self.accepts_similar(version),
            Operator::Equal => order == Ordering::Equal,
            Operator::NotEqual if self.is_open => {
                major != own_major || minor != own_minor && !self.minor_is_open
            }
            Operator::NotEqual => order != Ordering::Equal,
            Operator::Greater => order == Ordering::Greater,
            Operator::AtLeast => order != Ordering::Less,
            Operator::Less if self.is_open => is_within,
            Operator::Less => order == Ordering::Less,
            Operator::AtMost if self.is_open => is_within,
            Operator::AtMost => order != Ordering::Greater,
            Operator::Tilde => self.accepts_similar(version),
            Operator::Caret => order != Ordering::Less && major == own_major,
        }
    }

    /// Returns true if the version is not lower and has the same major and, unless open, minor
    /// number; 0.0.0 accepts any.
    fn accepts_similar(&self, version: &Version) -> bool {
        if version.order(&self.version) == Ordering::Less {
            return false;
        }
        if self.version.numbers == [0, 0, 0] && !self.minor_is_open && !self.patch_is_open {
            return true;
        }
        version.numbers[0] == self.version.numbers[0]
            && (version.numbers[1] == self.version.numbers[1] || self.minor_is_open)
    }
}

fn is_wildcard(part: Option<&str>) -> bool {
    part.is_some_and(|part| matches!(part, "x" | "X" | "*"))
}

impl Parts<'_> {
    fn prerelease_with_sign(&self) -> String {
        let without_metadata = self.suffix.split('+').next().unwrap_or_default();
        without_metadata.to_owned()
    }
}
