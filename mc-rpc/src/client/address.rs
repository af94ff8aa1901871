//! Where a master is: addresses as they are written, and how they are found.

use core::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::{AddressError, ResolveError, RpcError};

/// Most addresses of one target.
pub(super) const MAX_ADDRESSES: usize = 64;

/// Longest target in bytes.
const MAX_TARGET_LEN: usize = 4096;

/// Longest path of a Unix socket in bytes: `sun_path` less its end.
const MAX_PATH_LEN: usize = 107;

/// Finds masters by other means than their addresses, for targets with a scheme as
/// `etcd://hosts/name`.
pub trait Resolve: Send + Sync {
    /// The addresses behind `target`, each as `host:port` or `unix:/path`, the one to try
    /// first in front. `target` is the whole text, scheme included. May block; it is
    /// called again when no master answers at the addresses.
    ///
    /// # Errors
    /// [`ResolveError`] when there is nothing to be found now; calls ask again until their
    /// time is over, unless the failure is [lasting](ResolveError::lasting).
    fn resolve(&self, target: &str) -> Result<Vec<String>, ResolveError>;
}

/// One address that can be connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    /// `host:port`.
    Tcp(Arc<str>),
    /// A Unix socket: the path, or a zero byte and a name of the abstract namespace; and the
    /// element for messages.
    Unix { path: Box<str>, element: Arc<str> },
}

impl Address {
    fn parse(element: &str) -> Result<Self, AddressError> {
        let boxed = || Box::<str>::from(element);
        if let Some(path) = element.strip_prefix("unix:") {
            let bad = !path.starts_with('/') || path.len() > MAX_PATH_LEN || path.contains('\0');
            if bad {
                return Err(AddressError::BadPath { element: boxed() });
            }
            return Ok(Self::Unix { path: path.into(), element: element.into() });
        }
        let Some((host, port)) = element.rsplit_once(':') else {
            return Err(if element.is_empty() {
                AddressError::Empty
            } else {
                AddressError::NoPort { element: boxed() }
            });
        };
        if host.is_empty() {
            return Err(AddressError::NoHost { element: boxed() });
        }
        let in_brackets = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | '[' | ']');
        if in_brackets.is_none() && host.contains(':') || in_brackets.unwrap_or(host).contains(odd)
        {
            return Err(AddressError::BadHost { element: boxed() });
        }
        match port.parse::<u16>() {
            Ok(1..) if !port.starts_with('+') => Ok(Self::Tcp(element.into())),
            _ => Err(AddressError::BadPort { element: boxed() }),
        }
    }

    /// The socket of this name in Linux's abstract namespace, which is the master that is
    /// known as `element`.
    pub(super) fn local(name: &str, element: &Arc<str>) -> Self {
        Self::Unix { path: format!("\0{name}").into(), element: Arc::clone(element) }
    }

    /// The host whose certificate is expected.
    #[cfg(feature = "tls")]
    pub(super) fn host(&self) -> &str {
        self.text().rsplit_once(':').map_or("", |(host, _)| host)
    }

    /// As it was written.
    pub(super) fn text(&self) -> &Arc<str> {
        match self {
            Self::Tcp(element) | Self::Unix { element, .. } => element,
        }
    }
}

fn parse_list<'a>(elements: impl Iterator<Item = &'a str>) -> Result<Arc<[Address]>, AddressError> {
    let mut addresses = Vec::new();
    for element in elements {
        if addresses.len() == MAX_ADDRESSES || element.len() > MAX_TARGET_LEN {
            return Err(AddressError::TooLong);
        }
        addresses.push(Address::parse(element.trim())?);
    }
    if addresses.is_empty() { Err(AddressError::Empty) } else { Ok(addresses.into()) }
}

/// The masters that a client may talk to, and which of them answered last.
pub(super) struct Route {
    target: Arc<str>,
    resolve: Option<Arc<dyn Resolve>>,
    known: Mutex<Result<Addresses, AddressError>>,
}

struct Addresses {
    /// Empty when they have to be resolved first.
    addresses: Arc<[Address]>,
    /// The one to try first.
    first: usize,
}

/// Addresses in the order in which to try them.
pub(super) struct Candidates {
    addresses: Arc<[Address]>,
    first: usize,
}

impl Candidates {
    pub(super) fn len(&self) -> usize {
        self.addresses.len()
    }

    /// Returns the place and the address to be tried after `tried` others.
    pub(super) fn get(&self, tried: usize) -> (usize, &Address) {
        let place = (self.first + tried) % self.addresses.len();
        (place, &self.addresses[place])
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Route").field("target", &self.target).finish_non_exhaustive()
    }
}

impl Route {
    /// Reads a target; what is wrong with it comes out with its first use.
    pub(super) fn new(target: &str, resolvers: &Resolvers) -> Self {
        let (mut resolve, empty) = (None, || Arc::from(Vec::new()));
        let addresses = match target.split_once("://") {
            _ if target.len() > MAX_TARGET_LEN => Err(AddressError::TooLong),
            Some((scheme, _)) => {
                resolve = resolvers.of(scheme);
                match resolve {
                    Some(_) => Ok(empty()),
                    None => Err(AddressError::UnknownScheme { scheme: scheme.into() }),
                }
            }
            None => parse_list(target.split([',', ';'])),
        };
        let known = addresses.map(|addresses| Addresses { addresses, first: 0 });
        Self { target: target.into(), resolve, known: Mutex::new(known) }
    }

    pub(super) fn target(&self) -> &Arc<str> {
        &self.target
    }

    fn bad(&self, reason: AddressError) -> RpcError {
        RpcError::Address { addr: Arc::clone(&self.target), reason }
    }

    /// The addresses to try; `None` when [`resolve`](Self::resolve) has to be called first.
    pub(super) fn candidates(&self) -> Result<Option<Candidates>, RpcError> {
        match &*self.known.lock() {
            Ok(known) if known.addresses.is_empty() => Ok(None),
            Ok(Addresses { addresses, first }) => {
                Ok(Some(Candidates { addresses: Arc::clone(addresses), first: *first }))
            }
            Err(error) => Err(self.bad(error.clone())),
        }
    }

    /// The address that is tried first: the last one that worked, if any did.
    pub(super) fn preferred(&self) -> Option<Arc<str>> {
        let candidates = self.candidates().ok()??;
        Some(Arc::clone(candidates.get(0).1.text()))
    }

    /// Returns whether the target is one address, so that there is no other master.
    pub(super) fn names_one(&self) -> bool {
        let known = self.known.lock();
        self.resolve.is_none() && known.as_ref().is_ok_and(|known| known.addresses.len() == 1)
    }

    /// Asks the resolver. Blocks.
    pub(super) fn resolve(&self) -> Result<(), RpcError> {
        let Some(resolve) = &self.resolve else { return Ok(()) };
        let found = resolve.resolve(&self.target).map_err(|source| {
            let (addr, source) = (Arc::clone(&self.target), Arc::new(source));
            if source.is_lasting() {
                RpcError::Unresolvable { addr, source }
            } else {
                RpcError::Unresolved { addr, source }
            }
        })?;
        let addresses = parse_list(found.iter().map(|element| &**element));
        let addresses = addresses.map_err(|reason| self.bad(reason))?;
        *self.known.lock() = Ok(Addresses { addresses, first: 0 });
        Ok(())
    }

    /// The address at this place answered.
    pub(super) fn worked(&self, place: usize) {
        if let Ok(known) = &mut *self.known.lock()
            && place < known.addresses.len()
        {
            known.first = place;
        }
    }

    /// None of the addresses answered: what a resolver said is forgotten.
    pub(super) fn all_failed(&self) {
        if self.resolve.is_some() {
            *self.known.lock() = Ok(Addresses { addresses: Arc::from(Vec::new()), first: 0 });
        }
    }
}

/// Who resolves which scheme.
#[derive(Clone, Default)]
pub(super) struct Resolvers(Vec<(Box<str>, Arc<dyn Resolve>)>);

impl Resolvers {
    /// Adds a resolver for a scheme, in place of the one that it may have.
    pub(super) fn insert(&mut self, scheme: &str, resolve: Arc<dyn Resolve>) {
        self.0.retain(|(known, _)| **known != *scheme);
        self.0.push((scheme.into(), resolve));
    }

    pub(super) fn of(&self, scheme: &str) -> Option<Arc<dyn Resolve>> {
        self.0.iter().find(|(known, _)| **known == *scheme).map(|(_, resolve)| Arc::clone(resolve))
    }
}

impl fmt::Debug for Resolvers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(scheme, _)| scheme)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn texts(route: &Route) -> Vec<String> {
        let candidates = route.candidates().unwrap().unwrap();
        (0..candidates.len()).map(|tried| candidates.get(tried).1.text().to_string()).collect()
    }

    #[test]
    fn lists_begin_with_the_last_that_worked() {
        let route = Route::new("a:1, [::1]:2; unix:/run/m", &Resolvers::default());
        assert_eq!(texts(&route), ["a:1", "[::1]:2", "unix:/run/m"]);
        route.worked(1);
        assert_eq!(texts(&route), ["[::1]:2", "unix:/run/m", "a:1"]);
        assert_eq!(route.preferred().as_deref(), Some("[::1]:2"));
        route.all_failed();
        assert_eq!(texts(&route).len(), 3);
    }

    #[test]
    fn bad_addresses_say_what_is_wrong() {
        let long = format!("unix:/{}", "x".repeat(107));
        let many = ["h:1"; 65].join(",");
        for (target, words) in [
            ("", "names no master"),
            ("a:1,,b:2", "names no master"),
            ("a:1;", "names no master"),
            ("host", "\"host\" has no port;"),
            (":50051", "has no host"),
            ("host:", "bad port"),
            ("host:0", "bad port"),
            ("host:+1", "bad port"),
            ("host:65536", "bad port"),
            ("host:1/", "bad port"),
            ("::1:80", "write an IPv6 address as [::1]:port"),
            ("a b:80", "bad host"),
            ("unix:run", "begins with /"),
            (&long, "at most 107 bytes"),
            ("etcd://h/m", "a resolver for it"),
            ("http://h:1", "http://"),
            (&many, "at most 64"),
        ] {
            let error = Route::new(target, &Resolvers::default()).candidates().err().unwrap();
            assert!(matches!(error, RpcError::Address { .. }), "{error}");
            assert!(error.to_string().contains(words), "{target}: {error}");
            assert!(!error.is_retryable());
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read(target in ".*") {
            let _ = Route::new(&target, &Resolvers::default()).candidates();
        }
    }
}
