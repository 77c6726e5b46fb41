//! Go strings: bytes that are usually UTF-8.

mod digits;
pub mod float;
pub(super) mod literal;
pub(super) mod runes;

use std::{fmt, rc::Rc};

/// String, which may be invalid UTF-8.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Text(Rc<[u8]>);

impl Text {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Returns the length in bytes of the longest prefix whose characters fit.
pub(super) fn run_length(text: &str, fits: impl Fn(char) -> bool) -> usize {
    text.find(|character| !fits(character)).unwrap_or(text.len())
}

/// Returns true if all characters are decimal digits.
pub(super) fn is_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

impl fmt::Debug for Text {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

impl From<&[u8]> for Text {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

impl From<Vec<u8>> for Text {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().into())
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self(text.into_bytes().into())
    }
}
