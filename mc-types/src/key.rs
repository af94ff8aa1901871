//! Object keys: validated once, then trusted.

use alloc::boxed::Box;
use core::borrow::Borrow;
use core::fmt;

/// Longest key, in bytes of UTF-8. The limit of the common object stores, so
/// that a tier below memory can keep any key unchanged.
pub const MAX_KEY_LEN: usize = 1024;

/// A borrowed object key: non-empty UTF-8 of at most [`MAX_KEY_LEN`] bytes.
///
/// ```
/// use mc_types::{KeyError, KeyRef};
/// assert_eq!(KeyRef::new("layer0/block7").unwrap().as_str(), "layer0/block7");
/// assert_eq!(KeyRef::new(""), Err(KeyError::Empty));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyRef<'a>(&'a str);

impl<'a> KeyRef<'a> {
    /// Checks `key`.
    ///
    /// # Errors
    /// [`KeyError`] when the key is empty or too long.
    pub fn new(key: &'a str) -> Result<Self, KeyError> {
        match key.len() {
            0 => Err(KeyError::Empty),
            len if len > MAX_KEY_LEN => Err(KeyError::TooLong { len }),
            _ => Ok(Self(key)),
        }
    }

    /// The key's text.
    #[must_use]
    pub fn as_str(self) -> &'a str {
        self.0
    }

    /// An owned copy.
    #[must_use]
    pub fn to_owned(self) -> ObjectKey {
        ObjectKey(self.0.into())
    }
}

impl fmt::Display for KeyRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl fmt::Debug for KeyRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.0, f)
    }
}

/// An owned object key, with the guarantees of [`KeyRef`].
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey(Box<str>);

impl ObjectKey {
    /// Checks and takes `key`.
    ///
    /// # Errors
    /// [`KeyError`] when the key is empty or too long.
    pub fn new(key: impl Into<Box<str>>) -> Result<Self, KeyError> {
        let key = key.into();
        KeyRef::new(&key)?;
        Ok(Self(key))
    }

    /// The key, borrowed.
    #[must_use]
    pub fn as_ref(&self) -> KeyRef<'_> {
        KeyRef(&self.0)
    }

    /// The key's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for ObjectKey {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// Why a text is not an object key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// The key has no bytes.
    Empty,
    /// The key is longer than [`MAX_KEY_LEN`].
    TooLong {
        /// Its length in bytes.
        len: usize,
    },
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the key is empty; a key has at least one byte"),
            Self::TooLong { len } => {
                write!(f, "the key has {len} bytes; the limit is {MAX_KEY_LEN}")
            }
        }
    }
}

impl core::error::Error for KeyError {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;

    #[test]
    fn the_limit_is_exact() {
        let longest = "x".repeat(MAX_KEY_LEN);
        assert!(KeyRef::new(&longest).is_ok());
        let too_long: String = longest + "x";
        assert_eq!(KeyRef::new(&too_long), Err(KeyError::TooLong { len: MAX_KEY_LEN + 1 }));
        assert!(ObjectKey::new(too_long).is_err());
    }
}
