//! The URL of a place in an object store.

use std::path::PathBuf;

use crate::error::TierError;
use crate::shared_place::{BucketPlace, without_secrets};

/// A place that an object store has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Location {
    Memory,
    Directory(PathBuf),
    Bucket(BucketPlace),
}

impl Location {
    /// Reads a URL.
    pub(super) fn parse(url: &str) -> Result<Self, TierError> {
        let parsed = match url.split_once("://") {
            Some(("s3", rest)) => BucketPlace::parse(rest).map(Self::Bucket),
            Some(("file", "/")) => Err("the directory is missing"),
            Some(("file", path)) if path.starts_with('/') => Ok(Self::Directory(path.into())),
            Some(("file", _)) => Err("the directory must begin with /, behind the two of file://"),
            Some(("memory", "" | "/")) => Ok(Self::Memory),
            Some(("memory", _)) => Err("memory has no places"),
            Some(_) => Err("this scheme is not supported"),
            None => Err("it has no scheme"),
        };
        parsed.map_err(|reason| TierError::InvalidUrl { url: without_secrets(url), reason })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_places() {
        let bucket = |place: &str| Location::Bucket(BucketPlace::parse(place).unwrap());
        for (url, expected) in [
            ("s3://bucket", bucket("bucket")),
            ("s3://bucket/", bucket("bucket")),
            ("s3://my.bucket-1/a/b c/?region=r", bucket("my.bucket-1/a/b c?region=r")),
            ("file:///var/cache", Location::Directory("/var/cache".into())),
            ("memory:///", Location::Memory),
        ] {
            assert_eq!(Location::parse(url).unwrap(), expected, "{url}");
        }
    }

    #[test]
    fn an_invalid_url_is_told_with_what_is_accepted_and_without_its_password() {
        for url in [
            "",
            "bucket",
            "gs://bucket",
            "s3://",
            "s3:///prefix",
            "s3://bucket:9000/prefix",
            "s3://bucket/a//b",
            "s3://bucket/../other",
            "s3://bucket/a?versionId=1",
            "s3://key:secret@bucket/prefix",
            "key:secret@bucket",
            "file://",
            "file:///",
            "file://relative/directory",
            "memory:///place",
        ] {
            let error = Location::parse(url).unwrap_err();
            let told = error.to_string();
            assert!(matches!(error, TierError::InvalidUrl { .. }), "{url}: {told}");
            assert!(told.contains("s3://BUCKET/PREFIX") && !told.contains(":secret"), "{told}");
        }
    }
}
