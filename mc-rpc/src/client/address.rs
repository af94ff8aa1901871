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
    /// called again, up to some times a second, while no master takes a connection at the addresses.
    /// Each client does so: a resolver that asks a service limits how often it does.
    ///
    /// # Errors
    /// [`ResolveError`] when there is nothing to be found now. Clients that know addresses go on with
    /// those; others ask again until their time is over, unless the failure is
    /// [lasting](ResolveError::lasting).
    fn resolve(&self, target: &str) -> Result<Vec<String>, ResolveError>;

    /// Notes that a master took a connection at `address`, one of those behind `target`. Must not
    /// block.
    fn reached(&self, target: &str, address: &str) {
        let _ = (target, address);
    }
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

#[derive(Default)]
struct Addresses {
    /// Empty when they have to be resolved first.
    addresses: Arc<[Address]>,
    /// The one to try first.
    first: usize,
    /// No master took a connection at any of them: the resolver is asked before they are tried again.
    have_failed: bool,
    /// The leader that a standby named since, which the resolver may not know yet.
    named: Option<Address>,
}

impl Addresses {
    fn place_of(&self, address: &Address) -> Option<usize> {
        self.addresses.iter().position(|known| known == address)
    }

    /// Takes the place of the former addresses; the one that a standby named is tried first.
    fn replace(&mut self, mut found: Vec<Address>) {
        if let Some(named) = self.named.take() {
            found.retain(|address| *address != named);
            found.insert(0, named);
        }
        found.truncate(MAX_ADDRESSES);
        *self = Self { addresses: found.into(), ..Self::default() };
    }
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
        let mut resolve = None;
        let addresses = match target.split_once("://") {
            _ if target.len() > MAX_TARGET_LEN => Err(AddressError::TooLong),
            Some((scheme, _)) => {
                resolve = resolvers.of(scheme);
                match resolve {
                    Some(_) => Ok(Arc::default()),
                    None => Err(AddressError::UnknownScheme { scheme: scheme.into() }),
                }
            }
            None => parse_list(target.split([',', ';'])),
        };
        let known = addresses.map(|addresses| Addresses { addresses, ..Addresses::default() });
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
            Ok(known) if known.addresses.is_empty() || known.have_failed => Ok(None),
            Ok(Addresses { addresses, first, .. }) => {
                Ok(Some(Candidates { addresses: Arc::clone(addresses), first: *first }))
            }
            Err(error) => Err(self.bad(error.clone())),
        }
    }

    /// The address that is tried first: the last one that worked, if any did.
    pub(super) fn preferred(&self) -> Option<Arc<str>> {
        let known = self.known.lock();
        let Addresses { addresses, first, .. } = known.as_ref().ok()?;
        addresses.get(*first).map(|address| Arc::clone(address.text()))
    }

    /// Returns whether the target is one address, so that there is no other master.
    pub(super) fn names_one(&self) -> bool {
        let known = self.known.lock();
        self.resolve.is_none() && known.as_ref().is_ok_and(|known| known.addresses.len() == 1)
    }

    /// Asks the resolver. Blocks. Addresses that are known are tried again when it finds none.
    pub(super) fn resolve(&self) -> Result<(), RpcError> {
        let Some(resolve) = &self.resolve else { return Ok(()) };
        let found = resolve.resolve(&self.target).map_err(|source| {
            let (addr, source) = (Arc::clone(&self.target), Arc::new(source));
            if source.is_lasting() {
                RpcError::Unresolvable { addr, source }
            } else {
                RpcError::Unresolved { addr, source }
            }
        });
        let found = found.and_then(|found| self.parse_found(&found));
        let mut known = self.known.lock();
        let Ok(known) = &mut *known else { return Ok(()) };
        match found {
            Ok(found) => known.replace(found),
            Err(error) if known.addresses.is_empty() => return Err(error),
            Err(_) => {
                let mut before = known.addresses.to_vec();
                before.rotate_left(known.first);
                known.replace(before);
            }
        }
        Ok(())
    }

    /// The addresses among those that a resolver found.
    ///
    /// # Errors
    /// [`RpcError::Address`] when none of them is one.
    fn parse_found(&self, found: &[String]) -> Result<Vec<Address>, RpcError> {
        let (mut addresses, mut wrong) = (Vec::new(), None);
        for element in found.iter().take(MAX_ADDRESSES) {
            match Address::parse(element.trim()) {
                Ok(address) => addresses.push(address),
                Err(reason) => wrong = Some(reason),
            }
        }
        if addresses.is_empty() {
            return Err(self.bad(wrong.unwrap_or(AddressError::Empty)));
        }
        Ok(addresses)
    }

    /// The address at this place answered.
    pub(super) fn worked(&self, place: usize) {
        let reached = match &mut *self.known.lock() {
            Ok(known) if place < known.addresses.len() => {
                (known.first, known.have_failed, known.named) = (place, false, None);
                Arc::clone(known.addresses[place].text())
            }
            _ => return,
        };
        if let Some(resolve) = &self.resolve {
            resolve.reached(&self.target, &reached);
        }
    }

    /// A standby says that the leader is at this address: it is tried first from now on. One that is
    /// not in a list is not: who wrote the list means those in it.
    pub(super) fn leads(&self, leader: &str) {
        let Ok(leader) = Address::parse(leader) else { return };
        let mut known = self.known.lock();
        let Ok(known) = &mut *known else { return };
        match known.place_of(&leader) {
            Some(place) => known.first = place,
            None if self.resolve.is_some() => known.named = Some(leader),
            None => {}
        }
    }

    /// None of the addresses answered: the resolver is asked before they are tried again.
    pub(super) fn all_failed(&self) {
        if self.resolve.is_some()
            && let Ok(known) = &mut *self.known.lock()
        {
            known.have_failed = true;
        }
    }
}

/// The resolver of each scheme.
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

    /// Finds masters once.
    struct Once(Mutex<Option<Vec<String>>>);

    impl Resolve for Once {
        fn resolve(&self, _: &str) -> Result<Vec<String>, ResolveError> {
            self.0.lock().take().ok_or_else(|| ResolveError::new("nothing is found any more"))
        }
    }

    fn found_once(addresses: &[&str]) -> Route {
        let found = addresses.iter().map(ToString::to_string).collect();
        let mut resolvers = Resolvers::default();
        resolvers.insert("once", Arc::new(Once(Mutex::new(Some(found)))));
        Route::new("once://", &resolvers)
    }

    #[test]
    fn masters_that_were_found_are_tried_again_when_the_resolver_fails() {
        // A member that registered with an invalid address does not keep clients from the others.
        let route = found_once(&["a:1", "nonsense", "b:2"]);
        assert!(route.candidates().unwrap().is_none());
        route.resolve().unwrap();
        assert_eq!(texts(&route), ["a:1", "b:2"]);
        route.worked(1);
        for _ in 0..2 {
            route.all_failed();
            assert!(route.candidates().unwrap().is_none(), "the resolver is asked");
            assert_eq!(route.preferred().as_deref(), Some("b:2"));
            route.resolve().unwrap();
            assert_eq!(texts(&route), ["b:2", "a:1"]);
        }
        let route = found_once(&["nonsense"]);
        assert!(matches!(route.resolve(), Err(RpcError::Address { .. })));
        assert!(matches!(route.resolve(), Err(RpcError::Unresolved { .. })));
    }

    #[test]
    fn the_leader_that_a_standby_names_is_tried_first() {
        let route = Route::new("a:1,b:2", &Resolvers::default());
        route.leads("b:2");
        route.leads("c:3");
        route.leads("nonsense");
        assert_eq!(texts(&route), ["b:2", "a:1"], "a list is all there is");
        let route = found_once(&["a:1", "b:2"]);
        // Named before the resolver knows it.
        route.leads("c:3");
        route.resolve().unwrap();
        assert_eq!(texts(&route), ["c:3", "a:1", "b:2"]);
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
