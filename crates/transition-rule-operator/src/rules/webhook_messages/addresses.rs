//! Addresses that webhook rules may call.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Metadata services of clouds.
const METADATA_SERVICES: [&str; 4] =
    ["100.100.100.200", "168.63.129.16", "fd00:ec2::23", "fd00:ec2::254"];

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
        IpAddr::V6(a) if embedded_v4(a).is_some_and(|v4| is_restricted(v4.into())) => true,
        IpAddr::V6(a) => {
            a.is_loopback() || a.is_unicast_link_local() || a.is_unspecified() || a.is_multicast()
        }
    }
}

/// Returns the IPv4 address that a NAT64 address (64:ff9b::/96, RFC 6052) is translated to.
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    match address.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            Some(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)))
        }
        _ => None,
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
            "168.63.129.16",
            "fd00:ec2::23",
            "64:ff9b::169.254.169.254",
            "64:ff9b::7f00:1",
        ] {
            assert!(!AddressPolicy::Restricted.allows(address.parse().unwrap()), "{address}");
            assert!(AddressPolicy::Any.allows(address.parse().unwrap()), "{address}");
        }
        for address in
            ["10.0.0.1", "192.168.1.1", "1.1.1.1", "fd00::1", "2001:db8::1", "64:ff9b::10.0.0.1"]
        {
            assert!(AddressPolicy::Restricted.allows(address.parse().unwrap()), "{address}");
        }
    }
}
