//! Schedule rules: time windows and freezes.

use jiff::{Timestamp, ToSpan as _, Zoned, civil, tz::TimeZone};
use podops_api::transition_rule::{Day, ScheduleRule, Window};

use super::verdict::Verdict;

/// Evaluates a schedule at `now`.
#[must_use]
pub fn verdict(rule: &ScheduleRule, now: Timestamp) -> Verdict {
    let frozen = rule.freezes.iter().find(|f| f.from.0 <= now && now < f.to.0);
    if let Some(freeze) = frozen {
        let reason = freeze.reason.as_deref().unwrap_or("no reason specified");
        return Verdict::Reject(format!("frozen until {}: {reason}", freeze.to.0));
    }
    if rule.windows.is_empty() {
        return Verdict::Pass;
    }
    let Ok(zone) = TimeZone::get(&rule.time_zone) else {
        return Verdict::Reject(format!("unknown time zone {}", rule.time_zone));
    };
    let local = now.to_zoned(zone);
    if rule.windows.iter().any(|window| is_in(window, &local)) {
        return Verdict::Pass;
    }
    Verdict::Reject("outside of all windows".to_owned())
}

/// Returns true if the time zone is known.
#[must_use]
pub fn is_zone(name: &str) -> bool {
    TimeZone::get(name).is_ok()
}

/// Returns the next start or end of a window or freeze, when the verdict may change.
#[must_use]
pub fn next_change(rule: &ScheduleRule, now: Timestamp) -> Option<Timestamp> {
    let freezes = rule.freezes.iter().flat_map(|f| [f.from.0, f.to.0]);
    let zone = TimeZone::get(&rule.time_zone).ok();
    let windows = zone.into_iter().flat_map(|zone| {
        let today = now.to_zoned(zone.clone()).date();
        let bounds = rule.windows.iter().flat_map(|w| [minutes(&w.from), minutes(&w.to)]).flatten();
        bounds
            .flat_map(move |at| (0..=1).map(move |days| (days, at)))
            .filter_map(move |(days, at)| instant(today, days, at, &zone))
            .collect::<Vec<_>>()
    });
    freezes.chain(windows).filter(|at| *at > now).min()
}

/// Returns true if a window that started today or yesterday is open.
fn is_in(window: &Window, local: &Zoned) -> bool {
    let (Some(from), Some(to)) = (minutes(&window.from), minutes(&window.to)) else {
        return false;
    };
    let at = i64::from(local.hour()) * 60 + i64::from(local.minute());
    if from < to {
        starts_days_ago(0, window, local) && (from..to).contains(&at)
    } else {
        starts_days_ago(0, window, local) && at >= from
            || starts_days_ago(1, window, local) && at < to
    }
}

/// Returns true if the window starts on the weekday of `days` before `local`.
fn starts_days_ago(days: i64, window: &Window, local: &Zoned) -> bool {
    let Ok(day) = local.date().checked_sub(days.days()) else { return false };
    window.days.is_empty() || window.days.contains(&weekday(day))
}

fn weekday(day: civil::Date) -> Day {
    match day.weekday() {
        civil::Weekday::Monday => Day::Mon,
        civil::Weekday::Tuesday => Day::Tue,
        civil::Weekday::Wednesday => Day::Wed,
        civil::Weekday::Thursday => Day::Thu,
        civil::Weekday::Friday => Day::Fri,
        civil::Weekday::Saturday => Day::Sat,
        civil::Weekday::Sunday => Day::Sun,
    }
}

/// Parses a time such as `22:00` to minutes since midnight.
fn minutes(time: &str) -> Option<i64> {
    let (hours, minutes) = time.split_once(':')?;
    let (hours, minutes) = (hours.parse::<i64>().ok()?, minutes.parse::<i64>().ok()?);
    (0..=24 * 60).contains(&(hours * 60 + minutes)).then_some(hours * 60 + minutes)
}

fn instant(day: civil::Date, days: i64, at: i64, zone: &TimeZone) -> Option<Timestamp> {
    let midnight = day.checked_add(days.days()).ok()?.at(0, 0, 0, 0);
    let local = midnight.checked_add(at.minutes()).ok()?;
    zone.to_zoned(local).ok().map(|zoned| zoned.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rule(value: serde_json::Value) -> ScheduleRule {
        serde_json::from_value(value).unwrap()
    }

    #[track_caller]
    fn check(rule: &ScheduleRule, now: &str, expected: Result<(), &str>) {
        let expected = expected.map_or_else(|r| Verdict::Reject(r.to_owned()), |()| Verdict::Pass);
        assert_eq!(verdict(rule, now.parse().unwrap()), expected, "at {now}");
    }

    /// The API server accepts later times than the operator's type of time can hold.
    #[test]
    fn a_freeze_may_last_for_ever() {
        let frozen = rule(json!({ "freezes": [
            { "from": "2026-11-20T00:00:00Z", "to": "9999-12-31T23:59:59Z", "reason": "stop" },
        ] }));
        let Verdict::Reject(reason) = verdict(&frozen, "2027-01-01T00:00:00Z".parse().unwrap())
        else {
            panic!("it passed")
        };
        assert!(reason.starts_with("frozen until 9999-12-30T22:00:00"), "{reason}");
        let invalid = json!({ "freezes": [{ "from": "2026-11-20T00:00:00Z", "to": "never" }] });
        assert!(serde_json::from_value::<ScheduleRule>(invalid).is_err());
    }

    #[test]
    fn a_window_over_midnight_belongs_to_its_first_day() {
        let nights = rule(json!({
            "timeZone": "Europe/Berlin", "windows": [{ "days": ["Fri"], "from": "22:00", "to": "06:00" }],
        }));
        let closed = Err("outside of all windows");
        // 2026-11-20 is a Friday, and Berlin is one hour ahead of UTC.
        check(&nights, "2026-11-20T20:59:00Z", closed);
        check(&nights, "2026-11-20T21:00:00Z", Ok(()));
        check(&nights, "2026-11-21T04:59:00Z", Ok(()));
        check(&nights, "2026-11-21T05:00:00Z", closed);
        check(&nights, "2026-11-21T21:30:00Z", closed);
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let next = next_change(&nights, at("2026-11-20T12:00:00Z"));
        assert_eq!(next, Some(at("2026-11-20T21:00:00Z")));
        let next = next_change(&nights, at("2026-11-20T22:00:00Z"));
        assert_eq!(next, Some(at("2026-11-21T05:00:00Z")));
    }

    #[test]
    fn a_whole_day_ends_at_midnight() {
        let monday =
            rule(json!({ "windows": [{ "days": ["Mon"], "from": "00:00", "to": "24:00" }] }));
        check(&monday, "2026-11-23T00:00:00Z", Ok(()));
        check(&monday, "2026-11-23T23:59:59Z", Ok(()));
        check(&monday, "2026-11-24T00:00:00Z", Err("outside of all windows"));
    }

    #[test]
    fn a_freeze_overrides_an_open_window() {
        let frozen = rule(json!({
            "windows": [{ "from": "00:00", "to": "24:00" }],
            "freezes": [{ "from": "2026-12-24T00:00:00Z", "to": "2026-12-27T00:00:00Z", "reason": "holidays" }],
        }));
        check(&frozen, "2026-12-25T12:00:00Z", Err("frozen until 2026-12-27T00:00:00Z: holidays"));
        check(&frozen, "2026-12-27T00:00:00Z", Ok(()));
    }
}
