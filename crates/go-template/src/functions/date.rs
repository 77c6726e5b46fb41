//! Dates. The local time zone is UTC.

use jiff::{SignedDuration, Timestamp, tz::TimeZone};

use super::signature::{fixed, without_arguments};
use crate::{
    calls::{Call, Function, Type},
    error::Failure,
    layout,
    text::run_length,
    time::Time,
    value::Value,
};

pub(super) fn find(name: &str) -> Option<Function> {
    Some(match name {
        "now" => fixed(&[], |call| Ok(Value::Time(Time::new(call.environment.now, TimeZone::UTC)))),
        "date" => fixed(&[Type::Text, Type::Any], |call| {
            let format = call.text(0);
            shown(call, format.bytes(), 1, b"UTC")
        }),
        "dateInZone" | "date_in_zone" => fixed(&[Type::Text, Type::Any, Type::Text], |call| {
            let format = call.text(0);
            let zone = call.text(2);
            shown(call, format.bytes(), 1, zone.bytes())
        }),
        "htmlDate" => fixed(&[Type::Any], |call| shown(call, b"2006-01-02", 0, b"UTC")),
        "htmlDateInZone" => fixed(&[Type::Any, Type::Text], |call| {
            let zone = call.text(1);
            shown(call, b"2006-01-02", 0, zone.bytes())
        }),
        "dateModify" | "date_modify" => {
            fixed(&[Type::Text, Type::Time], |call| Ok(Value::Time(modified(call))))
        }
        "toDate" => fixed(&[Type::Text, Type::Text], |call| {
            let time = layout::parse(call.text(1).bytes(), call.text(0).bytes());
            Ok(Value::Time(time.unwrap_or_else(Time::zero)))
        }),
        "unixEpoch" => fixed(&[Type::Time], |call| {
            let seconds = moment(call, 0).zoned().timestamp().as_second();
            call.make(seconds.to_string())
        }),
        "ago" => fixed(&[Type::Any], |call| {
            let since = call.environment.now.duration_since(moment(call, 0).zoned().timestamp());
            // Halves are rounded away from zero.
            let half = if since.is_negative() { -500_000_000 } else { 500_000_000 };
            let rounded = since.saturating_add(SignedDuration::from_nanos(half)).as_secs();
            call.make(duration_text(rounded))
        }),
        _ => return None,
    })
}

/// Returns the time of an argument: integers are seconds since 1970, other types yield now.
fn moment(call: &Call<'_>, index: usize) -> Time {
    let now = call.environment.now;
    match call.value(index) {
        Value::Time(time) => time,
        Value::Integer { value: seconds, kind } if kind != crate::value::IntegerType::Byte => {
            let least = Timestamp::MIN.as_second();
            let most = Timestamp::MAX.as_second();
            let timestamp = Timestamp::from_second(seconds.clamp(least, most));
            Time::new(timestamp.unwrap_or(now), TimeZone::UTC)
        }
        _ => Time::new(now, TimeZone::UTC),
    }
}

/// Formats a time in a time zone; in UTC if the zone is unknown.
fn shown(call: &mut Call<'_>, format: &[u8], index: usize, zone: &[u8]) -> Result<Value, Failure> {
    let timestamp = moment(call, index).zoned().timestamp();
    let name = std::str::from_utf8(zone).unwrap_or_default();
    let zone = match name {
        "" | "Local" | "UTC" => TimeZone::UTC,
        name => TimeZone::get(name).unwrap_or(TimeZone::UTC),
    };
    call.make(layout::format(&Time::new(timestamp, zone), format))
}

/// Adds a duration such as `-1.5h`; an invalid duration adds nothing.
fn modified(call: &Call<'_>) -> Time {
    let time = moment(call, 1);
    let duration = duration(call.text(0).bytes());
    let later = duration.and_then(|duration| time.zoned().checked_add(duration).ok());
    match later {
        Some(zoned) => time.at(zoned),
        None => time,
    }
}

/// Parses a duration as Go's `time.ParseDuration` does.
fn duration(text: &[u8]) -> Option<SignedDuration> {
    let text = std::str::from_utf8(text).ok()?;
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(SignedDuration::ZERO);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let digits = run_length(rest, |c| c.is_ascii_digit());
        let whole = &rest[..digits];
        rest = &rest[digits..];
        let mut fraction = "";
        if let Some(behind) = rest.strip_prefix('.') {
            let digits = run_length(behind, |c| c.is_ascii_digit());
            fraction = &behind[..digits];
            rest = &behind[digits..];
        }
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let length = rest.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(rest.len());
        let unit: i128 = match &rest[..length] {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        rest = &rest[length..];
        let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        let digits = &fraction[..fraction.len().min(18)];
        let scale = 10_i128.pow(u32::try_from(digits.len()).ok()?);
        let part: i128 = if digits.is_empty() { 0 } else { digits.parse().ok()? };
        total = total.checked_add(whole.checked_mul(unit)?)?;
        total = total.checked_add(part * unit / scale)?;
        if total > i128::from(i64::MAX) {
            return None;
        }
    }
    Some(SignedDuration::from_nanos(i64::try_from(sign * total).ok()?))
}

/// Formats whole seconds as Go formats a duration.
fn duration_text(seconds: i64) -> String {
    let sign = if seconds < 0 { "-" } else { "" };
    let seconds = seconds.unsigned_abs();
    let hours = seconds / 3600;
    let minutes = seconds / 60 % 60;
    let rest = seconds % 60;
    if hours > 0 {
        format!("{sign}{hours}h{minutes}m{rest}s")
    } else if minutes > 0 {
        format!("{sign}{minutes}m{rest}s")
    } else {
        format!("{sign}{rest}s")
    }
}

/// Calls a method of a time; `None` if the method does not exist.
pub(super) fn method(time: &Time, name: &str, values: &[Value]) -> Result<Option<Value>, Failure> {
    if let ("Format", [Value::Text(format)]) = (name, values) {
        return Ok(Some(Value::text(layout::format(time, format.bytes()))));
    }
    let zoned = time.zoned();
    let value = match name {
        "Day" => Value::int(i64::from(zoned.day())),
        "Hour" => Value::int(i64::from(zoned.hour())),
        "Minute" => Value::int(i64::from(zoned.minute())),
        "Second" => Value::int(i64::from(zoned.second())),
        "Nanosecond" => Value::int(i64::from(zoned.subsec_nanosecond())),
        "Year" => Value::int(i64::from(zoned.year())),
        "YearDay" => Value::int(i64::from(zoned.day_of_year())),
        "Unix" => Value::int64(zoned.timestamp().as_second()),
        "UnixNano" => {
            let nanoseconds = i64::try_from(zoned.timestamp().as_nanosecond());
            Value::int64(nanoseconds.unwrap_or(i64::MAX))
        }
        "UTC" => Value::Time(Time::new(zoned.timestamp(), TimeZone::UTC)),
        "IsZero" => Value::Bool(*time == Time::zero()),
        "String" => Value::text(layout::text(time)),
        "Month" | "Weekday" => return Err(Failure::Unsupported("this method of a time")),
        _ => return Ok(None),
    };
    without_arguments(name, value, values).map(Some)
}
