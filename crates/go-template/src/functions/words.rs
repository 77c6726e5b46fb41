//! Case, abbreviation and wrapping of words, as in goutils 1.1.0 and xstrings 1.3.1.

use super::signature::fixed;
use crate::{
    calls::{Call, Function, Type},
    error::Failure,
    text::{Text, runes},
    value::Value,
};

const TEXT: &[Type] = &[Type::Text];

pub(super) fn find(name: &str) -> Option<Function> {
    Some(match name {
        "upper" => fixed(TEXT, |call| mapped(call, |c, _| runes::upper(c))),
        "lower" => fixed(TEXT, |call| mapped(call, |c, _| runes::lower(c))),
        "title" => fixed(TEXT, |call| {
            mapped(call, |c, before| if separates(before) { runes::upper(c) } else { c })
        }),
        "untitle" => fixed(TEXT, |call| {
            mapped(call, |c, before| if begins_word(before) { runes::lower(c) } else { c })
        }),
        "swapcase" => fixed(TEXT, swapped_case),
        "nospace" => fixed(TEXT, |call| {
            let text = bytewise(call.text(0).bytes(), |_, character| !runes::is_space(character));
            call.make(text)
        }),
        "initials" => fixed(TEXT, |call| {
            let text = bytewise(call.text(0).bytes(), |before, character| {
                begins_word(before) && !runes::is_space(character)
            });
            call.make(text)
        }),
        "camelcase" => fixed(TEXT, |call| {
            let text = camel_case(call.text(0).bytes());
            call.make(text)
        }),
        "snakecase" => fixed(TEXT, |call| {
            let text = lower_case(call.text(0).bytes(), b'_');
            call.make(text)
        }),
        "kebabcase" => fixed(TEXT, |call| {
            let text = lower_case(call.text(0).bytes(), b'-');
            call.make(text)
        }),
        "abbrev" => fixed(&[Type::Int, Type::Text], |call| {
            let width = call.int(0);
            let text = call.text(1);
            if width < 4 {
                return Ok(Value::Text(text));
            }
            abbreviated(call, &text, 0, width)
        }),
        "abbrevboth" => fixed(&[Type::Int, Type::Int, Type::Text], |call| {
            let left = call.int(0);
            let right = call.int(1);
            let text = call.text(2);
            if right < 4 || left > 0 && right < 7 {
                return Ok(Value::Text(text));
            }
            abbreviated(call, &text, left, right)
        }),
        "wrap" => fixed(&[Type::Int, Type::Text], |call| {
            let width = call.int(0);
            let text = call.text(1);
            wrapped(call, &text, width, None)
        }),
        "wrapWith" => fixed(&[Type::Int, Type::Text, Type::Text], |call| {
            let width = call.int(0);
            let separator = call.text(1);
            let text = call.text(2);
            wrapped(call, &text, width, Some(separator))
        }),
        _ => return None,
    })
}

/// Maps each character; `map` also gets the previous character.
fn mapped(call: &mut Call<'_>, map: fn(char, Option<char>) -> char) -> Result<Value, Failure> {
    let mut out = String::new();
    let mut before = None;
    for character in runes::characters(call.text(0).bytes()) {
        out.push(map(character, before));
        before = Some(character);
    }
    call.make(out)
}

/// Returns true if a word begins after this character.
fn begins_word(before: Option<char>) -> bool {
    before.is_none_or(runes::is_space)
}

/// Returns true if a word begins after this character, as in Go's `strings.Title`.
fn separates(before: Option<char>) -> bool {
    let Some(character) = before else { return true };
    if character.is_ascii() {
        return !(character.is_ascii_alphanumeric() || character == '_');
    }
    !character.is_alphanumeric() && runes::is_space(character)
}

fn swapped_case(call: &mut Call<'_>) -> Result<Value, Failure> {
    let mut out = String::new();
    for character in runes::characters(call.text(0).bytes()) {
        if character.is_uppercase() {
            out.push(runes::lower(character));
        } else if character.is_lowercase() {
            out.push(runes::upper(character));
        } else {
            out.push(character);
        }
    }
    call.make(out)
}

/// Filters bytes as if each were a character, as goutils does; non-ASCII text becomes invalid if a
/// byte is removed.
fn bytewise(bytes: &[u8], keeps: impl Fn(Option<char>, char) -> bool) -> Vec<u8> {
    let mut out = String::new();
    let mut before = None;
    let mut all_kept = true;
    for byte in bytes {
        let character = char::from(*byte);
        if keeps(before, character) {
            out.push(character);
        } else {
            all_kept = false;
        }
        before = Some(character);
    }
    if all_kept { bytes.to_vec() } else { out.into_bytes() }
}

fn abbreviated(
    call: &mut Call<'_>,
    text: &Text,
    offset: i64,
    width: i64,
) -> Result<Value, Failure> {
    let result = abbreviate(text.bytes(), offset, width)?;
    call.make(result)
}

/// Shortens a string to `width` bytes around `offset`, including the dots.
fn abbreviate(bytes: &[u8], offset: i64, width: i64) -> Result<Vec<u8>, Failure> {
    let length = i64::try_from(bytes.len()).unwrap_or(i64::MAX);
    if bytes.is_empty() || width < 4 {
        return Ok(Vec::new());
    }
    if length <= width {
        return Ok(bytes.to_vec());
    }
    let kept = width - 3;
    let mut offset = offset.min(length);
    if length - offset < kept {
        offset = length - kept;
    }
    if offset <= 4 {
        return Ok([part(bytes, 0, kept)?, b"..."].concat());
    }
    if width < 7 {
        return Ok(Vec::new());
    }
    if offset + kept < length {
        let rest = abbreviate(part(bytes, offset, length)?, 0, kept)?;
        return Ok([b"...".as_slice(), &rest].concat());
    }
    Ok([b"...", part(bytes, length - kept, length)?].concat())
}

fn part(bytes: &[u8], start: i64, end: i64) -> Result<&[u8], Failure> {
    let range = usize::try_from(start).ok().zip(usize::try_from(end).ok());
    let part = range.and_then(|(start, end)| bytes.get(start..end));
    part.ok_or(Failure::OutOfRange(start))
}

/// Wraps at spaces. With a separator, words longer than the width are wrapped too.
fn wrapped(
    call: &mut Call<'_>,
    text: &Text,
    width: i64,
    separator: Option<Text>,
) -> Result<Value, Failure> {
    let bytes = text.bytes();
    let wraps_words = separator.is_some();
    let separator = separator.filter(|separator| !separator.bytes().is_empty());
    let separator = separator.unwrap_or_else(|| Text::from("\n"));
    let width = usize::try_from(width.max(1)).unwrap_or(usize::MAX);
    let mut out = Vec::new();
    let mut offset = 0;
    while bytes.len() - offset > width {
        if bytes[offset] == b' ' {
            offset += 1;
            continue;
        }
        let end = offset + width;
        let space = bytes[offset..=end].iter().rposition(|byte| *byte == b' ');
        let (line_end, next) = match space {
            Some(space) => (offset + space, offset + space + 1),
            None if wraps_words => (end, end),
            None => {
                let Some(space) = bytes[end..].iter().position(|byte| *byte == b' ') else {
                    break;
                };
                (end + space, end + space + 1)
            }
        };
        out.extend(&bytes[offset..line_end]);
        out.extend(separator.bytes());
        call.heap.reserve(separator.bytes().len())?;
        offset = next;
    }
    out.extend(&bytes[offset..]);
    call.make(out)
}

fn is_connector(character: char) -> bool {
    matches!(character, '-' | '_') || runes::is_space(character)
}

fn camel_case(bytes: &[u8]) -> String {
    let mut out = String::new();
    let mut characters = runes::characters(bytes);
    // Leading connectors are kept.
    let first = loop {
        match characters.next() {
            Some(character) if is_connector(character) => out.push(character),
            other => break other,
        }
    };
    let Some(first) = first else {
        // The last connector is written twice.
        let last = out.chars().next_back();
        out.extend(last);
        return out;
    };
    let mut current = runes::upper(first);
    for next in characters {
        let previous = current;
        if is_connector(next) && is_connector(previous) {
            out.push(previous);
            current = next;
        } else if is_connector(previous) {
            current = runes::upper(next);
        } else {
            current = runes::lower(next);
            out.push(previous);
        }
    }
    out.push(current);
    out
}

/// Kind of a word or character.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Invalid,
    Number,
    Upper,
    Letters,
    Connector,
    Punctuation,
    Other,
}

impl Kind {
    fn is_in_word(self) -> bool {
        matches!(self, Self::Letters | Self::Number)
    }
}

/// Returns the kind of a character.
fn kind(character: char) -> Kind {
    if is_connector(character) {
        Kind::Connector
    } else if is_punctuation(character) {
        Kind::Punctuation
    } else if character.is_uppercase() {
        Kind::Upper
    } else if is_letter(character) {
        Kind::Letters
    } else if character.is_numeric() {
        Kind::Number
    } else {
        Kind::Other
    }
}

fn is_punctuation(character: char) -> bool {
    if character.is_ascii() {
        character.is_ascii_punctuation() && !"$+<=>^`|~".contains(character)
    } else {
        matches!(character, '¡' | '§' | '«' | '¶' | '·' | '»' | '¿' | '\u{2010}'..='\u{2027}' | '\u{2030}'..='\u{205e}' | '\u{3001}'..='\u{3003}')
            && !matches!(character, '\u{2044}' | '\u{2052}')
    }
}

/// Returns true for a letter that is not Chinese.
fn is_letter(character: char) -> bool {
    let chinese = '\u{3400}'..='\u{4d85}';
    let more_chinese = '\u{4e00}'..='\u{9fcc}';
    let rare_chinese = '\u{20000}'..='\u{2b81d}';
    character.is_alphabetic()
        && ![chinese, more_chinese, rare_chinese].iter().any(|range| range.contains(&character))
}

fn is_lower_letter(character: char) -> bool {
    is_letter(character) && !character.is_uppercase()
}

/// Character with the invalid UTF-8 in front of it.
struct Unit<'a> {
    character: char,
    /// All bytes of the unit.
    raw: &'a [u8],
    /// Number of invalid bytes in front.
    skipped: usize,
    /// True if the unit is invalid UTF-8 at the end of the text; `character` is the previous one.
    is_tail: bool,
}

/// Splits a text into characters; invalid UTF-8 at the end is a unit with the last character.
/// `None` without any valid character.
fn units(bytes: &[u8]) -> Option<Vec<Unit<'_>>> {
    let mut units: Vec<Unit<'_>> = Vec::new();
    let mut start = 0;
    let mut end = 0;
    let mut skipped = 0;
    for rune in runes::all(bytes) {
        end += rune.length;
        if rune.character == char::REPLACEMENT_CHARACTER {
            skipped += 1;
            continue;
        }
        units.push(Unit {
            character: rune.character,
            raw: &bytes[start..end],
            skipped,
            is_tail: false,
        });
        (start, skipped) = (end, 0);
    }
    if skipped > 0 {
        let character = units.last()?.character;
        units.push(Unit { character, raw: &bytes[start..], skipped, is_tail: true });
    }
    Some(units)
}

/// Splits off the first word; returns its kind, the word and the rest.
fn next_word<'a, 'b>(text: &'a [Unit<'b>]) -> (Kind, &'a [Unit<'b>], &'a [Unit<'b>]) {
    let Some(first) = text.first() else { return (Kind::Invalid, &[], &[]) };
    let kind_of_first = kind(first.character);
    let length = match kind_of_first {
        Kind::Connector => run_end(text, 1, is_connector),
        Kind::Punctuation => run_end(text, 1, is_punctuation),
        Kind::Upper => match text.get(1).map(|unit| unit.character) {
            Some(second) if second.is_uppercase() => {
                let end = run_end(text, 2, char::is_uppercase);
                // "HTTPStatus" is "HTTP" and "Status".
                if text.get(end).is_some_and(|next| is_letter(next.character)) {
                    end - 1
                } else {
                    end
                }
            }
            Some(second) if is_letter(second) => run_end(text, 2, is_lower_letter),
            _ => 1,
        },
        Kind::Letters => run_end(text, 1, is_lower_letter),
        Kind::Number => run_end(text, 1, char::is_numeric),
        Kind::Other | Kind::Invalid => run_end(text, 1, |character| kind(character) == Kind::Other),
    };
    (kind_of_first, &text[..length], &text[length..])
}

fn run_end(text: &[Unit<'_>], start: usize, fits: fn(char) -> bool) -> usize {
    start + text[start..].iter().take_while(|unit| fits(unit.character)).count()
}

/// Joins the words with a connector, in lower case.
fn lower_case(bytes: &[u8], connector: u8) -> Vec<u8> {
    let Some(units) = units(bytes) else { return bytes.to_vec() };
    let mut out = Vec::new();
    let (mut kind, mut word, mut rest) = next_word(&units);
    while !rest.is_empty() {
        if kind != Kind::Connector {
            write_lower(&mut out, kind, word, connector);
        }
        let previous = kind;
        let last = word;
        (kind, word, rest) = next_word(rest);
        match previous {
            Kind::Number => {
                while kind.is_in_word() {
                    write_lower(&mut out, kind, word, connector);
                    (kind, word, rest) = next_word(rest);
                }
                if !matches!(kind, Kind::Invalid | Kind::Punctuation) {
                    out.push(connector);
                }
            }
            Kind::Connector => write_lower(&mut out, previous, last, connector),
            Kind::Punctuation => {}
            _ if kind != Kind::Number => {
                if !matches!(kind, Kind::Connector | Kind::Punctuation) {
                    out.push(connector);
                }
            }
            _ if rest.is_empty() => {}
            _ => {
                let last = word;
                (kind, word, rest) = next_word(rest);
                if kind == Kind::Letters {
                    // "HTTP2xx" is "http" and "2xx".
                    out.push(connector);
                    write_lower(&mut out, Kind::Number, last, connector);
                    while kind.is_in_word() {
                        write_lower(&mut out, kind, word, connector);
                        (kind, word, rest) = next_word(rest);
                    }
                    if !matches!(kind, Kind::Invalid | Kind::Connector | Kind::Punctuation) {
                        out.push(connector);
                    }
                } else {
                    // "Bld4Floor" is "bld4" and "floor".
                    write_lower(&mut out, Kind::Number, last, connector);
                    if !matches!(kind, Kind::Connector | Kind::Punctuation) {
                        out.push(connector);
                    }
                }
            }
        }
    }
    write_lower(&mut out, kind, word, connector);
    out
}

fn write_lower(out: &mut Vec<u8>, kind: Kind, word: &[Unit<'_>], connector: u8) {
    for unit in word {
        if !matches!(kind, Kind::Upper | Kind::Connector) {
            out.extend(unit.raw);
            continue;
        }
        for _ in 0..unit.skipped {
            out.extend("\u{fffd}".as_bytes());
        }
        if unit.is_tail {
            continue;
        }
        if kind == Kind::Connector {
            out.push(connector);
        } else {
            out.extend(runes::lower(unit.character).encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
}
