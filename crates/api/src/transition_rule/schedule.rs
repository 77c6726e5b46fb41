//! Rules by the clock.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// When Pods may pass: inside one of the windows, if there are any, and outside every freeze.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("has(self.windows) && self.windows.size() > 0 || has(self.freezes) && self.freezes.size() > 0", "spec.rules[].schedule: one of windows and freezes is required"))]
pub struct ScheduleRule {
    /// The IANA time zone that windows are in, such as `Europe/Berlin`; UTC by default.
    #[serde(default = "utc")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = Rule::new("self != '' && self != 'Local' && !self.contains(':') && timestamp('2020-01-01T00:00:00Z').getFullYear(self) > 0")
        .message("spec.rules[].schedule.timeZone: unknown time zone").reason(Reason::FieldValueInvalid))]
    pub time_zone: String,
    /// When Pods may pass; always by default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub windows: Vec<Window>,
    /// When no Pod may pass, windows or not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub freezes: Vec<Freeze>,
}

fn utc() -> String {
    "UTC".to_owned()
}

/// A part of the day on some days of the week.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = ("self.from != self.to", "spec.rules[].schedule.windows[]: from and to should differ; a window of a whole day is from 00:00 to 24:00"))]
pub struct Window {
    /// The days on which the window begins; all by default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 7))]
    pub days: Vec<Day>,
    /// When it begins, as hours and minutes: `22:00`.
    #[schemars(length(max = 5), regex(pattern = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    pub from: String,
    /// When it ends; a time before `from` is on the next day.
    #[schemars(length(max = 5), regex(pattern = r"^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$"))]
    pub to: String,
}

/// A day of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs, reason = "they are what they are called")]
pub enum Day {
    Mon,
    Tue,
    Wed,
    Thu,
    Fri,
    Sat,
    Sun,
}

/// A time in which no Pod may pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = ("self.from < self.to", "spec.rules[].schedule.freezes[]: to should be later than from"))]
pub struct Freeze {
    /// When it begins.
    pub from: Time,
    /// When it ends.
    pub to: Time,
    /// Why, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub reason: Option<String>,
}
