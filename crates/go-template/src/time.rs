//! Times with their time zone.

use jiff::{
    Timestamp, Zoned,
    tz::{Offset, TimeZone},
};

/// Point in time and its time zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Time {
    zoned: Zoned,
    /// Name of the zone, possibly empty, of a time with a fixed offset.
    zone: Option<String>,
}

impl Time {
    pub(crate) fn new(timestamp: Timestamp, zone: TimeZone) -> Self {
        Self { zoned: timestamp.to_zoned(zone), zone: None }
    }

    /// Makes a time with a fixed offset; with an empty name, the zone is displayed as the offset.
    pub(crate) fn fixed(timestamp: Timestamp, seconds: i32, zone: &str) -> Option<Self> {
        let offset = Offset::from_seconds(seconds).ok()?;
        let zoned = timestamp.to_zoned(offset.to_time_zone());
        Some(Self { zoned, zone: Some(zone.to_owned()) })
    }

    /// Returns the zero value of Go's `time.Time`.
    pub(crate) fn zero() -> Self {
        Self::new(Timestamp::from_second(ZERO).unwrap_or_default(), TimeZone::UTC)
    }

    /// Returns another point in time in the same zone.
    pub(crate) fn at(&self, zoned: Zoned) -> Self {
        Self { zoned, zone: self.zone.clone() }
    }

    pub(crate) fn zoned(&self) -> &Zoned {
        &self.zoned
    }

    /// Returns the abbreviation of the time zone, or the offset if the name is empty.
    pub(crate) fn zone(&self) -> String {
        match &self.zone {
            Some(zone) if !zone.is_empty() => zone.clone(),
            Some(_) => offset(self.zoned.offset().seconds(), false, 2),
            None => {
                let info = self.zoned.time_zone().to_offset_info(self.zoned.timestamp());
                info.abbreviation().to_owned()
            }
        }
    }
}

/// Seconds from 1970 to the year 1.
const ZERO: i64 = -62_135_596_800;

/// Formats an offset: the first `parts` of hours, minutes and seconds.
pub(crate) fn offset(seconds: i32, colons: bool, parts: usize) -> String {
    // Go truncates the offset to minutes before determining the sign.
    let sign = if seconds / 60 < 0 { '-' } else { '+' };
    let magnitude = seconds.abs();
    let separator = if colons { ":" } else { "" };
    let numbers = [magnitude / 3600, magnitude / 60 % 60, magnitude % 60];
    let texts: Vec<String> =
        numbers.iter().take(parts).map(|number| format!("{number:02}")).collect();
    format!("{sign}{}", texts.join(separator))
}
