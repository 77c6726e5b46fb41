//! Schedule rules: time windows and freezes.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

/// Times at which Pods may pass: inside one of the windows, if any are set, and outside every
/// freeze.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("has(self.windows) && self.windows.size() > 0 || has(self.freezes) && self.freezes.size() > 0", "spec.rules[].schedule: one of windows and freezes is required"))]
pub struct ScheduleRule {
    /// IANA time zone of the windows, such as `Europe/Berlin`. Defaults to UTC.
    #[serde(default = "utc")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = Rule::new("self != '' && self != 'Local' && !self.contains(':') && timestamp('2020-01-01T00:00:00Z').getFullYear(self) > 0")
        .message("spec.rules[].schedule.timeZone: unknown time zone").reason(Reason::FieldValueInvalid))]
    pub time_zone: String,
    /// Times at which Pods may pass. If empty, Pods may pass at any time outside the freezes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub windows: Vec<Window>,
    /// Times at which no Pod may pass, even inside a window.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub freezes: Vec<Freeze>,
}

fn utc() -> String {
    "UTC".to_owned()
}

/// Time of day on certain days of the week.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = ("self.from != self.to", "spec.rules[].schedule.windows[]: from and to should differ; for a whole day, use 00:00 and 24:00"))]
pub struct Window {
    /// Days on which the window begins. Defaults to every day.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 7))]
    pub days: Vec<Day>,
    /// Start time in hours and minutes, such as `22:00`.
    #[schemars(length(max = 5), regex(pattern = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    pub from: String,
    /// End time in hours and minutes; a time before `from` is on the next day.
    #[schemars(length(max = 5), regex(pattern = r"^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$"))]
    pub to: String,
}

/// Day of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs, reason = "self-explanatory")]
pub enum Day {
    Mon,
    Tue,
    Wed,
    Thu,
    Fri,
    Sat,
    Sun,
}

/// Parses a time. The API server accepts times later than [`Timestamp::MAX`], such as
/// `9999-12-31T23:59:59Z` for a freeze without end; they are read as `Timestamp::MAX`.
fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
    let text = String::deserialize(deserializer)?;
    let time = text.parse().or_else(|error| {
        // RFC 3339 allows times in the last hours of the year 9999, which exceed `Timestamp::MAX`.
        if text.starts_with("9999-12-3") { Ok(Timestamp::MAX) } else { Err(error) }
    });
    time.map(Time).map_err(D::Error::custom)
}

/// Period in which no Pod may pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = ("self.from < self.to", "spec.rules[].schedule.freezes[]: to should be later than from"))]
pub struct Freeze {
    /// Start time.
    #[serde(deserialize_with = "time")]
    pub from: Time,
    /// End time.
    #[serde(deserialize_with = "time")]
    pub to: Time,
    /// Reason for the freeze, shown in rejections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub reason: Option<String>,
}
