//! `printf`: Go's `fmt.Sprintf`.

use crate::{
    error::Failure,
    layout,
    text::{float, literal, runes},
    value::{Heap, Value, print},
};

/// Largest width and precision.
const LARGEST: i64 = 1_000_000;

/// Formats the arguments as Go's `fmt.Sprintf` does.
pub(crate) fn sprintf(
    heap: &mut Heap,
    format: &[u8],
    arguments: &[Value],
) -> Result<Vec<u8>, Failure> {
    let mut printer = Printer {
        heap,
        format,
        arguments,
        position: 0,
        next: 0,
        reordered: false,
        out: Vec::new(),
    };
    printer.run()?;
    Ok(printer.out)
}

/// Formats the arguments as Go's `fmt.Sprint` does: with a space between operands if neither is a
/// string.
pub(crate) fn sprint(heap: &Heap, arguments: &[Value]) -> Result<Vec<u8>, Failure> {
    let mut out = Vec::new();
    let mut previous_is_text = true;
    for (index, argument) in arguments.iter().enumerate() {
        let is_text = matches!(argument, Value::Text(_));
        if index > 0 && !is_text && !previous_is_text {
            out.push(b' ');
        }
        out.extend(print::plain(heap, argument)?);
        heap.check_length(out.len())?;
        previous_is_text = is_text;
    }
    Ok(out)
}

/// Formats the arguments as Go's `fmt.Sprintln` does.
pub(crate) fn sprintln(heap: &Heap, arguments: &[Value]) -> Result<Vec<u8>, Failure> {
    let mut out = Vec::new();
    for (index, argument) in arguments.iter().enumerate() {
        if index > 0 {
            out.push(b' ');
        }
        out.extend(print::plain(heap, argument)?);
        heap.check_length(out.len())?;
    }
    out.push(b'\n');
    Ok(out)
}

/// Flags, width and precision of a directive.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "Go's flags are independent")]
struct Flags {
    plus: bool,
    minus: bool,
    sharp: bool,
    space: bool,
    zero: bool,
    width: Option<usize>,
    precision: Option<usize>,
}

struct Printer<'a> {
    heap: &'a mut Heap,
    format: &'a [u8],
    arguments: &'a [Value],
    /// Position in the format.
    position: usize,
    /// Index of the next argument.
    next: usize,
    /// True if a directive had an explicit argument index.
    reordered: bool,
    out: Vec<u8>,
}

impl Printer<'_> {
    fn peek(&self) -> Option<u8> {
        self.format.get(self.position).copied()
    }

    fn run(&mut self) -> Result<(), Failure> {
        loop {
            let rest = &self.format[self.position..];
            let length = rest.iter().position(|byte| *byte == b'%').unwrap_or(rest.len());
            self.out.extend(&rest[..length]);
            self.position += length;
            if self.peek().is_none() {
                break;
            }
            self.position += 1;
            self.reordered = false;
            self.directive()?;
        }
        if !self.reordered && self.next < self.arguments.len() {
            self.extra()?;
        }
        Ok(())
    }

    /// Writes the arguments that no verb used.
    fn extra(&mut self) -> Result<(), Failure> {
        self.out.extend(b"%!(EXTRA ");
        for (index, argument) in self.arguments[self.next..].iter().enumerate() {
            if index > 0 {
                self.out.extend(b", ");
            }
            if !matches!(argument, Value::Nil) {
                self.out.extend(argument.type_name().as_bytes());
                self.out.push(b'=');
            }
            self.out.extend(print::plain(self.heap, argument)?);
        }
        self.out.push(b')');
        Ok(())
    }

    fn directive(&mut self) -> Result<(), Failure> {
        let mut flags = self.flags();
        let mut index = Index { is_valid: true, is_last: false };
        self.argument_index(&mut index);
        self.width(&mut flags, &mut index);
        self.precision(&mut flags, &mut index);
        if !index.is_last {
            self.argument_index(&mut index);
        }
        let Some(rune) = runes::first(&self.format[self.position..]) else {
            self.out.extend(b"%!(NOVERB)");
            return Ok(());
        };
        self.position += rune.length;
        let verb = rune.character;
        let problem = if verb == '%' {
            self.out.push(b'%');
            return Ok(());
        } else if !index.is_valid {
            "BADINDEX"
        } else if self.next >= self.arguments.len() {
            "MISSING"
        } else {
            let argument = self.arguments[self.next].clone();
            self.next += 1;
            let padding = flags.width.unwrap_or(0).max(flags.precision.unwrap_or(0));
            self.heap.reserve(padding)?;
            return self.argument(&argument, verb, &flags);
        };
        self.out.extend(format!("%!{verb}({problem})").into_bytes());
        Ok(())
    }

    fn flags(&mut self) -> Flags {
        let mut flags = Flags::default();
        while let Some(byte) = self.peek() {
            match byte {
                b'#' => flags.sharp = true,
                b'0' => flags.zero = true,
                b'+' => flags.plus = true,
                b'-' => flags.minus = true,
                b' ' => flags.space = true,
                _ => break,
            }
            self.position += 1;
        }
        flags
    }

    fn width(&mut self, flags: &mut Flags, index: &mut Index) {
        if self.peek() == Some(b'*') {
            self.position += 1;
            match self.argument_number() {
                Some(width) => {
                    if width < 0 {
                        flags.minus = true;
                        flags.zero = false;
                    }
                    flags.width = usize::try_from(width.unsigned_abs()).ok();
                }
                None => self.out.extend(b"%!(BADWIDTH)"),
            }
            index.is_last = false;
        } else {
            flags.width = self.number();
            if index.is_last && flags.width.is_some() {
                index.is_valid = false;
            }
        }
    }

    fn precision(&mut self, flags: &mut Flags, index: &mut Index) {
        if self.peek() != Some(b'.') {
            return;
        }
        self.position += 1;
        if index.is_last {
            index.is_valid = false;
        }
        self.argument_index(index);
        if self.peek() == Some(b'*') {
            self.position += 1;
            let precision = self.argument_number();
            flags.precision = precision.and_then(|precision| usize::try_from(precision).ok());
            if flags.precision.is_none() {
                self.out.extend(b"%!(BADPREC)");
            }
            index.is_last = false;
        } else {
            flags.precision = Some(self.number().unwrap_or(0));
        }
    }

    /// Reads a width or precision; `None` without digits, or if the number is too large.
    fn number(&mut self) -> Option<usize> {
        let mut number = None;
        while let Some(digit @ b'0'..=b'9') = self.peek() {
            let value = number.unwrap_or(0) * 10 + i64::from(digit - b'0');
            if value > LARGEST * 10 {
                self.position = self.format.len();
                return None;
            }
            number = Some(value);
            self.position += 1;
        }
        number.and_then(|number| usize::try_from(number).ok())
    }

    /// Consumes an argument as a width or precision.
    fn argument_number(&mut self) -> Option<i64> {
        let argument = self.arguments.get(self.next)?;
        self.next += 1;
        match argument {
            Value::Integer { value, .. } if (-LARGEST..=LARGEST).contains(value) => Some(*value),
            _ => None,
        }
    }

    /// Reads an optional `[n]`.
    fn argument_index(&mut self, index: &mut Index) {
        index.is_last = false;
        if self.peek() != Some(b'[') {
            return;
        }
        self.reordered = true;
        let rest = &self.format[self.position..];
        let Some(end) = rest.iter().position(|byte| *byte == b']').filter(|_| rest.len() > 2)
        else {
            self.position += 1;
            index.is_valid = false;
            return;
        };
        let digits = std::str::from_utf8(&rest[1..end]).ok();
        let number = digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
        let number = number.and_then(|digits| digits.parse::<usize>().ok());
        self.position += end + 1;
        match number {
            Some(number) if (1..=self.arguments.len()).contains(&number) => {
                self.next = number - 1;
                index.is_last = true;
            }
            Some(_) => {
                index.is_valid = false;
                index.is_last = true;
            }
            None => index.is_valid = false,
        }
    }

    fn argument(&mut self, value: &Value, verb: char, flags: &Flags) -> Result<(), Failure> {
        let mut flags = *flags;
        if verb == 'v' {
            // `%+v` affects structs only.
            flags.plus = false;
            if flags.sharp && !matches!(value, Value::Text(_)) {
                return Err(Failure::Unsupported("%#v in printf"));
            }
        }
        match verb {
            'T' => pad(&mut self.out, value.type_name().as_bytes(), &flags),
            'p' if matches!(value, Value::List(_) | Value::Map(_) | Value::Version(_)) => {
                return Err(Failure::Unsupported("%p in printf"));
            }
            'v' if matches!(value, Value::Nil) => pad(&mut self.out, b"<nil>", &flags),
            verb => write_value(self.heap, &mut self.out, value, &Directive { verb, flags })?,
        }
        self.heap.step(1)
    }
}

/// State of the explicit argument index of a directive.
struct Index {
    is_valid: bool,
    /// True if `[n]` was read last.
    is_last: bool,
}

struct Directive {
    verb: char,
    flags: Flags,
}

fn write_value(
    heap: &Heap,
    out: &mut Vec<u8>,
    value: &Value,
    directive: &Directive,
) -> Result<(), Failure> {
    let is_container = matches!(value, Value::List(_) | Value::Map(_));
    print::each(heap, value, 0, out, &mut |value, out| {
        if is_container && matches!(value, Value::Nil) {
            out.extend(b"<nil>");
            return Ok(());
        }
        scalar(out, value, directive)
    })
}

fn scalar(out: &mut Vec<u8>, value: &Value, directive: &Directive) -> Result<(), Failure> {
    let Directive { verb, flags } = directive;
    let is_written = match value {
        Value::Bool(value) if matches!(verb, 't' | 'v') => {
            pad(out, value.to_string().as_bytes(), flags);
            true
        }
        Value::Integer { value, .. } => integer(out, *value, *verb, flags),
        Value::Float(value) => number(out, *value, *verb, flags)?,
        Value::Text(value) => text(out, value.bytes(), *verb, flags),
        Value::Time(_) | Value::Version(_) if !matches!(verb, 'v' | 's' | 'x' | 'X' | 'q') => {
            return Err(Failure::Unsupported("this verb for a time or version in printf"));
        }
        Value::Time(time) => text(out, layout::text(time).as_bytes(), *verb, flags),
        Value::Version(version) => text(out, version.to_string().as_bytes(), *verb, flags),
        Value::Nil | Value::Bool(_) | Value::List(_) | Value::Map(_) => false,
    };
    if is_written {
        return Ok(());
    }
    out.extend(format!("%!{verb}(").into_bytes());
    if matches!(value, Value::Nil) {
        out.extend(b"<nil>");
    } else {
        out.extend(value.type_name().as_bytes());
        out.push(b'=');
        scalar(out, value, &Directive { verb: 'v', flags: *flags })?;
    }
    out.push(b')');
    Ok(())
}

/// Writes a text, padded to the width.
fn pad(out: &mut Vec<u8>, text: &[u8], flags: &Flags) {
    let width = flags.width.unwrap_or(0);
    let missing = width.saturating_sub(runes::all(text).count());
    let fill = if flags.zero && !flags.minus { b'0' } else { b' ' };
    if flags.minus {
        out.extend(text);
        out.extend(std::iter::repeat_n(b' ', missing));
    } else {
        out.extend(std::iter::repeat_n(fill, missing));
        out.extend(text);
    }
}

/// Writes a string; returns false if the verb does not apply.
fn text(out: &mut Vec<u8>, bytes: &[u8], verb: char, flags: &Flags) -> bool {
    match verb {
        'v' if flags.sharp => pad(out, &literal::quote(bytes, false), flags),
        'v' | 's' => pad(out, truncated(bytes, flags), flags),
        'q' => {
            let bytes = truncated(bytes, flags);
            let quoted = match std::str::from_utf8(bytes) {
                Ok(text) if flags.sharp && can_be_raw(text) => [b"`", bytes, b"`"].concat(),
                _ => literal::quote(bytes, flags.plus),
            };
            pad(out, &quoted, flags);
        }
        'x' | 'X' => hexadecimal(out, bytes, verb == 'X', flags),
        _ => return false,
    }
    true
}

fn can_be_raw(text: &str) -> bool {
    text.chars().all(|c| c != '\u{feff}' && c != '`' && c != '\x7f' && (c >= ' ' || c == '\t'))
}

/// Truncates to the precision, which is in runes.
fn truncated<'a>(bytes: &'a [u8], flags: &Flags) -> &'a [u8] {
    let Some(precision) = flags.precision else { return bytes };
    let length: usize = runes::all(bytes).take(precision).map(|rune| rune.length).sum();
    &bytes[..length]
}

fn hexadecimal(out: &mut Vec<u8>, bytes: &[u8], upper: bool, flags: &Flags) {
    let length = flags.precision.map_or(bytes.len(), |precision| precision.min(bytes.len()));
    let prefix = match (flags.sharp, upper) {
        (false, _) => "",
        (true, false) => "0x",
        (true, true) => "0X",
    };
    let mut all = Vec::new();
    for byte in &bytes[..length] {
        all.push(if upper { format!("{byte:02X}") } else { format!("{byte:02x}") });
    }
    let text = match (all.is_empty(), flags.space) {
        (true, _) => String::new(),
        (false, true) => format!("{prefix}{}", all.join(&format!(" {prefix}"))),
        (false, false) => format!("{prefix}{}", all.concat()),
    };
    pad(out, text.as_bytes(), flags);
}

/// Writes an integer; returns false if the verb does not apply.
fn integer(out: &mut Vec<u8>, value: i64, verb: char, flags: &Flags) -> bool {
    let plain = Flags { zero: false, ..*flags };
    let magnitude = value.unsigned_abs();
    let digits = match verb {
        'v' | 'd' => magnitude.to_string(),
        'b' => format!("{magnitude:b}"),
        'o' | 'O' => format!("{magnitude:o}"),
        'x' => format!("{magnitude:x}"),
        'X' => format!("{magnitude:X}"),
        'c' => {
            pad(out, character(value).encode_utf8(&mut [0; 4]).as_bytes(), flags);
            return true;
        }
        'q' => {
            let mut quoted = vec![b'\''];
            literal::escape(character(value), '\'', flags.plus, &mut quoted);
            quoted.push(b'\'');
            pad(out, &quoted, flags);
            return true;
        }
        'U' => {
            #[expect(clippy::cast_sign_loss, reason = "as Go converts")]
            let code = value as u64;
            let precision = flags.precision.unwrap_or(4).max(4);
            let shown = u32::try_from(value).ok().and_then(char::from_u32);
            let shown = shown.filter(|c| flags.sharp && runes::is_printable(*c));
            let shown = shown.map(|shown| format!(" '{shown}'")).unwrap_or_default();
            pad(out, format!("U+{code:0precision$X}{shown}").as_bytes(), &plain);
            return true;
        }
        _ => return false,
    };
    if flags.precision == Some(0) && value == 0 {
        pad(out, b"", &plain);
        return true;
    }
    let sign = match (value < 0, flags.plus, flags.space) {
        (true, _, _) => "-",
        (false, true, _) => "+",
        (false, false, true) => " ",
        (false, false, false) => "",
    };
    let zeros = match flags.precision {
        Some(precision) => precision,
        None if flags.zero && !flags.minus => {
            flags.width.map_or(0, |width| width.saturating_sub(sign.len()))
        }
        None => 0,
    };
    let digits = format!("{digits:0>zeros$}");
    let prefix = match verb {
        'b' if flags.sharp => "0b",
        'o' if flags.sharp && !digits.starts_with('0') => "0",
        'x' if flags.sharp => "0x",
        'X' if flags.sharp => "0X",
        'O' if flags.sharp && !digits.starts_with('0') => "0o0",
        'O' => "0o",
        _ => "",
    };
    pad(out, format!("{sign}{prefix}{digits}").as_bytes(), &plain);
    true
}

fn character(code: i64) -> char {
    u32::try_from(code).ok().and_then(char::from_u32).unwrap_or('\u{fffd}')
}

/// Writes a floating-point number; returns false if the verb does not apply.
fn number(out: &mut Vec<u8>, value: f64, verb: char, flags: &Flags) -> Result<bool, Failure> {
    let (format, precision) = match verb {
        'v' | 'g' | 'G' => (b'g', None),
        'f' | 'F' => (b'f', Some(6)),
        'e' | 'E' => (b'e', Some(6)),
        'b' | 'x' | 'X' => return Err(Failure::Unsupported("this verb for a float in printf")),
        _ => return Ok(false),
    };
    if flags.sharp {
        return Err(Failure::Unsupported("the flag # for a float in printf"));
    }
    let mut text = float::format(value, format, flags.precision.or(precision));
    if matches!(verb, 'E' | 'G') {
        text = text.replace('e', "E");
    }
    let (sign, digits) = match text.strip_prefix(['-', '+']) {
        Some(digits) => (&text[..1], digits),
        None => ("+", text.as_str()),
    };
    let sign = if sign == "+" && !flags.plus { if flags.space { " " } else { "" } } else { sign };
    let is_finite = value.is_finite();
    let width = flags.width.unwrap_or(0);
    if is_finite && flags.zero && !flags.minus && !sign.is_empty() {
        let digits = format!("{digits:0>width$}", width = width.saturating_sub(sign.len()));
        out.extend(sign.as_bytes());
        out.extend(digits.into_bytes());
    } else {
        let flags = Flags { zero: flags.zero && is_finite, ..*flags };
        pad(out, format!("{sign}{digits}").as_bytes(), &flags);
    }
    Ok(true)
}
