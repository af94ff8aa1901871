//! `--rpc_interface`: the address of a network interface of this host.

use std::net::IpAddr;

use mc_transport::topology::{Topology, TopologyError};

/// The address of the interface that `--rpc_interface` names, if it names one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InterfaceAddress(pub(crate) Option<IpAddr>);

/// Why an interface has no address to listen on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum InterfaceError {
    #[error("the addresses of this host cannot be read")]
    Unreadable(#[from] TopologyError),
    #[error("there is no such interface; this host has {}", known.join(", "))]
    Unknown { known: Vec<String> },
    #[error("the interface has no address; give it one, or give an address to --rpc_address")]
    NoAddress,
}

/// Returns the first address of an interface, IPv4 before IPv6; none for the empty text, which is
/// Mooncake's default.
///
/// # Errors
/// [`InterfaceError`] when the interface or its address is not there.
pub(crate) fn parse_interface(text: &str) -> Result<InterfaceAddress, InterfaceError> {
    let name = text.trim();
    if name.is_empty() {
        return Ok(InterfaceAddress(None));
    }
    let interfaces = Topology::read()?.interfaces;
    let Some(found) = interfaces.iter().find(|interface| interface.name == name) else {
        let known = interfaces.into_iter().map(|interface| interface.name).collect();
        return Err(InterfaceError::Unknown { known });
    };
    let first = found.addresses.first().copied().ok_or(InterfaceError::NoAddress)?;
    Ok(InterfaceAddress(Some(first)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_stands_for_its_address() {
        let loopback = parse_interface("lo").expect("the loopback interface").0;
        assert_eq!(loopback, Some("127.0.0.1".parse().expect("an address")));
        assert_eq!(parse_interface(" ").expect("none is named").0, None);
        let refused = parse_interface("no-such0").expect_err("no such interface").to_string();
        assert!(refused.contains("this host has") && refused.contains("lo"), "{refused}");
    }
}
