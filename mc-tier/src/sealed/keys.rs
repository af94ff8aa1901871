//! The keys of tenants.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use tracing::{info, warn};

use super::source::{KeySource, SourceError, Version};
use super::stream::{KeyName, TenantKey};

/// The tenant whose keys are those of all tenants that have none of their own.
const ANY: &str = "*";

/// Most keys of a list.
const MAX_KEYS: usize = 1 << 16;

/// Time between two looks at a file, and between two runs of a program.
const LOOK_EVERY: Duration = Duration::from_secs(10);
const RUN_EVERY: Duration = Duration::from_secs(300);

/// The keys that objects are sealed with, by tenant.
///
/// A list of keys is a text with a line for each key: the name of the tenant, or `*` for all tenants that have no
/// line, and 64 hexadecimal digits, such as `openssl rand -hex 32` makes them. Of several keys of a tenant the
/// first one seals, and all of them open: a key is replaced by a new line in front of its own, which goes when
/// nothing is sealed with it any more. Empty lines and those that begin with `#` do not count.
///
/// A file is looked at every ten seconds and read when it has changed; a program is run every five minutes. A list
/// that is wrong then is logged, and the one before stays.
#[derive(Debug)]
pub struct TierKeys {
    source: Option<KeySource>,
    list: RwLock<Arc<List>>,
    looked: Mutex<Looked>,
}

#[derive(Debug)]
struct Looked {
    next: Instant,
    version: Version,
}

/// No keys.
impl Default for TierKeys {
    fn default() -> Self {
        Self::of(List::default(), None, Version::default())
    }
}

impl TierKeys {
    /// Reads the keys of a source. Blocks; a program has ten seconds.
    ///
    /// # Errors
    /// [`KeysError`].
    pub fn open(source: KeySource) -> Result<Self, KeysError> {
        let read = source.read().map_err(|source| KeysError::Source { source: Box::new(source) });
        let (text, version) = read?;
        let list = List::parse(&text).map_err(|error| error.of(&source))?;
        info!(%source, keys = list.len(), "objects below memory are sealed");
        Ok(Self::of(list, Some(source), version))
    }

    /// The keys of a list that does not change.
    ///
    /// # Errors
    /// [`KeysError::Line`] and [`KeysError::TooMany`].
    pub fn parse(list: &str) -> Result<Self, KeysError> {
        Ok(Self::of(
            List::parse(list).map_err(|error| error.within("the list"))?,
            None,
            Version::default(),
        ))
    }

    fn of(list: List, source: Option<KeySource>, version: Version) -> Self {
        let looked = Mutex::new(Looked { next: Instant::now() + LOOK_EVERY, version });
        Self { source, list: RwLock::new(Arc::new(list)), looked }
    }

    /// Looks at the source now: reads a file that has changed, and runs a program.
    ///
    /// # Errors
    /// [`KeysError`]. The keys stay as they were.
    pub fn refresh(&self) -> Result<(), KeysError> {
        let Some(source) = &self.source else { return Ok(()) };
        self.read_anew(source, &mut self.looked.lock())
    }

    fn read_anew(&self, source: &KeySource, looked: &mut Looked) -> Result<(), KeysError> {
        let every = if source.is_program() { RUN_EVERY } else { LOOK_EVERY };
        looked.next = Instant::now() + every;
        let failed = |source| KeysError::Source { source: Box::new(source) };
        if !source.is_program() && source.version().map_err(failed)? == looked.version {
            return Ok(());
        }
        let (text, version) = source.read().map_err(failed)?;
        let list = List::parse(&text).map_err(|error| error.of(source))?;
        if list.names() != self.list.read().names() {
            info!(%source, keys = list.len(), "the keys of tenants have changed");
        }
        *self.list.write() = Arc::new(list);
        looked.version = version;
        Ok(())
    }

    /// The keys as they are now.
    fn list(self: &Arc<Self>) -> Arc<List> {
        // No call waits for a file that hangs or a program; while one is read, no other look is begun.
        if self.source.is_some()
            && let Some(mut looked) = self.looked.try_lock()
            && looked.next <= Instant::now()
        {
            looked.next = Instant::now() + LOOK_EVERY;
            let keys = Arc::clone(self);
            std::thread::spawn(move || {
                if let Err(error) = keys.refresh() {
                    warn!(%error, "the keys of tenants stay as they were");
                }
            });
        }
        Arc::clone(&self.list.read())
    }

    /// Returns whether objects of a tenant are sealed.
    pub(super) fn has_key_of(&self, tenant: &str) -> bool {
        self.list.read().of(tenant).is_some()
    }

    /// The key to seal an object of a tenant with; `None` for objects in clear.
    pub(super) fn sealing(self: &Arc<Self>, tenant: &str) -> Option<Arc<TenantKey>> {
        Some(Arc::clone(self.list().of(tenant)?.first()?))
    }

    /// The key of a tenant that has this name.
    pub(super) fn opening(self: &Arc<Self>, tenant: &str, name: KeyName) -> Option<Arc<TenantKey>> {
        self.list().named(tenant, name)
    }
}

/// The keys of tenants, the one that seals first.
#[derive(Debug, Default)]
struct List(HashMap<Box<str>, Vec<Arc<TenantKey>>>);

impl List {
    fn parse(text: &str) -> Result<Self, WrongList> {
        let mut keys = Self::default();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |reason| WrongList::Line { number, reason };
            let mut words = line.split_whitespace();
            let (Some(tenant), Some(digits), None) = (words.next(), words.next(), words.next())
            else {
                return Err(wrong("it is not the name of a tenant and a key"));
            };
            let secret = secret(digits).ok_or(wrong("a key has 64 hexadecimal digits"))?;
            let key = TenantKey::new(&secret);
            let of_tenant = keys.0.entry(tenant.into()).or_default();
            if of_tenant.iter().any(|other| other.name() == key.name()) {
                return Err(wrong("the tenant has this key already"));
            }
            of_tenant.push(Arc::new(key));
            if number > MAX_KEYS {
                return Err(WrongList::TooMany);
            }
        }
        Ok(keys)
    }

    fn len(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    /// The keys by their names, to compare lists.
    fn names(&self) -> Vec<(&str, KeyName)> {
        let keys =
            self.0.iter().flat_map(|(tenant, keys)| keys.iter().map(|key| (&**tenant, key.name())));
        let mut names: Vec<_> = keys.collect();
        names.sort_by_key(|(tenant, _)| *tenant);
        names
    }

    fn of(&self, tenant: &str) -> Option<&Vec<Arc<TenantKey>>> {
        self.0.get(tenant).or_else(|| self.0.get(ANY))
    }

    /// Returns the tenant's key of this name, or that of all tenants, which may be the older one.
    fn named(&self, tenant: &str, name: KeyName) -> Option<Arc<TenantKey>> {
        let keys = [tenant, ANY].into_iter().filter_map(|tenant| self.0.get(tenant)).flatten();
        keys.into_iter().find(|key| key.name() == name).cloned()
    }
}

fn secret(digits: &str) -> Option<[u8; 32]> {
    let digits = digits.as_bytes();
    if digits.len() != 64 {
        return None;
    }
    let mut secret = [0; 32];
    for (byte, digits) in secret.iter_mut().zip(digits.chunks_exact(2)) {
        let [high, low] = [digits[0], digits[1]].map(|digit| char::from(digit).to_digit(16));
        *byte = (high? * 16 + low?) as u8;
    }
    Some(secret)
}

enum WrongList {
    Line { number: usize, reason: &'static str },
    TooMany,
}

impl WrongList {
    fn of(self, source: &KeySource) -> KeysError {
        self.within(&source.to_string())
    }

    fn within(self, source: &str) -> KeysError {
        let source = source.into();
        match self {
            Self::Line { number, reason } => {
                KeysError::Line { source_of_list: source, number, reason }
            }
            Self::TooMany => KeysError::TooMany { source_of_list: source },
        }
    }
}

/// Why keys cannot be used. Never has a key in it.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum KeysError {
    /// The list cannot be read.
    #[error("there are no keys for objects below memory: {source}")]
    Source { source: Box<SourceError> },
    /// A line is wrong.
    #[error(
        "line {number} of the keys in {source_of_list} is wrong: {reason}; write a tenant, or * for all \
         others, a space and 64 hexadecimal digits"
    )]
    Line {
        /// The file or program.
        source_of_list: Box<str>,
        /// Its number, from 1.
        number: usize,
        /// The fault of the line.
        reason: &'static str,
    },
    /// The list is too long.
    #[error(
        "{source_of_list} has more than {MAX_KEYS} lines of keys; use * for tenants without one of their own"
    )]
    TooMany {
        /// The file or program.
        source_of_list: Box<str>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    const TWO: &str = "10112233445566778899AABBCCDDEEFF00112233445566778899aabbccddeeff";

    fn name(digits: &str) -> KeyName {
        TenantKey::new(&secret(digits).unwrap()).name()
    }

    #[test]
    fn the_first_key_of_a_tenant_seals_and_all_open() {
        let text = format!("# keys\n\n a {TWO}\n* {ONE}\na\t{ONE}\n");
        let keys = Arc::new(TierKeys::parse(&text).unwrap());
        assert_eq!(keys.sealing("a").unwrap().name(), name(TWO));
        assert_eq!(keys.sealing("b").unwrap().name(), name(ONE));
        assert!(keys.opening("a", name(ONE)).is_some() && keys.opening("b", name(ONE)).is_some());
        assert!(keys.opening("b", name(TWO)).is_none());
        let keys = Arc::new(TierKeys::parse(&format!("a {ONE}")).unwrap());
        assert!(keys.has_key_of("a") && !keys.has_key_of("b") && keys.sealing("b").is_none());
    }

    #[test]
    fn nobody_waits_for_a_program_that_hangs() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let (path, ran) = (directory.path().join("keys"), directory.path().join("ran"));
        let ran = ran.display();
        let script =
            format!("#!/bin/sh\n[ -e {ran} ] && exec sleep 8\ntouch {ran}\necho a {ONE}\n");
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        let keys = Arc::new(TierKeys::open(KeySource::Program(path)).unwrap());
        keys.looked.lock().next = Instant::now();
        let begun = Instant::now();
        (0..100).for_each(|_| assert_eq!(keys.sealing("a").unwrap().name(), name(ONE)));
        assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    }

    #[test]
    fn a_wrong_line_is_named_and_its_key_is_not() {
        for (text, number) in [
            (format!("a {ONE}\na {}", &ONE[1..]), 2),
            (format!("a {ONE} b"), 1),
            (format!("\n{ONE}"), 2),
            (format!("a {}g", &ONE[1..]), 1),
            (format!("a {ONE}\nb {ONE}\na {ONE}"), 3),
        ] {
            let error = TierKeys::parse(&text).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("line {number} of the keys in the list")),
                "{error}"
            );
            assert!(!error.contains(&ONE[1..9]), "{error}");
        }
        let many = format!("a {ONE}\n") + &"#\n".repeat(MAX_KEYS - 1) + &format!("b {ONE}");
        assert!(matches!(TierKeys::parse(&many), Err(KeysError::TooMany { .. })));
    }
}
