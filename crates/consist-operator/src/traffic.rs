//! Traffic of a Pod: desired at a backend, and observed by it.

use std::fmt;

/// Desired state of one Pod at a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DesiredTraffic {
    /// Route traffic to the Pod.
    Serve,
    /// Route no new traffic to the Pod.
    Off,
}

/// Traffic of a Pod as its backend reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// The Pod receives new traffic.
    Serving,
    /// The Pod is registered, and the backend considers it unhealthy.
    Unhealthy,
    /// The Pod receives no new traffic; it may have requests in flight.
    Draining(InFlight),
    /// The Pod receives no traffic.
    Absent,
}

/// Requests in flight of a draining Pod, as far as its backend reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlight {
    /// This many requests.
    Count(u64),
    /// There are requests in flight, or there may be some; their number is unknown.
    Uncounted,
    /// The backend does not report requests in flight.
    Unreported,
}

impl InFlight {
    /// Returns whether the backend reports requests in flight, or that there may be some.
    #[must_use]
    pub fn has_requests(self) -> bool {
        match self {
            Self::Count(count) => count > 0,
            Self::Uncounted => true,
            Self::Unreported => false,
        }
    }

    /// Adds the requests in flight at another place of the same backend.
    fn combine(self, other: Self) -> Self {
        match (self, other) {
            (Self::Unreported, _) | (_, Self::Unreported) => Self::Unreported,
            (Self::Uncounted, _) | (_, Self::Uncounted) => Self::Uncounted,
            (Self::Count(first), Self::Count(second)) => Self::Count(first + second),
        }
    }
}

impl fmt::Display for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(1) => write!(f, "1 request in flight"),
            Self::Count(count) => write!(f, "{count} requests in flight"),
            Self::Uncounted => write!(f, "requests in flight"),
            Self::Unreported => write!(f, "requests in flight not reported"),
        }
    }
}

impl Traffic {
    /// Combines two observations of a Pod: it has traffic if either of them reports traffic.
    #[must_use]
    pub fn combine(self, other: Self) -> Self {
        match (self, other) {
            (Self::Serving, _) | (_, Self::Serving) => Self::Serving,
            (Self::Unhealthy, _) | (_, Self::Unhealthy) => Self::Unhealthy,
            (Self::Draining(first), Self::Draining(second)) => {
                Self::Draining(first.combine(second))
            }
            (Self::Absent, other) | (other, Self::Absent) => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_numbers_of_requests_stay_unknown_when_combined() {
        let combined = |first: InFlight, second: InFlight| {
            let all = first.combine(second);
            assert_eq!(
                Traffic::Draining(first).combine(Traffic::Draining(second)),
                Traffic::Draining(all)
            );
            all.to_string()
        };
        assert_eq!(combined(InFlight::Count(1), InFlight::Count(2)), "3 requests in flight");
        assert_eq!(combined(InFlight::Count(0), InFlight::Uncounted), "requests in flight");
        assert_eq!(combined(InFlight::Uncounted, InFlight::Uncounted), "requests in flight");
        assert!(!InFlight::Count(1).combine(InFlight::Unreported).has_requests());
    }
}
