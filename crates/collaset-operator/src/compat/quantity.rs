//! Kubernetes quantities, parsed to a value and formatted canonically.

const NANO: i128 = 1_000_000_000;

/// Suffixes of powers of ten and of 1024, with their units in billionths, largest first.
const DECIMAL: [(&str, i128); 8] = [
    ("P", NANO * 1_000_000_000_000_000),
    ("T", NANO * 1_000_000_000_000),
    ("G", NANO * 1_000_000_000),
    ("M", NANO * 1_000_000),
    ("k", NANO * 1_000),
    ("", NANO),
    ("m", 1_000_000),
    ("u", 1_000),
];
const BINARY: [(&str, i128); 5] = [
    ("Pi", NANO << 50),
    ("Ti", NANO << 40),
    ("Gi", NANO << 30),
    ("Mi", NANO << 20),
    ("Ki", NANO << 10),
];

/// Parses a quantity to its value in billionths, and true if its suffix is a power of 1024.
fn parse(text: &str) -> Option<(i128, bool)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && !matches!(c, '.' | '-' | '+'));
    let (number, suffix) = text.split_at(end.unwrap_or(text.len()));
    let (unit, is_binary) = match (unit(&DECIMAL, suffix), unit(&BINARY, suffix), suffix) {
        (Some(unit), _, _) => (unit, false),
        (_, Some(unit), _) => (unit, true),
        (None, None, "n") => (1, false),
        (None, None, _) => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let scale = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    Some((digits.checked_mul(unit)? / scale, is_binary))
}

/// Returns the unit of a suffix in billionths.
fn unit(units: &[(&str, i128)], suffix: &str) -> Option<i128> {
    units.iter().find(|(known, _)| *known == suffix).map(|(_, unit)| *unit)
}

/// Returns a quantity's value in billionths; `None` if it cannot be parsed.
#[must_use]
pub fn value(text: &str) -> Option<i128> {
    parse(text).map(|(value, _)| value)
}

/// Formats a quantity as Kubernetes' libraries do. A quantity that cannot be parsed, or that has an
/// exponent, is returned unchanged.
pub(super) fn canonical(text: &str) -> String {
    let Some((value, is_binary)) = parse(text) else { return text.to_owned() };
    if value == 0 {
        return "0".to_owned();
    }
    // Values below 1Ki have no binary suffix.
    let binary = is_binary && value.abs() >= NANO << 10;
    let units: &[(&str, i128)] = if binary { &BINARY } else { &DECIMAL };
    let fits = units.iter().find(|(_, unit)| value % unit == 0);
    fits.map_or_else(
        || if value % NANO == 0 { (value / NANO).to_string() } else { format!("{value}n") },
        |(suffix, unit)| format!("{}{suffix}", value / unit),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_quantities_have_one_canonical_form() {
        for (text, expected) in [
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("0.5Ki", "512"),
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("0.1", "100m"),
            ("100000", "100k"),
            ("1200", "1200"),
            ("100m", "100m"),
            ("0", "0"),
            ("1e3", "1e3"),
        ] {
            assert_eq!(canonical(text), expected, "{text}");
        }
        assert_eq!(value("1Gi"), value("1024Mi"));
        assert_ne!(value("1Gi"), value("1G"));
    }
}
