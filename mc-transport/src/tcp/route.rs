//! Routes between this host's network cards and those of a peer.

use std::net::{IpAddr, SocketAddr};

use crate::backend::description::MAX_WAYS;

/// One way to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Route {
    /// The address of ours that a connection leaves from; `None` leaves it to the
    /// system.
    pub(super) local: Option<IpAddr>,
    /// Where it goes; `None` for the peer's own endpoint.
    pub(super) remote: Option<SocketAddr>,
}

impl Route {
    /// The way that needs no knowledge of either side.
    pub(super) const PLAIN: Self = Self { local: None, remote: None };
}

/// The ways between our cards, at `locals`, and a peer's, at `remotes`: each of ours is
/// paired with the one of theirs whose address has most leading bits in common, which is
/// how networks are laid out. Without addresses of ours, one way to each of theirs;
/// without any, the plain one.
pub(super) fn routes(locals: &[IpAddr], remotes: &[SocketAddr]) -> Vec<Route> {
    let mut routes: Vec<Route> = match (locals, remotes) {
        ([], []) => vec![Route::PLAIN],
        ([], remotes) => {
            remotes.iter().map(|remote| Route { local: None, remote: Some(*remote) }).collect()
        }
        (locals, []) => {
            locals.iter().map(|local| Route { local: Some(*local), remote: None }).collect()
        }
        (locals, remotes) => locals.iter().filter_map(|local| paired(*local, remotes)).collect(),
    };
    if routes.is_empty() {
        routes.push(Route::PLAIN);
    }
    routes.truncate(MAX_WAYS);
    routes
}

fn paired(local: IpAddr, remotes: &[SocketAddr]) -> Option<Route> {
    let same_family = remotes.iter().filter(|remote| remote.is_ipv4() == local.is_ipv4());
    let nearest = same_family.max_by_key(|remote| common_bits(local, remote.ip()))?;
    Some(Route { local: Some(local), remote: Some(*nearest) })
}

/// Leading bits that two addresses of one family share.
fn common_bits(a: IpAddr, b: IpAddr) -> u32 {
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(locals: &[&str], remotes: &[&str]) -> Vec<(String, String)> {
        let locals: Vec<IpAddr> = locals.iter().map(|text| text.parse().unwrap()).collect();
        let remotes: Vec<SocketAddr> = remotes.iter().map(|text| text.parse().unwrap()).collect();
        let text = |route: Route| {
            let local = route.local.map_or("-".to_owned(), |local| local.to_string());
            (local, route.remote.map_or("-".to_owned(), |remote| remote.to_string()))
        };
        routes(&locals, &remotes).into_iter().map(text).collect()
    }

    fn pair(local: &str, remote: &str) -> (String, String) {
        (local.to_owned(), remote.to_owned())
    }

    #[test]
    fn cards_of_one_network_are_paired() {
        assert_eq!(pairs(&[], &[]), [pair("-", "-")]);
        assert_eq!(pairs(&["10.0.0.2"], &[]), [pair("10.0.0.2", "-")]);
        assert_eq!(
            pairs(&[], &["10.0.0.1:7", "10.0.1.1:7"]),
            [pair("-", "10.0.0.1:7"), pair("-", "10.0.1.1:7")]
        );
        assert_eq!(
            pairs(&["10.0.1.2", "10.0.0.2"], &["10.0.0.1:7", "10.0.1.1:7", "10.0.2.1:7"]),
            [pair("10.0.1.2", "10.0.1.1:7"), pair("10.0.0.2", "10.0.0.1:7")]
        );
        assert_eq!(
            pairs(&["fd00:1::2", "10.0.0.2"], &["[fd00:2::1]:7", "[fd00:1::1]:7"]),
            [pair("fd00:1::2", "[fd00:1::1]:7")]
        );
        assert_eq!(pairs(&["10.0.0.2"], &["[fd00::1]:7"]), [pair("-", "-")]);
        assert_eq!(pairs(&[], &["10.0.0.1:7"; 40]).len(), MAX_WAYS);
    }
}
