//! Floating-point numbers as Go parses and formats them.

use super::digits::underscores_are_valid;

/// Parses a number as Go's `strconv.ParseFloat` does; `None` if invalid or out of range.
#[must_use]
pub fn parse(text: &str) -> Option<f64> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let lower = unsigned.to_ascii_lowercase();
    let sign = if text.starts_with('-') { -1.0 } else { 1.0 };
    match lower.as_str() {
        "inf" | "infinity" => return Some(sign * f64::INFINITY),
        "nan" => return (unsigned.len() == text.len()).then_some(f64::NAN),
        _ => {}
    }
    if !underscores_are_valid(&lower) {
        return None;
    }
    let digits = lower.replace('_', "");
    let value = if let Some(hexadecimal) = digits.strip_prefix("0x") {
        parse_hexadecimal(hexadecimal)?
    } else if digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        digits.parse().ok()?
    } else {
        return None;
    };
    value.is_finite().then_some(sign * value)
}

/// Parses a number such as `1.8p3`, whose exponent is required.
fn parse_hexadecimal(text: &str) -> Option<f64> {
    let (mantissa, exponent) = text.split_once('p')?;
    let exponent: i32 = exponent.parse().ok()?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    if digits.is_empty() || digits.len() > 13 {
        return None;
    }
    let value = u64::from_str_radix(&digits, 16).ok()?;
    let shift = exponent.saturating_sub(4 * i32::try_from(fraction.len()).ok()?);
    #[expect(clippy::cast_precision_loss, reason = "13 hexadecimal digits are exact")]
    let value = value as f64;
    Some(value * f64::from(shift).exp2())
}

/// Returns the integer equal to a number.
pub(crate) fn whole(value: f64) -> Option<i64> {
    let integer = to_integer(value);
    #[expect(clippy::cast_precision_loss, reason = "compared with what it came from")]
    let back = integer as f64;
    // A number out of range converts to `i64::MIN`, and only -2^63 equals `i64::MIN`.
    #[expect(clippy::float_cmp, reason = "exact equality is the question")]
    let is_whole = back == value;
    is_whole.then_some(integer)
}

/// Truncates to an integer; `i64::MIN` for NaN and out of range, as on amd64.
pub(crate) fn to_integer(value: f64) -> i64 {
    if value.is_nan() || value >= 9_223_372_036_854_775_808.0 {
        return i64::MIN;
    }
    #[expect(clippy::cast_possible_truncation, reason = "the fraction is cut off")]
    let integer = value as i64;
    integer
}

/// Decimal digits of a number: `0.d1d2d3… × 10^point`.
struct Decimal {
    digits: Vec<u8>,
    point: i32,
}

/// Returns the shortest digits that parse back to the number, or `count` significant digits after
/// rounding.
fn decimal(value: f64, count: Option<usize>) -> Decimal {
    let text = match count {
        Some(count) => format!("{value:.*e}", count.saturating_sub(1)),
        None => format!("{value:e}"),
    };
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let digits: Vec<u8> = mantissa.bytes().filter(u8::is_ascii_digit).collect();
    let exponent: i32 = exponent.parse().unwrap_or(0);
    Decimal { digits, point: exponent + 1 }
}

/// Formats a number as Go's `strconv.FormatFloat(value, format, precision, 64)` does. `format` is
/// `e`, `f` or `g`; without `precision`, the text is the shortest.
#[must_use]
pub fn format(value: f64, format: u8, precision: Option<usize>) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    let sign = if value.is_sign_negative() { "-" } else { "" };
    if value.is_infinite() {
        return format!("{}Inf", if sign.is_empty() { "+" } else { "-" });
    }
    let magnitude = value.abs();
    let text = match format {
        b'f' => match precision {
            Some(precision) => format!("{magnitude:.precision$}"),
            None => format!("{magnitude}"),
        },
        b'e' => exponential(magnitude, precision.map(|precision| precision + 1)),
        _ => general(magnitude, precision),
    };
    format!("{sign}{text}")
}

fn general(value: f64, precision: Option<usize>) -> String {
    let count = precision.map(|precision| precision.max(1));
    let mut decimal = decimal(value, count);
    let exponent = decimal.point - 1;
    while decimal.digits.len() > 1 && decimal.digits.last() == Some(&b'0') {
        decimal.digits.pop();
    }
    let digits = i32::try_from(decimal.digits.len()).unwrap_or(i32::MAX);
    let limit = match count {
        // The digits before the decimal point are enough.
        Some(count) => {
            let count = i32::try_from(count).unwrap_or(i32::MAX);
            if count > digits && digits >= decimal.point { digits } else { count }
        }
        None => 6,
    };
    if exponent < -4 || exponent >= limit { write_exponential(&decimal) } else { plain(&decimal) }
}

fn exponential(value: f64, count: Option<usize>) -> String {
    write_exponential(&decimal(value, count))
}

fn write_exponential(decimal: &Decimal) -> String {
    let exponent = decimal.point - 1;
    let digits = String::from_utf8_lossy(&decimal.digits);
    let (first, rest) = digits.split_at(1);
    let fraction = if rest.is_empty() { String::new() } else { format!(".{rest}") };
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{first}{fraction}e{sign}{:02}", exponent.abs())
}

fn plain(decimal: &Decimal) -> String {
    let digits = String::from_utf8_lossy(&decimal.digits);
    let length = i32::try_from(digits.len()).unwrap_or(i32::MAX);
    let point = decimal.point;
    if point <= 0 {
        format!("0.{}{digits}", zeros(-point))
    } else if point >= length {
        format!("{digits}{}", zeros(point - length))
    } else {
        let (whole, fraction) = digits.split_at(usize::try_from(point).unwrap_or(0));
        format!("{whole}.{fraction}")
    }
}

fn zeros(count: i32) -> String {
    "0".repeat(usize::try_from(count).unwrap_or(0))
}

/// Returns 10 to the power of `exponent`, as Go's `math.Pow` does; exact if representable.
pub(crate) fn power_of_ten(exponent: i64) -> f64 {
    let text = format!("1e{exponent}");
    text.parse().unwrap_or(f64::INFINITY)
}
