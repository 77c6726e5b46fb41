//! Go's time layouts: patterns that show the reference time 2006-01-02 15:04:05 -0700.

use jiff::{civil, tz::TimeZone};

use super::{
    text::run_length,
    time::{Time, offset},
};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Part of a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    LongMonth,
    Month,
    NumberOfMonth {
        zero: bool,
    },
    LongWeekday,
    Weekday,
    Day(Fill),
    DayOfYear(Fill),
    Hour,
    Hour12 {
        zero: bool,
    },
    Minute {
        zero: bool,
    },
    Second {
        zero: bool,
    },
    LongYear,
    Year,
    Noon {
        upper: bool,
    },
    Zone,
    Offset {
        utc_is_z: bool,
        colons: bool,
        parts: usize,
    },
    /// Digits of the second's fraction; trailing zeros are omitted if `short`.
    Fraction {
        digits: usize,
        short: bool,
        mark: u8,
    },
}

/// Padding of a one-digit number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fill {
    Nothing,
    Space,
    Zero,
}

/// Fields by pattern; a longer pattern precedes its own prefixes.
const FIELDS: [(&str, Field); 37] = [
    ("January", Field::LongMonth),
    ("Jan", Field::Month),
    ("Monday", Field::LongWeekday),
    ("Mon", Field::Weekday),
    ("MST", Field::Zone),
    ("01", Field::NumberOfMonth { zero: true }),
    ("02", Field::Day(Fill::Zero)),
    ("03", Field::Hour12 { zero: true }),
    ("04", Field::Minute { zero: true }),
    ("05", Field::Second { zero: true }),
    ("06", Field::Year),
    ("002", Field::DayOfYear(Fill::Zero)),
    ("15", Field::Hour),
    ("1", Field::NumberOfMonth { zero: false }),
    ("2006", Field::LongYear),
    ("2", Field::Day(Fill::Nothing)),
    ("__2", Field::DayOfYear(Fill::Space)),
    ("_2", Field::Day(Fill::Space)),
    ("3", Field::Hour12 { zero: false }),
    ("4", Field::Minute { zero: false }),
    ("5", Field::Second { zero: false }),
    ("PM", Field::Noon { upper: true }),
    ("pm", Field::Noon { upper: false }),
    ("-070000", Field::Offset { utc_is_z: false, colons: false, parts: 3 }),
    ("-07:00:00", Field::Offset { utc_is_z: false, colons: true, parts: 3 }),
    ("-0700", Field::Offset { utc_is_z: false, colons: false, parts: 2 }),
    ("-07:00", Field::Offset { utc_is_z: false, colons: true, parts: 2 }),
    ("-07", Field::Offset { utc_is_z: false, colons: false, parts: 1 }),
    ("Z070000", Field::Offset { utc_is_z: true, colons: false, parts: 3 }),
    ("Z07:00:00", Field::Offset { utc_is_z: true, colons: true, parts: 3 }),
    ("Z0700", Field::Offset { utc_is_z: true, colons: false, parts: 2 }),
    ("Z07:00", Field::Offset { utc_is_z: true, colons: true, parts: 2 }),
    ("Z07", Field::Offset { utc_is_z: true, colons: false, parts: 1 }),
    // Marks of fractions; the digits are counted separately.
    (".0", Field::Fraction { digits: 0, short: false, mark: b'.' }),
    (".9", Field::Fraction { digits: 0, short: true, mark: b'.' }),
    (",0", Field::Fraction { digits: 0, short: false, mark: b',' }),
    (",9", Field::Fraction { digits: 0, short: true, mark: b',' }),
];

/// Splits a layout into the text before its first field, the field, and the rest.
fn next_field(layout: &[u8]) -> (&[u8], Option<Field>, &[u8]) {
    for start in 0..layout.len() {
        let rest = &layout[start..];
        if rest.starts_with(b"_2006") {
            return (&layout[..=start], Some(Field::LongYear), &rest[5..]);
        }
        for (text, field) in FIELDS {
            if !rest.starts_with(text.as_bytes()) {
                continue;
            }
            let behind = &rest[text.len()..];
            match field {
                Field::Month | Field::Weekday
                    if behind.first().is_some_and(u8::is_ascii_lowercase) => {}
                Field::Fraction { short, mark, .. } => {
                    let digit = rest[1];
                    let digits = rest[1..].iter().take_while(|byte| **byte == digit).count();
                    let behind = &rest[1 + digits..];
                    if !behind.first().is_some_and(u8::is_ascii_digit) {
                        let field = Field::Fraction { digits, short, mark };
                        return (&layout[..start], Some(field), behind);
                    }
                }
                field => return (&layout[..start], Some(field), behind),
            }
        }
    }
    (layout, None, &[])
}

/// Formats a time.
pub(crate) fn format(time: &Time, layout: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = layout;
    while !rest.is_empty() {
        let (prefix, field, behind) = next_field(rest);
        out.extend(prefix);
        if let Some(field) = field {
            out.extend(written(time, field).into_bytes());
        }
        rest = behind;
    }
    out
}

fn filled(number: i16, width: usize, fill: Fill) -> String {
    match fill {
        Fill::Nothing => number.to_string(),
        Fill::Space => format!("{number:width$}"),
        Fill::Zero => format!("{number:0width$}"),
    }
}

fn two(number: i8, zero: bool) -> String {
    filled(i16::from(number), 2, if zero { Fill::Zero } else { Fill::Nothing })
}

fn written(time: &Time, field: Field) -> String {
    let zoned = time.zoned();
    let hour12 = (zoned.hour() + 11) % 12 + 1;
    let month = usize::try_from(zoned.month() - 1).unwrap_or(0);
    let weekday = usize::try_from(zoned.weekday().to_sunday_zero_offset()).unwrap_or(0);
    match field {
        Field::LongMonth => MONTHS[month].to_owned(),
        Field::Month => MONTHS[month][..3].to_owned(),
        Field::NumberOfMonth { zero } => two(zoned.month(), zero),
        Field::LongWeekday => WEEKDAYS[weekday].to_owned(),
        Field::Weekday => WEEKDAYS[weekday][..3].to_owned(),
        Field::Day(fill) => filled(i16::from(zoned.day()), 2, fill),
        Field::DayOfYear(fill) => filled(zoned.day_of_year(), 3, fill),
        Field::Hour => two(zoned.hour(), true),
        Field::Hour12 { zero } => two(hour12, zero),
        Field::Minute { zero } => two(zoned.minute(), zero),
        Field::Second { zero } => two(zoned.second(), zero),
        Field::LongYear if zoned.year() < 0 => format!("-{:04}", zoned.year().abs()),
        Field::LongYear => format!("{:04}", zoned.year()),
        Field::Year => format!("{:02}", zoned.year().abs() % 100),
        Field::Noon { upper } => {
            let text = if zoned.hour() >= 12 { "PM" } else { "AM" };
            if upper { text.to_owned() } else { text.to_lowercase() }
        }
        Field::Zone => time.zone(),
        Field::Offset { utc_is_z: true, .. } if zoned.offset().seconds() == 0 => "Z".to_owned(),
        Field::Offset { colons, parts, .. } => offset(zoned.offset().seconds(), colons, parts),
        Field::Fraction { digits, short, mark } => {
            let digits = digits.min(9);
            let all = format!("{:09}", zoned.subsec_nanosecond());
            let text = &all[..digits];
            let text = if short { text.trim_end_matches('0') } else { text };
            if text.is_empty() { String::new() } else { format!("{}{text}", char::from(mark)) }
        }
    }
}

/// Formats a time as Go's `Time.String` does.
pub(crate) fn text(time: &Time) -> String {
    let text = format(time, b"2006-01-02 15:04:05.999999999 -0700 MST");
    String::from_utf8_lossy(&text).into_owned()
}

/// Formats a time in RFC 3339.
pub(crate) fn rfc3339(time: &Time) -> String {
    let text = format(time, b"2006-01-02T15:04:05.999999999Z07:00");
    String::from_utf8_lossy(&text).into_owned()
}

/// Returns true if YAML 1.1 parses the text as a timestamp.
pub(crate) fn is_yaml_timestamp(text: &str) -> bool {
    let digits = run_length(text, |c| c.is_ascii_digit());
    if digits != 4 || !text[digits..].starts_with('-') {
        return false;
    }
    let layouts: [&[u8]; 4] = [
        b"2006-1-2T15:4:5.999999999Z07:00",
        b"2006-1-2t15:4:5.999999999Z07:00",
        b"2006-1-2 15:4:5.999999999",
        b"2006-1-2",
    ];
    layouts.iter().any(|layout| parse(text.as_bytes(), layout).is_some())
}

/// Parsed parts of a time.
#[derive(Default)]
struct Read {
    year: i16,
    month: Option<i8>,
    day: Option<i8>,
    day_of_year: Option<i16>,
    hour: i8,
    minute: i8,
    second: i8,
    nanosecond: i32,
    /// True for PM, false for AM.
    afternoon: Option<bool>,
    is_utc: bool,
    offset: Option<i32>,
    zone: String,
}

/// Parses a time. Without an offset, the time zone is UTC.
pub(crate) fn parse(text: &[u8], layout: &[u8]) -> Option<Time> {
    let mut read = Read::default();
    let mut value = text;
    let mut rest = layout;
    loop {
        let (prefix, field, behind) = next_field(rest);
        value = skip(value, prefix)?;
        let Some(field) = field else {
            return if value.is_empty() { finished(&read) } else { None };
        };
        rest = behind;
        value = read_field(&mut read, field, value, behind)?;
    }
}

/// Skips the text before a field; a space matches any number of spaces.
fn skip<'a>(mut value: &'a [u8], mut prefix: &[u8]) -> Option<&'a [u8]> {
    while let Some((first, rest)) = prefix.split_first() {
        if *first == b' ' {
            if value.first().is_some_and(|byte| *byte != b' ') {
                return None;
            }
            prefix = without_spaces(prefix);
            value = without_spaces(value);
        } else {
            value = value.strip_prefix(&[*first])?;
            prefix = rest;
        }
    }
    Some(value)
}

fn without_spaces(text: &[u8]) -> &[u8] {
    let spaces = text.iter().take_while(|byte| **byte == b' ').count();
    &text[spaces..]
}

/// Reads between `least` and `most` digits.
fn digits(value: &[u8], least: usize, most: usize) -> Option<(i32, &[u8])> {
    let count = value.iter().take(most).take_while(|byte| byte.is_ascii_digit()).count();
    if count < least {
        return None;
    }
    let number = std::str::from_utf8(&value[..count]).ok()?.parse().ok()?;
    Some((number, &value[count..]))
}

/// Reads a number of one or two digits within a range; exactly two if `zero`.
fn number(value: &[u8], zero: bool, least: i8, most: i8) -> Option<(i8, &[u8])> {
    let (number, rest) = digits(value, if zero { 2 } else { 1 }, 2)?;
    let number = i8::try_from(number).ok()?;
    (least..=most).contains(&number).then_some((number, rest))
}

/// Reads a name, or its first `length` letters, in any case; returns its position in `names`, from
/// 1.
fn named<'a>(value: &'a [u8], names: &[&str], length: Option<usize>) -> Option<(i8, &'a [u8])> {
    let position = names.iter().position(|name| {
        let name = &name.as_bytes()[..length.unwrap_or(name.len())];
        value.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name))
    })?;
    let length = length.unwrap_or(names[position].len());
    Some((i8::try_from(position + 1).ok()?, &value[length..]))
}

fn read_field<'a>(
    read: &mut Read,
    field: Field,
    value: &'a [u8],
    behind: &[u8],
) -> Option<&'a [u8]> {
    let rest;
    match field {
        Field::LongMonth | Field::Month => {
            let length = (field == Field::Month).then_some(3);
            let month;
            (month, rest) = named(value, &MONTHS, length)?;
            read.month = Some(month);
        }
        Field::NumberOfMonth { zero } => {
            let month;
            (month, rest) = number(value, zero, 1, 12)?;
            read.month = Some(month);
        }
        Field::LongWeekday => (_, rest) = named(value, &WEEKDAYS, None)?,
        Field::Weekday => (_, rest) = named(value, &WEEKDAYS, Some(3))?,
        Field::Day(fill) => {
            let value = if fill == Fill::Space { skip_spaces(value, 1) } else { value };
            let day;
            (day, rest) = number(value, fill == Fill::Zero, 0, 99)?;
            read.day = Some(day);
        }
        Field::DayOfYear(fill) => {
            let value = if fill == Fill::Space { skip_spaces(value, 2) } else { value };
            let day;
            (day, rest) = digits(value, if fill == Fill::Zero { 3 } else { 1 }, 3)?;
            read.day_of_year = i16::try_from(day).ok();
        }
        Field::Hour => (read.hour, rest) = number(value, false, 0, 23)?,
        Field::Hour12 { zero } => (read.hour, rest) = number(value, zero, 0, 12)?,
        Field::Minute { zero } => (read.minute, rest) = number(value, zero, 0, 59)?,
        Field::Second { zero } => {
            let after;
            (read.second, after) = number(value, zero, 0, 59)?;
            rest = match next_field(behind).1 {
                Some(Field::Fraction { .. }) => after,
                _ => fraction(read, after),
            };
        }
        Field::LongYear => {
            let (year, after) = digits(value, 4, 4)?;
            read.year = i16::try_from(year).ok()?;
            rest = after;
        }
        Field::Year => {
            let (year, after) = digits(value, 2, 2)?;
            read.year = i16::try_from(year + if year >= 69 { 1900 } else { 2000 }).ok()?;
            rest = after;
        }
        Field::Noon { upper } => rest = read_noon(read, value, upper)?,
        Field::Zone => rest = read_zone(read, value)?,
        Field::Offset { utc_is_z: true, .. } if value.starts_with(b"Z") => {
            read.is_utc = true;
            rest = &value[1..];
        }
        Field::Offset { colons, parts, .. } => rest = read_offset(read, value, colons, parts)?,
        Field::Fraction { short: true, .. } => rest = fraction(read, value),
        Field::Fraction { digits, .. } => rest = read_fraction(read, value, digits)?,
    }
    Some(rest)
}

fn read_noon<'a>(read: &mut Read, value: &'a [u8], upper: bool) -> Option<&'a [u8]> {
    let texts = if upper { [b"AM", b"PM"] } else { [b"am", b"pm"] };
    let text = value.get(..2)?;
    let position = texts.iter().position(|name| *name == text)?;
    read.afternoon = Some(position == 1);
    Some(&value[2..])
}

/// Reads a fraction of exactly `digits` digits.
fn read_fraction<'a>(read: &mut Read, value: &'a [u8], digits: usize) -> Option<&'a [u8]> {
    let text = value.get(..=digits)?;
    let is_whole = text[1..].iter().all(u8::is_ascii_digit);
    let is_read = fraction(read, text).is_empty();
    (is_whole && is_read).then(|| &value[digits + 1..])
}

fn skip_spaces(value: &[u8], most: usize) -> &[u8] {
    let spaces = value.iter().take(most).take_while(|byte| **byte == b' ').count();
    &value[spaces..]
}

/// Reads an optional fraction of a second; digits after the ninth are ignored.
fn fraction<'a>(read: &mut Read, value: &'a [u8]) -> &'a [u8] {
    if !matches!(value.first(), Some(b'.' | b',')) {
        return value;
    }
    let count = value[1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    if count == 0 {
        return value;
    }
    let text = std::str::from_utf8(&value[1..=count.min(9)]).unwrap_or_default();
    read.nanosecond = format!("{text:0<9}").parse().unwrap_or(0);
    &value[1 + count..]
}

fn read_zone<'a>(read: &mut Read, value: &'a [u8]) -> Option<&'a [u8]> {
    if let Some(rest) = value.strip_prefix(b"UTC") {
        read.is_utc = true;
        return Some(rest);
    }
    let length = zone_length(value)?;
    std::str::from_utf8(&value[..length]).ok()?.clone_into(&mut read.zone);
    Some(&value[length..])
}

/// Returns the length of the abbreviation of a time zone.
fn zone_length(value: &[u8]) -> Option<usize> {
    if value.len() < 3 {
        return None;
    }
    if value.starts_with(b"ChST") || value.starts_with(b"MeST") {
        return Some(4);
    }
    if let Some(rest) = value.strip_prefix(b"GMT") {
        return Some(3 + signed_length(rest));
    }
    if matches!(value[0], b'+' | b'-') {
        return Some(signed_length(value)).filter(|length| *length > 0);
    }
    let upper = value.iter().take(6).take_while(|byte| byte.is_ascii_uppercase()).count();
    match upper {
        5 if value[4] == b'T' => Some(5),
        4 if value[3] == b'T' || value.starts_with(b"WITA") => Some(4),
        3 => Some(3),
        _ => None,
    }
}

/// Returns the length of an offset in hours, such as `-3`; 0 without an offset.
fn signed_length(value: &[u8]) -> usize {
    if !matches!(value.first(), Some(b'+' | b'-')) {
        return 0;
    }
    let count = value[1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let hours = std::str::from_utf8(&value[1..=count]).ok().and_then(|text| text.parse().ok());
    if hours.is_some_and(|hours: u64| hours <= 23) { 1 + count } else { 0 }
}

fn read_offset<'a>(
    read: &mut Read,
    value: &'a [u8],
    colons: bool,
    parts: usize,
) -> Option<&'a [u8]> {
    let sign = match value.first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let mut rest = &value[1..];
    let mut seconds = 0;
    for (part, scale) in [3600, 60, 1].into_iter().take(parts).enumerate() {
        if part > 0 && colons {
            rest = rest.strip_prefix(b":")?;
        }
        let (number, behind) = digits(rest, 2, 2)?;
        if number > if part == 0 { 24 } else { 60 } {
            return None;
        }
        seconds += number * scale;
        rest = behind;
    }
    read.offset = Some(sign * seconds);
    Some(rest)
}

fn finished(read: &Read) -> Option<Time> {
    let hour = match read.afternoon {
        Some(true) if read.hour < 12 => read.hour + 12,
        Some(false) if read.hour == 12 => 0,
        _ => read.hour,
    };
    let date = match read.day_of_year {
        Some(day_of_year) => {
            let first = civil::Date::new(read.year, 1, 1).ok()?;
            let date = first.with().day_of_year(day_of_year).build().ok()?;
            let agrees = read.month.is_none_or(|month| month == date.month())
                && read.day.is_none_or(|day| day == date.day());
            agrees.then_some(date)?
        }
        None => civil::Date::new(read.year, read.month.unwrap_or(1), read.day.unwrap_or(1)).ok()?,
    };
    let clock = civil::Time::new(hour, read.minute, read.second, read.nanosecond).ok()?;
    let local = date.to_datetime(clock).to_zoned(TimeZone::UTC).ok()?.timestamp();
    if read.is_utc {
        return Some(Time::new(local, TimeZone::UTC));
    }
    if let Some(offset) = read.offset {
        let timestamp =
            local.checked_sub(jiff::SignedDuration::from_secs(i64::from(offset))).ok()?;
        if offset == 0 && read.zone.is_empty() {
            return Some(Time::new(timestamp, TimeZone::UTC));
        }
        return Time::fixed(timestamp, offset, &read.zone);
    }
    if !read.zone.is_empty() {
        let hours: i32 = match read.zone.strip_prefix("GMT") {
            Some(hours) if !hours.is_empty() => hours.parse().ok()?,
            _ => 0,
        };
        // Go parses the clock as UTC, regardless of the zone.
        return Time::fixed(local, hours * 3600, &read.zone);
    }
    Some(Time::new(local, TimeZone::UTC))
}
