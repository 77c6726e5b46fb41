//! Addresses that webhook rules may call.

use std::net::IpAddr;

/// Metadata services of clouds.
const METADATA_SERVICES: [&str; 2] = ["100.100.100.200", "fd00:ec2::254"];

/// Addresses that webhook rules may call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressPolicy {
    /// Neither loopback, link-local and multicast addresses nor the metadata service of a cloud.
    Restricted,
    /// All addresses.
    Any,
}

impl AddressPolicy {
    /// Returns true if rules may call this address.
    #[must_use]
    pub fn allows(self, address: IpAddr) -> bool {
        match self {
            Self::Any => true,
            Self::Restricted => !is_restricted(address.to_canonical()),
        }
    }
}

fn is_restricted(address: IpAddr) -> bool {
    if METADATA_SERVICES.iter().any(|known| known.parse() == Ok(address)) {
        return true;
    }
    match address {
        IpAddr::V4(a) => {
            a.is_loopback()
                || a.is_link_local()
                || a.is_unspecified()
                || a.is_multicast()
                || a.is_broadcast()
                || a.octets()[0] == 0
        }
        IpAddr::V6(a) => {
            a.is_loopback() || a.is_unicast_link_local() || a.is_unspecified() || a.is_multicast()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_link_local_and_metadata_are_forbidden() {
        for address in [
            "127.0.0.1",
            "127.8.8.8",
            "0.0.0.0",
            "169.254.169.254",
            "100.100.100.200",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "fd00:ec2::254",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
        ] {
            assert!(!AddressPolicy::Restricted.allows(address.parse().unwrap()), "{address}");
            assert!(AddressPolicy::Any.allows(address.parse().unwrap()), "{address}");
        }
        for address in ["10.0.0.1", "192.168.1.1", "1.1.1.1", "fd00::1", "2001:db8::1"] {
            assert!(AddressPolicy::Restricted.allows(address.parse().unwrap()), "{address}");
        }
    }
}
