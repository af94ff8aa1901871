//! Classifies the failures of an object store.

use core::error::Error;
use std::io;
use std::path::PathBuf;

use super::objects::Objects;
use crate::error::TierError;

impl Objects {
    /// The URL of a stored object, for messages.
    pub(super) fn shown(&self, place: &str) -> PathBuf {
        let root = self.root();
        let separator = if root.ends_with('/') || place.is_empty() { "" } else { "/" };
        format!("{root}{separator}{place}").into()
    }

    /// Whether there is no such object. A bucket that does not exist is something else.
    pub(super) fn is_missing(error: &object_store::Error) -> bool {
        matches!(error, object_store::Error::NotFound { .. })
            && !has_code(&error.to_string(), NO_BUCKET)
    }

    /// Returns an error that names the failed action and its cause. Without a place: the place of
    /// all objects.
    pub(super) fn failure(
        &self,
        action: &'static str,
        place: &str,
        error: object_store::Error,
    ) -> TierError {
        use io::ErrorKind::{PermissionDenied, StorageFull};
        let path = self.shown(place);
        if self.is_local
            && let Some(kind) = find::<io::Error>(&error).map(io::Error::kind)
        {
            return TierError::from_io(action, &path, io::Error::new(kind, error));
        }
        // The crate hides its error that has the status and the body of an answer; the text has
        // both.
        let text = error.to_string();
        match status(&text) {
            _ if has_code(&text, NO_BUCKET) => {
                TierError::NoBucket { action, path, source: error.into() }
            }
            status if status == Some(507) || FULL.iter().any(|code| has_code(&text, code)) => {
                TierError::Full { action, path, source: io::Error::new(StorageFull, error) }
            }
            Some(401 | 403) => {
                TierError::Denied { action, path, source: io::Error::new(PermissionDenied, error) }
            }
            Some(408 | 429 | 500..) => {
                TierError::Unavailable { action, path, source: error.into() }
            }
            _ if is_of_network(&error) => {
                TierError::Unavailable { action, path, source: error.into() }
            }
            _ => TierError::Rejected { action, path, source: error.into() },
        }
    }
}

/// The code of an answer of S3 that there is no such bucket.
const NO_BUCKET: &str = "NoSuchBucket";

/// How stores say that they, or a user's share of them, are full. Each has a way of its own; some
/// answer with the status 507.
const FULL: [&str; 4] =
    ["QuotaExceeded", "QuotaExceededException", "XMinioStorageFull", "InsufficientStorage"];

/// Whether the body of an answer has this code.
fn has_code(text: &str, code: &str) -> bool {
    text.contains(&format!("<Code>{code}</Code>"))
}

/// The status of the answer.
fn status(text: &str) -> Option<u16> {
    let (_, rest) = text.split_once("status code: ")?;
    rest.get(..3)?.parse().ok()
}

/// Whether there was no answer, or not all of it.
#[cfg(feature = "s3")]
fn is_of_network(error: &object_store::Error) -> bool {
    find::<object_store::client::HttpError>(error).is_some()
}

#[cfg(not(feature = "s3"))]
fn is_of_network(_: &object_store::Error) -> bool {
    false
}

/// Finds an error of a type among the error, its source, the source's source, and so on.
fn find<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        cause = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object_tier::ObjectStoreSettings;
    use crate::object_tier::location::Location;

    fn failure(text: &str) -> TierError {
        let objects = Objects::connect(Location::Memory, &ObjectStoreSettings::default()).unwrap();
        let error = object_store::Error::Generic { store: "S3", source: text.into() };
        objects.failure("put", "00/o,", error)
    }

    /// Statuses that a test cannot make a server answer with.
    #[test]
    fn the_servers_status_tells_what_failed() {
        let answer = |status| {
            failure(&format!("Server returned non-2xx status code: {status} Text: <Error></Error>"))
        };
        for status in [408, 429, 500, 502, 503] {
            assert!(matches!(answer(status), TierError::Unavailable { .. }), "{status}");
        }
        for status in [400, 405, 416] {
            let error = answer(status);
            assert!(matches!(error, TierError::Rejected { .. }) && !error.is_retryable());
        }
        assert!(matches!(answer(507), TierError::Full { .. }));
        for status in [401, 403] {
            assert!(matches!(answer(status), TierError::Denied { .. }), "{status}");
        }
        let quota = "status code: 403 Forbidden: <Code>QuotaExceeded</Code>";
        assert!(matches!(failure(quota), TierError::Full { .. }));
    }

    #[test]
    fn the_source_is_kept() {
        let error = failure("status code: 503: the reason");
        assert!(error.to_string().contains("memory:///00/o,"), "{error}");
        assert!(find::<object_store::Error>(&error).is_some(), "{error:?}");
    }
}
