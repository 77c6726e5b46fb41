//! Go runes: the characters of a string. An invalid UTF-8 byte is U+FFFD.

/// Character and its length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rune {
    pub(crate) character: char,
    pub(crate) length: usize,
    /// True if the bytes are valid UTF-8.
    pub(crate) is_valid: bool,
}

/// Returns the first rune; `None` for an empty string.
pub(crate) fn first(bytes: &[u8]) -> Option<Rune> {
    let longest = bytes.len().min(4);
    let valid = (1..=longest).find_map(|length| {
        let character = std::str::from_utf8(&bytes[..length]).ok()?.chars().next()?;
        Some(Rune { character, length, is_valid: true })
    });
    let invalid = Rune { character: char::REPLACEMENT_CHARACTER, length: 1, is_valid: false };
    if bytes.is_empty() { None } else { Some(valid.unwrap_or(invalid)) }
}

/// Returns all runes of a text.
pub(crate) fn all(mut bytes: &[u8]) -> impl Iterator<Item = Rune> {
    std::iter::from_fn(move || {
        let rune = first(bytes)?;
        bytes = &bytes[rune.length..];
        Some(rune)
    })
}

/// Returns the characters of a text.
pub(crate) fn characters(bytes: &[u8]) -> impl Iterator<Item = char> {
    all(bytes).map(|rune| rune.character)
}

/// Returns the upper case; the character itself if its upper case has several characters.
pub(crate) fn upper(character: char) -> char {
    single(character, character.to_uppercase())
}

/// Returns the lower case of a character.
pub(crate) fn lower(character: char) -> char {
    // The only character whose lower case has two characters; Go uses the first.
    if character == '\u{130}' { 'i' } else { single(character, character.to_lowercase()) }
}

fn single(character: char, mut cased: impl Iterator<Item = char>) -> char {
    match (cased.next(), cased.next()) {
        (Some(only), None) => only,
        _ => character,
    }
}

/// Reports a space as Go's `unicode.IsSpace` does.
pub(crate) fn is_space(character: char) -> bool {
    character.is_whitespace()
}

/// Reports a printable character as Go's `strconv.IsPrint` does.
pub(crate) fn is_printable(character: char) -> bool {
    // `escape_debug` keeps printable characters; the leading letter keeps combining marks from
    // being escaped.
    let pair: String = ['a', character].iter().collect();
    let escaped = matches!(character, '"' | '\'' | '\\');
    escaped || pair.escape_debug().eq(pair.chars())
}
