//! Go literals: strings, characters and numbers.

use crate::{
    syntax::Number,
    text::{digits::underscores_are_valid, float, runes},
};

/// Returns the value of a string literal without its quotes; `None` if an escape is invalid.
pub(crate) fn unescape(text: &str, quote: char) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let (unit, length) = unit(rest, quote)?;
        match unit {
            Unit::Byte(byte) => bytes.push(byte),
            Unit::Character(character) => {
                bytes.extend(character.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
        rest = &rest[length..];
    }
    Some(bytes)
}

/// Returns the code point of a character literal without its quotes.
pub(crate) fn character(text: &str) -> Option<u32> {
    let (unit, length) = unit(text, '\'')?;
    if length != text.len() {
        return None;
    }
    Some(match unit {
        Unit::Byte(byte) => u32::from(byte),
        Unit::Character(character) => u32::from(character),
    })
}

enum Unit {
    Character(char),
    Byte(u8),
}

/// Reads one character or escape; returns its length in bytes too.
fn unit(text: &str, quote: char) -> Option<(Unit, usize)> {
    let mut characters = text.chars();
    let first = characters.next()?;
    if first == quote || first == '\n' {
        return None;
    }
    if first != '\\' {
        return Some((Unit::Character(first), first.len_utf8()));
    }
    let escape = characters.next()?;
    Some(match escape {
        'a' => (Unit::Character('\x07'), 2),
        'b' => (Unit::Character('\x08'), 2),
        'f' => (Unit::Character('\x0c'), 2),
        'n' => (Unit::Character('\n'), 2),
        'r' => (Unit::Character('\r'), 2),
        't' => (Unit::Character('\t'), 2),
        'v' => (Unit::Character('\x0b'), 2),
        '\\' => (Unit::Character('\\'), 2),
        '\'' | '"' if escape == quote => (Unit::Character(escape), 2),
        'x' => (Unit::Byte(u8::try_from(digits(text, 2, 2, 16)?).ok()?), 4),
        'u' => (Unit::Character(char::from_u32(digits(text, 2, 4, 16)?)?), 6),
        'U' => (Unit::Character(char::from_u32(digits(text, 2, 8, 16)?)?), 10),
        '0'..='7' => (Unit::Byte(u8::try_from(digits(text, 1, 3, 8)?).ok()?), 4),
        _ => return None,
    })
}

/// Reads exactly `count` digits.
fn digits(text: &str, start: usize, count: usize, radix: u32) -> Option<u32> {
    let digits = text.get(start..start + count)?;
    let valid = digits.chars().all(|digit| digit.is_digit(radix));
    if valid { u32::from_str_radix(digits, radix).ok() } else { None }
}

/// Parses a number literal.
pub(crate) fn number(text: &str) -> Option<Number> {
    let has_fraction = text.contains(['.', 'e', 'E', 'p', 'P']);
    let is_hexadecimal = {
        let mut characters = text.chars();
        characters.next() == Some('0')
            && characters.next().is_some_and(|c| matches!(c, 'x' | 'X'))
            && !text.contains(['p', 'P'])
    };
    if let Some(integer) = integer(text) {
        #[expect(clippy::cast_precision_loss, reason = "as Go converts a constant")]
        let float = integer as f64;
        let is_float = has_fraction && !is_hexadecimal;
        return Some(Number { integer: Some(integer), float, is_float });
    }
    let float = float::parse(text)?;
    if !has_fraction {
        return None;
    }
    Some(Number { integer: float::whole(float), float, is_float: true })
}

/// Parses an integer with Go's prefixes and underscores.
pub(crate) fn integer(text: &str) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix(['+', '-']) {
        Some(digits) => (text.starts_with('-'), digits),
        None => (false, text),
    };
    let magnitude = magnitude(digits)?;
    i64::try_from(if negative { -magnitude } else { magnitude }).ok()
}

/// Parses digits with an optional radix prefix.
fn magnitude(digits: &str) -> Option<i128> {
    let lower = digits.to_ascii_lowercase();
    let (radix, number) = if let Some(hexadecimal) = lower.strip_prefix("0x") {
        (16, hexadecimal)
    } else if let Some(octal) = lower.strip_prefix("0o") {
        (8, octal)
    } else if let Some(binary) = lower.strip_prefix("0b") {
        (2, binary)
    } else if lower.len() > 1 && lower.starts_with('0') {
        (8, &lower[1..])
    } else {
        (10, lower.as_str())
    };
    if number.is_empty() || number.starts_with(['+', '-']) || !underscores_are_valid(digits) {
        return None;
    }
    i128::from_str_radix(&number.replace('_', ""), radix).ok()
}

/// Parses an unsigned integer with Go's prefixes and underscores.
pub(crate) fn unsigned(text: &str) -> Option<u64> {
    u64::try_from(magnitude(text)?).ok()
}

/// Quotes a string as Go's `%q` does.
pub(crate) fn quote(bytes: &[u8], ascii: bool) -> Vec<u8> {
    let mut quoted = vec![b'"'];
    let mut position = 0;
    for rune in runes::all(bytes) {
        let raw = &bytes[position..position + rune.length];
        position += rune.length;
        if rune.is_valid {
            escape(rune.character, '"', ascii, &mut quoted);
        } else {
            quoted.extend(format!("\\x{:02x}", raw[0]).into_bytes());
        }
    }
    quoted.push(b'"');
    quoted
}

/// Writes a character, escaped for a quoted literal.
pub(crate) fn escape(character: char, quote: char, ascii: bool, out: &mut Vec<u8>) {
    let code = u32::from(character);
    let escaped = match character {
        '\\' => "\\\\".to_owned(),
        character if character == quote => format!("\\{quote}"),
        '\x07' => "\\a".to_owned(),
        '\x08' => "\\b".to_owned(),
        '\x0c' => "\\f".to_owned(),
        '\n' => "\\n".to_owned(),
        '\r' => "\\r".to_owned(),
        '\t' => "\\t".to_owned(),
        '\x0b' => "\\v".to_owned(),
        character if runes::is_printable(character) && (!ascii || character.is_ascii()) => {
            character.to_string()
        }
        _ if code < 0x20 || code == 0x7f => format!("\\x{code:02x}"),
        _ if code <= 0xffff => format!("\\u{code:04x}"),
        _ => format!("\\U{code:08x}"),
    };
    out.extend(escaped.into_bytes());
}
