//! Tenants' names, and how their keys are told apart.

use core::fmt;
use core::str::FromStr;
use std::borrow::Borrow;
use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use mc_types::{ErrorCode, KeyRef, MAX_KEY_LEN, ObjectKey};
use thiserror::Error;

/// Longest name of a tenant, in bytes.
pub const MAX_TENANT_LEN: usize = 128;

const DEFAULT_NAME: &str = "default";

/// Begins the stored key of every tenant but the default one, and ends its name.
const MARK: char = '\0';

/// The name of a tenant: 1 to [`MAX_TENANT_LEN`] letters, digits, `_`, `.` and `-` of
/// ASCII, but neither `.` nor `..`, so that a tier can use it as a directory.
///
/// A name says who is charged and whose keys are meant. It is no proof of identity;
/// the service that takes it from a request has authenticated the caller.
///
/// Cheap to clone. Ordered and hashed as its text.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct TenantId(Option<Arc<str>>);

impl TenantId {
    /// The tenant of callers that name none.
    pub const DEFAULT: Self = Self(None);

    /// Checks a name. The empty one stands for the default tenant, as in
    /// Mooncake's requests.
    ///
    /// # Errors
    /// [`TenantIdError`] when it is no tenant's name.
    pub fn new(name: &str) -> Result<Self, TenantIdError> {
        if name.is_empty() || name == DEFAULT_NAME {
            return Ok(Self::DEFAULT);
        }
        check(name)?;
        Ok(Self(Some(name.into())))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or(DEFAULT_NAME)
    }

    /// Returns whether this is the default tenant.
    #[must_use]
    pub const fn is_default(&self) -> bool {
        self.0.is_none()
    }

    /// The key under which an object of this tenant is stored, so that two tenants'
    /// objects of one key are two objects.
    ///
    /// A key of the default tenant is stored as it is. Another tenant's gets its name
    /// in front, between two NUL bytes, and so does a key of the default tenant that
    /// begins with NUL itself, with an empty name. No name contains NUL, so no key of
    /// one tenant is stored as a key of another, whatever bytes it has. Unlike a number
    /// in front, the name means the same to every master that reads it from a journal;
    /// it costs its length and two bytes for each object.
    ///
    /// Copies the key, unless it is stored as it is.
    ///
    /// # Errors
    /// [`ScopeError`] when the stored key would exceed [`MAX_KEY_LEN`].
    pub fn scoped<'k>(&self, key: KeyRef<'k>) -> Result<ScopedKey<'k>, ScopeError> {
        let name = match &self.0 {
            None if !key.as_str().starts_with(MARK) => return Ok(ScopedKey(Stored::Same(key))),
            None => "",
            Some(name) => name,
        };
        let mut stored = String::with_capacity(name.len() + 2 + key.as_str().len());
        stored.push(MARK);
        stored.push_str(name);
        stored.push(MARK);
        stored.push_str(key.as_str());
        let len = key.as_str().len();
        let limit = MAX_KEY_LEN - 2 - name.len();
        ObjectKey::new(stored)
            .map(|key| ScopedKey(Stored::Prefixed(key)))
            .map_err(|_| ScopeError::TooLong { len, limit })
    }

    /// The key as this tenant knows it, when the stored key is one of its own.
    #[must_use]
    pub fn owned<'k>(&self, stored: KeyRef<'k>) -> Option<&'k str> {
        let (name, key) = unscoped(stored);
        (name == self.as_str()).then_some(key)
    }
}

/// The tenant's name and the key that were [`scoped`](TenantId::scoped). A text that no
/// tenant's key is stored as belongs to the default tenant as it is.
#[must_use]
pub fn unscoped(stored: KeyRef<'_>) -> (&str, &str) {
    let text = stored.as_str();
    match text.strip_prefix(MARK).and_then(|marked| marked.split_once(MARK)) {
        Some(("", key)) if key.starts_with(MARK) => (DEFAULT_NAME, key),
        Some((name, key)) if !key.is_empty() && name != DEFAULT_NAME && check(name).is_ok() => {
            (name, key)
        }
        _ => (DEFAULT_NAME, text),
    }
}

const fn allowed(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-')
}

fn check(name: &str) -> Result<(), TenantIdError> {
    if !(1..=MAX_TENANT_LEN).contains(&name.len()) {
        return Err(TenantIdError::Length { len: name.len() });
    }
    if let Some(at) = name.bytes().position(|byte| !allowed(byte)) {
        return Err(TenantIdError::Character { at });
    }
    if matches!(name, "." | "..") {
        return Err(TenantIdError::Dots);
    }
    Ok(())
}

impl Borrow<str> for TenantId {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl Hash for TenantId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl Ord for TenantId {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl PartialOrd for TenantId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl FromStr for TenantId {
    type Err = TenantIdError;

    fn from_str(name: &str) -> Result<Self, TenantIdError> {
        Self::new(name)
    }
}

/// A key as it is stored; see [`TenantId::scoped`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopedKey<'k>(Stored<'k>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Stored<'k> {
    Same(KeyRef<'k>),
    Prefixed(ObjectKey),
}

impl ScopedKey<'_> {
    /// The stored key.
    #[must_use]
    pub fn as_ref(&self) -> KeyRef<'_> {
        match &self.0 {
            Stored::Same(key) => *key,
            Stored::Prefixed(key) => key.as_ref(),
        }
    }
}

/// Why a text is no tenant's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TenantIdError {
    /// The name is too long.
    #[error("a tenant's name has 1 to {MAX_TENANT_LEN} bytes, this one has {len}")]
    Length {
        /// Its length in bytes.
        len: usize,
    },
    /// A character is not allowed.
    #[error("a tenant's name has letters, digits, '_', '.' and '-' only; not so at byte {at}")]
    Character {
        /// Where it is, in bytes.
        at: usize,
    },
    /// The name is `.` or `..`.
    #[error("a tenant is not named '.' or '..', which are directories")]
    Dots,
}

impl TenantIdError {
    /// The cause's number.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        ErrorCode::InvalidParams
    }

    /// Returns whether the same call may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        false
    }
}

/// Why a tenant cannot have a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ScopeError {
    /// The tenant's name takes part of the room that a key has.
    #[error("the key has {len} bytes; keys of this tenant have at most {limit}")]
    TooLong {
        /// The key's length in bytes.
        len: usize,
        /// The most that a key of this tenant may have.
        limit: usize,
    },
}

impl ScopeError {
    /// The cause's number.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        ErrorCode::InvalidKey
    }

    /// Returns whether the same call may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tenant(name: &str) -> TenantId {
        TenantId::new(name).unwrap()
    }

    fn stored(name: &str, key: &str) -> String {
        tenant(name).scoped(KeyRef::new(key).unwrap()).unwrap().as_ref().as_str().to_owned()
    }

    #[test]
    fn names_are_checked() {
        assert_eq!(tenant(""), TenantId::DEFAULT);
        assert_eq!(tenant("default"), TenantId::DEFAULT);
        assert_eq!(TenantId::DEFAULT.to_string(), "default");
        assert_eq!("team-a_1.x".parse(), Ok(tenant("team-a_1.x")));
        let longest = "x".repeat(MAX_TENANT_LEN);
        assert_eq!(tenant(&longest).as_str(), longest);
        let refused = |name: &str| TenantId::new(name).unwrap_err();
        assert_eq!(refused(&(longest + "x")), TenantIdError::Length { len: 129 });
        assert_eq!(refused("a/b"), TenantIdError::Character { at: 1 });
        assert_eq!(refused("a\0"), TenantIdError::Character { at: 1 });
        assert_eq!(refused("é"), TenantIdError::Character { at: 0 });
        assert_eq!(refused(".."), TenantIdError::Dots);
        assert!(TenantId::new("...").is_ok());
    }

    #[test]
    fn a_name_is_ordered_and_looked_up_as_its_text() {
        let names = ["zeta", "default", "alpha"].map(tenant);
        let set = std::collections::BTreeSet::from(names);
        assert!(set.contains("default"));
        assert_eq!(
            set.iter().map(TenantId::as_str).collect::<Vec<_>>(),
            ["alpha", "default", "zeta"]
        );
    }

    #[test]
    fn only_other_tenants_keys_are_changed() {
        assert_eq!(stored("default", "layer0"), "layer0");
        assert_eq!(stored("default", "a\0b"), "a\0b");
        assert_eq!(stored("a", "layer0"), "\0a\0layer0");
        assert_eq!(stored("default", "\0a\0layer0"), "\0\0\0a\0layer0");
    }

    #[test]
    fn the_name_takes_part_of_the_keys_room() {
        let name = "x".repeat(MAX_TENANT_LEN);
        let limit = MAX_KEY_LEN - MAX_TENANT_LEN - 2;
        let key = "k".repeat(limit);
        assert_eq!(stored(&name, &key).len(), MAX_KEY_LEN);
        let key = key + "k";
        let refused = tenant(&name).scoped(KeyRef::new(&key).unwrap()).unwrap_err();
        assert_eq!(refused, ScopeError::TooLong { len: limit + 1, limit });
        assert_eq!(refused.code(), ErrorCode::InvalidKey);
    }

    #[test]
    fn texts_that_are_no_tenants_keys_are_the_default_ones() {
        for text in ["\0", "\0\0", "\0\0x", "\0a", "\0a\0", "\0a b\0x", "\0default\0x", "\0..\0x"] {
            assert_eq!(unscoped(KeyRef::new(text).unwrap()), ("default", text), "{text:?}");
        }
    }

    /// Texts of the few characters on which the rule turns.
    fn text(least: usize) -> impl Strategy<Value = String> {
        prop::collection::vec(prop::sample::select(vec!['\0', 'a', 'b', '.']), least..6)
            .prop_map(|chars| chars.into_iter().collect())
    }

    proptest! {
        #[test]
        fn no_two_objects_are_stored_under_one_key(
            objects in prop::collection::vec((text(0), text(1)), 2..20),
        ) {
            let mut seen = std::collections::BTreeMap::new();
            for (name, key) in &objects {
                let Ok(tenant) = TenantId::new(name) else { continue };
                let scoped = tenant.scoped(KeyRef::new(key).unwrap()).unwrap();
                let stored = scoped.as_ref();
                prop_assert_eq!(unscoped(stored), (tenant.as_str(), key.as_str()));
                prop_assert_eq!(tenant.owned(stored), Some(key.as_str()));
                let id = (tenant, key);
                let first = seen.entry(stored.as_str().to_owned()).or_insert_with(|| id.clone());
                prop_assert_eq!(&*first, &id);
            }
        }

        #[test]
        fn every_stored_text_has_one_owner(stored in text(1)) {
            let stored = KeyRef::new(&stored).unwrap();
            let (name, key) = unscoped(stored);
            let owner = TenantId::new(name).unwrap();
            prop_assert_eq!(owner.owned(stored), Some(key));
            for other in ["default", "a", "b", "ab"].map(tenant) {
                prop_assert_eq!(other.owned(stored).is_some(), other == owner);
            }
        }
    }
}
