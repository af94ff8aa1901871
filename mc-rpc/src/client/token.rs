//! The token that a client shows.

use core::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mc_tls::read_file;

use crate::error::CredentialError;
use crate::frame::MAX_TOKEN_LEN;

/// Most bytes of a token's file: a token and the white space around it.
const MAX_FILE_LEN: usize = 2 * MAX_TOKEN_LEN;

/// A bearer token, or where to read one. Only the master sees it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Source);

#[derive(Clone, PartialEq, Eq)]
enum Source {
    Text(Box<[u8]>),
    File(Arc<Path>),
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::Text(_) => f.write_str("Token(..)"),
            Source::File(path) => f.debug_tuple("Token").field(path).finish(),
        }
    }
}

impl Token {
    /// This token.
    ///
    /// # Errors
    /// [`CredentialError`] when it is empty, longer than [`MAX_TOKEN_LEN`], or contains
    /// anything but visible ASCII characters.
    pub fn new(token: &str) -> Result<Self, CredentialError> {
        Ok(Self(Source::Text(checked(token.as_bytes())?)))
    }

    /// The token in a file, without the white space at its end. It is read at each
    /// connection, so that a token that is replaced there is used from the next one on.
    #[must_use]
    pub fn from_file(path: impl Into<PathBuf>) -> Self {
        Self(Source::File(path.into().into()))
    }

    /// The file that it is in, if it is in one.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        match &self.0 {
            Source::Text(_) => None,
            Source::File(path) => Some(path),
        }
    }

    pub(super) const fn is_in_file(&self) -> bool {
        matches!(self.0, Source::File(_))
    }

    pub(super) fn read(&self) -> Result<Box<[u8]>, CredentialError> {
        let path = match &self.0 {
            Source::Text(token) => return Ok(token.clone()),
            Source::File(path) => path,
        };
        let token = read_file(path, MAX_FILE_LEN).map_err(Arc::new)?;
        checked(token.trim_ascii_end())
    }
}

fn checked(token: &[u8]) -> Result<Box<[u8]>, CredentialError> {
    if token.is_empty() {
        return Err(CredentialError::EmptyToken);
    }
    if token.len() > MAX_TOKEN_LEN {
        return Err(CredentialError::LongToken { len: token.len() });
    }
    match token.iter().position(|byte| !byte.is_ascii_graphic()) {
        Some(at) => Err(CredentialError::BadToken { at }),
        None => Ok(token.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_checked_and_kept_to_themselves() {
        let token = Token::new("s3cret-t0ken").unwrap();
        assert_eq!(format!("{token:?}"), "Token(..)");
        assert_eq!(&*token.read().unwrap(), b"s3cret-t0ken");
        for bad in ["", "a b", "a\n", "é", &"x".repeat(MAX_TOKEN_LEN + 1)] {
            assert!(Token::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_file_is_read_anew_each_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let token = Token::from_file(&path);
        let missing = token.read().unwrap_err();
        assert!(missing.to_string().contains(path.to_str().unwrap()), "{missing}");
        std::fs::write(&path, "one\n").unwrap();
        assert_eq!(&*token.read().unwrap(), b"one");
        std::fs::write(&path, "two \r\n").unwrap();
        assert_eq!(&*token.read().unwrap(), b"two");
        std::fs::write(&path, "x".repeat(5000)).unwrap();
        assert!(matches!(token.read(), Err(CredentialError::LongToken { len: 5000 })));
        std::fs::write(&path, "x".repeat(100_000)).unwrap();
        assert!(matches!(token.read(), Err(CredentialError::File(_))));
    }
}
