//! The links over shortcuts that were found before.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use mc_types::Endpoint;
use parking_lot::RwLock;

use super::link::NodeLink;
use super::shortcuts::ShortLink;
use crate::transport::Link;

/// Most peers whose links are known. Beyond that they are found anew.
const MAX_KNOWN: usize = 1024;

/// The links to peers that a shortcut leads to: finding one takes longer than a small transfer over it. The
/// transports own them.
#[derive(Default)]
pub(super) struct KnownLinks(RwLock<HashMap<Endpoint, Known>>);

/// Both ways of a [`NodeLink`].
struct Known {
    scheme: &'static str,
    link: Weak<dyn Link>,
    short_scheme: &'static str,
    short: Weak<dyn Link>,
}

impl KnownLinks {
    /// Returns the link to `peer`, if both of its ways are known and work.
    pub(super) fn of(&self, peer: &Endpoint) -> Option<NodeLink> {
        let known = self.0.read();
        let Known { scheme, link, short_scheme, short } = known.get(peer)?;
        let (link, short) = (link.upgrade()?, short.upgrade()?);
        (link.is_healthy() && short.is_healthy()).then_some(NodeLink {
            scheme,
            link,
            shortcut: Some(ShortLink { scheme: short_scheme, link: short }),
            is_certain: true,
        })
    }

    /// Remembers the ways of a link, if they lead to `peer` for certain, and one is a shortcut.
    pub(super) fn remember(&self, peer: &Endpoint, link: &NodeLink) {
        let Some(short) = link.shortcut.as_ref().filter(|_| link.is_certain) else { return };
        let known = Known {
            scheme: link.scheme,
            link: Arc::downgrade(&link.link),
            short_scheme: short.scheme,
            short: Arc::downgrade(&short.link),
        };
        let mut all = self.0.write();
        if all.len() >= MAX_KNOWN {
            all.retain(|_, known| known.link.strong_count() > 0 && known.short.strong_count() > 0);
        }
        if all.len() >= MAX_KNOWN {
            all.clear();
        }
        all.insert(peer.clone(), known);
    }
}
