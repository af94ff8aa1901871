//! The URL of a place in an object store.

use std::path::PathBuf;

use object_store::path::Path;

use crate::error::TierError;

/// Longest prefix, so that prefix and name have at most the 1024 bytes that S3 gives them.
const MAX_PREFIX_LEN: usize = 700;

/// A place that an object store has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Location {
    Memory,
    Directory(PathBuf),
    Bucket { bucket: String, prefix: Path },
}

impl Location {
    /// Reads a URL.
    pub(super) fn parse(url: &str) -> Result<Self, TierError> {
        let parsed = match url.split_once("://") {
            Some(("s3", rest)) => bucket(rest),
            Some(("file", "/")) => Err("the directory is missing"),
            Some(("file", path)) if path.starts_with('/') => Ok(Self::Directory(path.into())),
            Some(("file", _)) => Err("the directory must begin with /, behind the two of file://"),
            Some(("memory", "" | "/")) => Ok(Self::Memory),
            Some(("memory", _)) => Err("memory has no places"),
            Some(_) => Err("this scheme is not supported"),
            None => Err("it has no scheme"),
        };
        parsed.map_err(|reason| TierError::InvalidUrl { url: without_user(url), reason })
    }
}

fn bucket(rest: &str) -> Result<Location, &'static str> {
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.contains('@') {
        return Err(
            "credentials do not belong there; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        );
    }
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if bucket.is_empty() || !bucket.bytes().all(is_allowed) {
        return Err("a bucket's name has letters, digits, -, . and _ only");
    }
    if prefix.contains(['?', '#']) {
        return Err("a prefix has no ? and no #");
    }
    let prefix = Path::parse(prefix).map_err(|_| "a prefix has no empty parts, no . and no ..")?;
    if prefix.as_ref().len() > MAX_PREFIX_LEN {
        return Err("a prefix has at most 700 bytes");
    }
    Ok(Location::Bucket { bucket: bucket.to_owned(), prefix })
}

/// The URL for a message, without a password that does not belong there.
fn without_user(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, place))) => format!("{scheme}://…@{place}"),
        (None, Some((_, place))) => format!("…@{place}"),
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_places() {
        let bucket = |bucket: &str, prefix: &str| Location::Bucket {
            bucket: bucket.to_owned(),
            prefix: Path::parse(prefix).unwrap(),
        };
        for (url, expected) in [
            ("s3://bucket", bucket("bucket", "")),
            ("s3://bucket/", bucket("bucket", "")),
            ("s3://my.bucket-1/a/b c/", bucket("my.bucket-1", "a/b c")),
            ("file:///var/cache", Location::Directory("/var/cache".into())),
            ("memory:///", Location::Memory),
        ] {
            assert_eq!(Location::parse(url).unwrap(), expected, "{url}");
        }
    }

    #[test]
    fn an_invalid_url_is_told_with_what_is_accepted_and_without_its_password() {
        let long = format!("s3://bucket/{}", "p".repeat(MAX_PREFIX_LEN + 1));
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
            &long,
        ] {
            let error = Location::parse(url).unwrap_err();
            let told = error.to_string();
            assert!(matches!(error, TierError::InvalidUrl { .. }), "{url}: {told}");
            assert!(told.contains("s3://BUCKET/PREFIX") && !told.contains("secret"), "{told}");
        }
    }
}
