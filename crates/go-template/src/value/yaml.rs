//! Values as Go's `gopkg.in/yaml.v2` 2.3.0 encodes them: block style, keys in natural order, long
//! lines not folded.

use std::cmp::Ordering;

use base64::{Engine as _, engine::general_purpose::STANDARD};

use super::{Heap, Value, deeper};
use crate::{
    error::Failure,
    layout,
    text::{float, is_digits, literal, runes},
};

/// Maximum length of a simple key, in bytes.
const LONGEST_SIMPLE_KEY: usize = 128;
/// Characters in a line of binary data.
const BINARY_LINE: usize = 70;

/// Encodes a value as a YAML document.
pub(crate) fn write(heap: &Heap, value: &Value) -> Result<Vec<u8>, Failure> {
    let mut writer = Writer { heap, out: Vec::new() };
    match value {
        Value::List(list) if list.len() > 0 => writer.list(*list, 0, 0)?,
        Value::Map(map) if !heap.entries(*map).is_empty() => writer.map(*map, 0, 0)?,
        value => {
            writer.scalar(value, 2, false);
            writer.end_line();
        }
    }
    Ok(writer.out)
}

struct Writer<'a> {
    heap: &'a Heap,
    out: Vec<u8>,
}

impl Writer<'_> {
    fn indent(&mut self, indent: usize) {
        self.out.extend(std::iter::repeat_n(b' ', indent));
    }

    fn check_length(&self) -> Result<(), Failure> {
        if self.out.len() > self.heap.limits.text {
            return Err(Failure::Limit("the length of a text"));
        }
        Ok(())
    }

    /// Ends the line, unless a block scalar has just ended it.
    fn end_line(&mut self) {
        let ends_line = String::from_utf8_lossy(&self.out[self.out.len().saturating_sub(3)..])
            .ends_with(is_break);
        if !ends_line {
            self.out.push(b'\n');
        }
    }

    /// Writes a list: the first `- ` at the current position, the others at `indent`.
    fn list(&mut self, list: super::List, indent: usize, depth: usize) -> Result<(), Failure> {
        let depth = deeper(depth)?;
        for (index, item) in self.heap.items(list).iter().enumerate() {
            self.check_length()?;
            if index > 0 {
                self.indent(indent);
            }
            self.out.extend(b"- ");
            match item {
                Value::List(inner) if inner.len() > 0 => self.list(*inner, indent + 2, depth)?,
                Value::Map(inner) if !self.heap.entries(*inner).is_empty() => {
                    self.map(*inner, indent + 2, depth)?;
                }
                item => {
                    self.scalar(item, indent + 2, false);
                    self.end_line();
                }
            }
        }
        Ok(())
    }

    /// Writes a map: the first key at the current position, the others at `indent`.
    fn map(&mut self, map: super::Map, indent: usize, depth: usize) -> Result<(), Failure> {
        let depth = deeper(depth)?;
        let mut entries: Vec<_> = self.heap.entries(map).iter().collect();
        entries.sort_by(|(left, _), (right, _)| natural_order(left.bytes(), right.bytes()));
        for (index, (key, value)) in entries.into_iter().enumerate() {
            self.check_length()?;
            if index > 0 {
                self.indent(indent);
            }
            let is_simple = key.bytes().len() <= LONGEST_SIMPLE_KEY && !has_break(key.bytes());
            if is_simple {
                self.scalar(&Value::Text(key.clone()), indent + 2, true);
            } else {
                self.out.extend(b"? ");
                self.scalar(&Value::Text(key.clone()), indent + 2, false);
                self.end_line();
                self.indent(indent);
            }
            self.out.push(b':');
            self.entry(value, indent, depth, is_simple)?;
        }
        Ok(())
    }

    /// Writes the value after a key and its colon.
    fn entry(
        &mut self,
        value: &Value,
        indent: usize,
        depth: usize,
        is_simple: bool,
    ) -> Result<(), Failure> {
        match value {
            Value::List(list) if list.len() > 0 => {
                let indent = if is_simple { indent } else { indent + 2 };
                self.begin_entry(indent, is_simple);
                self.list(*list, indent, depth)
            }
            Value::Map(map) if !self.heap.entries(*map).is_empty() => {
                self.begin_entry(indent + 2, is_simple);
                self.map(*map, indent + 2, depth)
            }
            value => {
                self.out.push(b' ');
                self.scalar(value, indent + 2, false);
                self.end_line();
                Ok(())
            }
        }
    }

    fn begin_entry(&mut self, indent: usize, is_simple: bool) {
        // After a key on a line of its own, a list or map begins on the line of the colon.
        if is_simple {
            self.out.push(b'\n');
            self.indent(indent);
        } else {
            self.out.push(b' ');
        }
    }

    fn scalar(&mut self, value: &Value, indent: usize, is_key: bool) {
        match value {
            Value::Nil => self.out.extend(b"null"),
            Value::Bool(value) => self.out.extend(value.to_string().into_bytes()),
            Value::Integer { value, .. } => self.out.extend(value.to_string().into_bytes()),
            Value::Float(value) => self.out.extend(number(*value).into_bytes()),
            Value::Text(text) => self.text(text.bytes(), indent, is_key),
            Value::List(_) => self.out.extend(b"[]"),
            Value::Map(_) => self.out.extend(b"{}"),
            Value::Time(time) => self.out.extend(layout::rfc3339(time).into_bytes()),
            // yaml.v2 encodes the exported fields of the struct, and there are none.
            Value::Version(_) => self.out.extend(b"{}"),
        }
    }

    fn text(&mut self, bytes: &[u8], indent: usize, is_key: bool) {
        let Ok(text) = std::str::from_utf8(bytes) else {
            self.out.extend(b"!!binary ");
            let encoded = STANDARD.encode(bytes);
            if encoded.len() > BINARY_LINE {
                let lines = encoded.as_bytes().chunks(BINARY_LINE);
                let lines: Vec<u8> = lines.flat_map(|line| [line, b"\n"].concat()).collect();
                self.lines(&String::from_utf8_lossy(&lines), indent);
            } else {
                self.out.extend(encoded.into_bytes());
            }
            return;
        };
        let facts = Facts::of(text);
        if text.contains('\n') {
            if facts.lines_allowed && !is_key {
                self.lines(text, indent);
            } else {
                self.double_quoted(text);
            }
        } else if !is_text(text) {
            self.double_quoted(text);
        } else if facts.plain_allowed {
            self.out.extend(bytes);
        } else if facts.single_quotes_allowed {
            self.out.push(b'\'');
            self.indented(&text.replace('\'', "''"), indent, false);
            self.out.push(b'\'');
        } else {
            self.double_quoted(text);
        }
    }

    /// Writes a literal block scalar.
    fn lines(&mut self, text: &str, indent: usize) {
        self.out.push(b'|');
        if text.starts_with(|character| character == ' ' || is_break(character)) {
            self.out.push(b'2');
        }
        let mut from_end = text.chars().rev();
        match (from_end.next().is_some_and(is_break), from_end.next()) {
            (false, _) => self.out.push(b'-'),
            (true, before) if before.is_none_or(is_break) => self.out.push(b'+'),
            (true, _) => {}
        }
        self.out.push(b'\n');
        self.indented(text, indent, true);
    }

    /// Writes a text with each line indented, except empty lines.
    fn indented(&mut self, text: &str, indent: usize, mut at_start: bool) {
        for character in text.chars() {
            if is_break(character) {
                at_start = true;
            } else if std::mem::take(&mut at_start) {
                self.indent(indent);
            }
            self.out.extend(character.encode_utf8(&mut [0; 4]).bytes());
        }
    }

    fn double_quoted(&mut self, text: &str) {
        self.out.push(b'"');
        for character in text.chars() {
            let code = u32::from(character);
            let escaped = match character {
                '\0' => "\\0".to_owned(),
                '\x07' => "\\a".to_owned(),
                '\x08' => "\\b".to_owned(),
                '\t' => "\\t".to_owned(),
                '\n' => "\\n".to_owned(),
                '\x0b' => "\\v".to_owned(),
                '\x0c' => "\\f".to_owned(),
                '\r' => "\\r".to_owned(),
                '\x1b' => "\\e".to_owned(),
                '"' => "\\\"".to_owned(),
                '\\' => "\\\\".to_owned(),
                '\u{85}' => "\\N".to_owned(),
                '\u{2028}' => "\\L".to_owned(),
                '\u{2029}' => "\\P".to_owned(),
                character if is_printable(character) => character.to_string(),
                _ if code <= 0xff => format!("\\x{code:02X}"),
                _ if code <= 0xffff => format!("\\u{code:04X}"),
                _ => format!("\\U{code:08X}"),
            };
            self.out.extend(escaped.into_bytes());
        }
        self.out.push(b'"');
    }
}

fn number(value: f64) -> String {
    match float::format(value, b'g', None).as_str() {
        "+Inf" => ".inf".to_owned(),
        "-Inf" => "-.inf".to_owned(),
        "NaN" => ".nan".to_owned(),
        text => text.to_owned(),
    }
}

fn is_break(character: char) -> bool {
    matches!(character, '\r' | '\n' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

fn has_break(bytes: &[u8]) -> bool {
    runes::characters(bytes).any(is_break)
}

/// Returns true if yaml.v2 does not escape the character; its table covers up to three bytes.
fn is_printable(character: char) -> bool {
    matches!(character, '\n' | ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}')
        && character != '\u{feff}'
}

/// Styles that a text can be written in.
struct Facts {
    plain_allowed: bool,
    single_quotes_allowed: bool,
    lines_allowed: bool,
}

impl Facts {
    fn of(text: &str) -> Self {
        let space = Some(' ');
        let first = text.chars().next();
        let last = text.chars().next_back();
        let special = !text.chars().all(is_printable);
        let mut has_space_break = false;
        let mut has_break_space = false;
        let mut previous = None;
        for character in text.chars() {
            has_space_break |= is_break(character) && previous == space;
            has_break_space |= character == ' ' && previous.is_some_and(is_break);
            previous = Some(character);
        }
        let bad = has_space_break || special;
        let plain_allowed = !bad
            && !first.is_some_and(is_space_or_break)
            && !last.is_some_and(is_space_or_break)
            && !text.chars().any(is_break)
            && !has_indicator(text);
        Self {
            plain_allowed,
            single_quotes_allowed: !bad && !has_break_space,
            lines_allowed: !bad && last != space && !text.is_empty(),
        }
    }
}

fn is_space_or_break(character: char) -> bool {
    character == ' ' || is_break(character)
}

/// Returns true if the text contains an indicator, which requires quotes.
fn has_indicator(text: &str) -> bool {
    if text.starts_with("---") || text.starts_with("...") {
        return true;
    }
    let mut previous = None;
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        let next_is_blank = characters.peek().is_none_or(|c| matches!(c, ' ' | '\t'));
        let found = match character {
            '#' | ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%'
            | '@' | '`' | '?' | '-'
                if previous.is_none() =>
            {
                !matches!(character, '?' | '-') || next_is_blank
            }
            ':' => next_is_blank,
            '#' => previous.is_some_and(|c| matches!(c, ' ' | '\t' | '\0') || is_break(c)),
            _ => false,
        };
        if found {
            return true;
        }
        previous = Some(character);
    }
    false
}

/// Returns true if YAML parses the plain scalar as a string, not as a number, boolean, null or
/// timestamp.
fn is_text(text: &str) -> bool {
    let Some(first) = text.chars().next() else { return false };
    let is_reserved = matches!(
        text,
        "y" | "Y"
            | "yes"
            | "Yes"
            | "YES"
            | "true"
            | "True"
            | "TRUE"
            | "on"
            | "On"
            | "ON"
            | "n"
            | "N"
            | "no"
            | "No"
            | "NO"
            | "false"
            | "False"
            | "FALSE"
            | "off"
            | "Off"
            | "OFF"
            | "~"
            | "null"
            | "Null"
            | "NULL"
            | ".nan"
            | ".NaN"
            | ".NAN"
            | ".inf"
            | ".Inf"
            | ".INF"
            | "+.inf"
            | "+.Inf"
            | "+.INF"
            | "-.inf"
            | "-.Inf"
            | "-.INF"
    );
    if is_reserved {
        return false;
    }
    match first {
        '.' => float::parse(text).is_none(),
        '+' | '-' | '0'..='9' => {
            let plain = text.replace('_', "");
            !layout::is_yaml_timestamp(text) && !is_number(&plain) && !is_sexagesimal(text)
        }
        _ => true,
    }
}

fn is_number(text: &str) -> bool {
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    let binary = unsigned.strip_prefix("0b").is_some_and(|digits| {
        !digits.is_empty() && digits.chars().all(|digit| matches!(digit, '0' | '1'))
    });
    binary
        || literal::integer(text).is_some()
        || literal::unsigned(text).is_some()
        || is_decimal(text) && float::parse(text).is_some()
}

/// Returns true for a decimal number with an optional fraction and exponent.
fn is_decimal(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (unsigned, None),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let has_digits = !whole.is_empty() || !fraction.is_empty();
    let exponent_is_valid = exponent.is_none_or(|exponent| {
        let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        !digits.is_empty() && is_digits(digits)
    });
    has_digits && is_digits(whole) && is_digits(fraction) && exponent_is_valid
}

/// Returns true for a number below 60.
fn is_sixtieth(part: &&str) -> bool {
    match part.as_bytes() {
        [digit] => digit.is_ascii_digit(),
        [tens, digit] => (b'0'..=b'5').contains(tens) && digit.is_ascii_digit(),
        _ => false,
    }
}

/// Returns true for a YAML 1.1 number of base 60, such as `190:20:30.15`.
fn is_sexagesimal(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (number, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
    let mut parts = number.split(':');
    let first = parts.next().unwrap_or_default();
    let starts = first.starts_with(|c: char| c.is_ascii_digit())
        && first.chars().all(is_digit_or_underscore);
    let rest: Vec<&str> = parts.collect();
    starts
        && !rest.is_empty()
        && rest.iter().all(is_sixtieth)
        && fraction.chars().all(is_digit_or_underscore)
}

fn is_digit_or_underscore(character: char) -> bool {
    character.is_ascii_digit() || character == '_'
}

/// Orders keys: numbers by value, letters after all other characters.
fn natural_order(left: &[u8], right: &[u8]) -> Ordering {
    let left: Vec<char> = runes::characters(left).collect();
    let right: Vec<char> = runes::characters(right).collect();
    let common = left.iter().zip(&right).position(|(left, right)| left != right);
    let Some(start) = common else { return left.len().cmp(&right.len()) };
    let a = left[start];
    let b = right[start];
    match (a.is_alphabetic(), b.is_alphabetic()) {
        (true, true) => return a.cmp(&b),
        (true, false) => return Ordering::Greater,
        (false, true) => return Ordering::Less,
        (false, false) => {}
    }
    // Zeros within a number are digits of it.
    let inside = (a == '0' || b == '0')
        && left[..start].iter().rev().take_while(|c| c.is_numeric()).any(|c| *c != '0');
    let left = value_and_length(&left[start..], inside);
    let right = value_and_length(&right[start..], inside);
    left.cmp(&right).then(a.cmp(&b))
}

/// Returns the value and length of the number at the start; inside of a longer number, as if a `1`
/// preceded it.
fn value_and_length(characters: &[char], inside: bool) -> (i64, usize) {
    let mut value = i64::from(inside);
    let mut length = 0;
    for digit in characters.iter().take_while(|c| c.is_numeric()) {
        let digit = i64::from(u32::from(*digit)) - i64::from(b'0');
        value = value.wrapping_mul(10).wrapping_add(digit);
        length += 1;
    }
    (value, length)
}
