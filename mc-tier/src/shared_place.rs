//! The URL of a shared tier.

use core::fmt;
use core::str::FromStr;
use std::path::PathBuf;

use thiserror::Error;

/// Longest prefix, so that prefix and name have at most the 1024 bytes that S3 gives them.
const MAX_PREFIX_LEN: usize = 700;

/// Longest endpoint and region.
const MAX_VALUE_LEN: usize = 500;

/// Where the objects of a shared tier are, as an operator names it:
///
/// | URL | place |
/// |---|---|
/// | `dfs:DIR` | a directory that all clients have mounted |
/// | `s3://BUCKET/PREFIX?endpoint=URL&region=REGION` | a bucket; all but its name may be missing |
///
/// The text is taken as it is, without any decoding of `%XX`. It has no credentials: a URL with a user, a
/// password or any other query is [invalid](InvalidPlace), and the error does not repeat them.
///
/// ```
/// use mc_tier::SharedPlace;
/// let place: SharedPlace = "s3://kv-cache/prod?endpoint=https://minio:9000".parse()?;
/// let SharedPlace::Bucket(bucket) = &place else { unreachable!() };
/// assert_eq!((bucket.name(), bucket.prefix()), ("kv-cache", "prod"));
/// assert_eq!(place.to_string(), "s3://kv-cache/prod?endpoint=https://minio:9000");
/// # Ok::<(), mc_tier::InvalidPlace>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharedPlace {
    /// A directory; its path may be relative.
    Directory(PathBuf),
    /// A place in a bucket.
    Bucket(BucketPlace),
}

/// A place in a bucket of an object store that speaks S3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketPlace {
    name: Box<str>,
    prefix: Box<str>,
    endpoint: Option<Box<str>>,
    region: Option<Box<str>>,
}

/// A text is no [`SharedPlace`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{shown:?} names no place for objects: {reason}; use dfs:DIR or \
     s3://BUCKET/PREFIX?endpoint=URL&region=REGION"
)]
pub struct InvalidPlace {
    /// The text without what may be a secret.
    pub shown: String,
    /// The fault of the text.
    pub reason: &'static str,
}

/// The way to give credentials, since a URL must have none.
const NO_CREDENTIALS: &str = "credentials do not belong there; give them to each client, as \
                              AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or in ~/.aws/credentials";

impl FromStr for SharedPlace {
    type Err = InvalidPlace;

    fn from_str(url: &str) -> Result<Self, InvalidPlace> {
        let parsed = match url.split_once(':') {
            Some(("dfs", "")) => Err("the directory is missing"),
            Some(("dfs", path)) if path.starts_with("//") => {
                Err("a directory is dfs:DIR, without //")
            }
            Some(("dfs", path)) => Ok(Self::Directory(path.into())),
            Some(("s3", rest)) => match rest.strip_prefix("//") {
                Some(rest) => BucketPlace::parse(rest).map(Self::Bucket),
                None => Err("a bucket is s3://BUCKET"),
            },
            Some((scheme, _)) if !scheme.contains(['/', '@']) => {
                Err("this scheme is not supported")
            }
            _ => Err("it has no scheme"),
        };
        parsed.map_err(|reason| InvalidPlace { shown: without_secrets(url), reason })
    }
}

impl fmt::Display for SharedPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => write!(f, "dfs:{}", path.display()),
            Self::Bucket(bucket) => bucket.fmt(f),
        }
    }
}

impl BucketPlace {
    /// Reads what stands behind `s3://`.
    pub(crate) fn parse(rest: &str) -> Result<Self, &'static str> {
        let (place, query) = match rest.split_once('?') {
            Some((place, query)) => (place, Some(query)),
            None => (rest, None),
        };
        let (name, prefix) = place.split_once('/').unwrap_or((place, ""));
        if name.contains('@') {
            return Err(NO_CREDENTIALS);
        }
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        // Some servers store into a bucket of a shorter name, and then list nothing.
        if !(3..=63).contains(&name.len()) || !name.bytes().all(is_allowed) {
            return Err("a bucket's name has 3 to 63 letters, digits, -, . and _");
        }
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        if prefix.contains('#') {
            return Err("a prefix has no ? and no #");
        }
        let is_part = |part: &str| !matches!(part, "" | "." | "..");
        if !prefix.is_empty() && !prefix.split('/').all(is_part) {
            return Err("a prefix has no empty parts, no . and no ..");
        }
        // What the client library refuses is refused where an operator sees it.
        let is_plain = |c: char| !c.is_control() && !"\\{}^%`[]\"<>~|*".contains(c);
        if !prefix.chars().all(|c| c.is_ascii() && is_plain(c)) {
            return Err("a prefix has letters, digits and signs that need no encoding only");
        }
        if prefix.len() > MAX_PREFIX_LEN {
            return Err("a prefix has at most 700 bytes");
        }
        let (mut endpoint, mut region) = (None, None);
        for (key, value) in query.into_iter().flat_map(|query| query.split('&')).map(pair) {
            let slot = match key {
                "endpoint" => {
                    check_endpoint(value)?;
                    &mut endpoint
                }
                "region" => {
                    check_region(value)?;
                    &mut region
                }
                // Such as a key, which is not repeated.
                _ => return Err(ONLY_THESE),
            };
            if slot.replace(Box::from(value)).is_some() {
                return Err("its query says something twice");
            }
        }
        Ok(Self { name: name.into(), prefix: prefix.into(), endpoint, region })
    }

    /// The bucket's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the common beginning of the names of all objects, without a `/` at its end; may be
    /// empty.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The URL of the store, `http://` or `https://`; `None` where each client's settings say it.
    #[must_use]
    pub fn endpoint(&self) -> Option<&str> {
        self.endpoint.as_deref()
    }

    /// The bucket's region; `None` where each client's settings say it.
    #[must_use]
    pub fn region(&self) -> Option<&str> {
        self.region.as_deref()
    }

    /// The place of this name below this one.
    ///
    /// # Errors
    /// [`InvalidPlace`] when the name cannot be a part of a prefix, or is too long.
    pub fn within(&self, name: &str) -> Result<Self, InvalidPlace> {
        let separator = if self.prefix.is_empty() { "" } else { "/" };
        let within =
            Self { prefix: format!("{}{separator}{name}", self.prefix).into(), ..self.clone() };
        let text = within.to_string();
        let parsed = Self::parse(text.trim_start_matches("s3://"));
        parsed.map_err(|reason| InvalidPlace { shown: without_secrets(&text), reason })
    }
}

impl fmt::Display for BucketPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}", self.name)?;
        if !self.prefix.is_empty() {
            write!(f, "/{}", self.prefix)?;
        }
        let mut separator = '?';
        for (key, value) in [("endpoint", &self.endpoint), ("region", &self.region)] {
            if let Some(value) = value {
                write!(f, "{separator}{key}={value}")?;
                separator = '&';
            }
        }
        Ok(())
    }
}

const ONLY_THESE: &str = "its query has an endpoint and a region only; credentials do not belong there: give \
                          them to each client, as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or in \
                          ~/.aws/credentials";

fn pair(text: &str) -> (&str, &str) {
    text.split_once('=').unwrap_or((text, ""))
}

fn check_endpoint(url: &str) -> Result<(), &'static str> {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let Some(rest) = rest.filter(|rest| !rest.is_empty() && !rest.starts_with('/')) else {
        return Err("an endpoint is a URL such as https://HOST:PORT");
    };
    if rest.contains('@') {
        return Err(NO_CREDENTIALS);
    }
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:/[]".contains(&byte);
    if !rest.bytes().all(is_allowed) || url.len() > MAX_VALUE_LEN {
        return Err("an endpoint is a URL such as https://HOST:PORT, without a query");
    }
    Ok(())
}

fn check_region(region: &str) -> Result<(), &'static str> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    match (1..=MAX_VALUE_LEN).contains(&region.len()) && region.bytes().all(is_allowed) {
        true => Ok(()),
        false => Err("a region is a name such as eu-central-1"),
    }
}

/// The URL for a message, without what may be a password: what stands before an `@`, what has a `:` where a
/// bucket's name belongs, and a query.
pub(crate) fn without_secrets(url: &str) -> String {
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) if !scheme.contains('@') => (format!("{scheme}://"), rest),
        _ => (String::new(), url),
    };
    let cut = |rest: &str| match rest.split_once('?') {
        Some((rest, _)) => format!("{rest}?…"),
        None => rest.to_owned(),
    };
    if let Some((_, place)) = rest.rsplit_once('@') {
        return format!("{scheme}…@{}", cut(place));
    }
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    match !scheme.is_empty() && authority.contains(':') {
        true => format!("{scheme}…"),
        false => format!("{scheme}{}", cut(rest)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_places_and_come_back_as_they_were() {
        let bucket = |url: &str| match url.parse().unwrap() {
            SharedPlace::Bucket(bucket) => bucket,
            other @ SharedPlace::Directory(_) => panic!("{other}"),
        };
        for (url, name, prefix, endpoint, region) in [
            ("s3://bkt", "bkt", "", None, None),
            ("s3://my.bucket-1/a/b c", "my.bucket-1", "a/b c", None, None),
            ("s3://bkt?region=eu-1", "bkt", "", None, Some("eu-1")),
            (
                "s3://bkt/p?endpoint=http://[::1]:9000/x",
                "bkt",
                "p",
                Some("http://[::1]:9000/x"),
                None,
            ),
            ("s3://bkt/p?endpoint=https://h&region=r", "bkt", "p", Some("https://h"), Some("r")),
        ] {
            let bucket = bucket(url);
            let found = (bucket.name(), bucket.prefix(), bucket.endpoint(), bucket.region());
            assert_eq!(found, (name, prefix, endpoint, region), "{url}");
            assert_eq!(bucket.to_string(), url);
        }
        assert_eq!(bucket("s3://bkt/").to_string(), "s3://bkt");
        let within = bucket("s3://bkt/p/?region=r").within("c").unwrap();
        assert_eq!(within.to_string(), "s3://bkt/p/c?region=r");
        assert_eq!(bucket("s3://bkt").within("c").unwrap().to_string(), "s3://bkt/c");
        assert!(bucket("s3://bkt").within("..").is_err());
        assert!(bucket("s3://bkt").within("a?endpoint=x").is_err());
        let directory: SharedPlace = "dfs:/mnt/kv".parse().unwrap();
        assert_eq!(directory, SharedPlace::Directory("/mnt/kv".into()));
        assert_eq!(directory.to_string(), "dfs:/mnt/kv");
    }

    #[test]
    fn what_may_be_a_secret_is_refused_and_not_repeated() {
        for url in [
            "s3://key:secret@bucket/prefix",
            "s3://secret@bucket",
            "s3://key:secret",
            "s3://key:sec/secret@bucket",
            "s3://key:secret?secret@bucket",
            "s3://bucket?secret_access_key=secret",
            "s3://bucket?secret",
            "s3://bucket?endpoint=https://key:secret@host",
            "s3://bucket/prefix?endpoint=https://host?key=secret",
            "s3://bucket?endpoint=https://host&token=secret",
            "key:secret@bucket",
            "gs://key:secret@bucket",
            "secret@bucket",
        ] {
            let error = url.parse::<SharedPlace>().unwrap_err();
            let told = format!("{error} {error:?}");
            let told = told.replace("AWS_SECRET_ACCESS_KEY", "");
            assert!(!told.contains("secret"), "{told}");
            assert!(told.contains("s3://BUCKET/PREFIX"), "{told}");
        }
        let credentials = "s3://key:secret@bucket".parse::<SharedPlace>().unwrap_err();
        assert!(credentials.reason.contains("AWS_ACCESS_KEY_ID"), "{credentials}");
    }

    #[test]
    fn what_names_no_place_is_refused() {
        let long = format!("s3://bucket/{}", "p".repeat(MAX_PREFIX_LEN + 1));
        for url in [
            "",
            "bucket",
            "/mnt/dfs",
            "dfs:",
            "dfs:///mnt",
            "s3:",
            "s3:bucket",
            "s3://",
            "s3://kv/prefix",
            "s3:///prefix",
            "s3://bucket:9000/prefix",
            "s3://bucket/a//b",
            "s3://bucket/../other",
            "s3://bucket/a#b",
            "s3://bucket/a%2fb",
            "s3://bucket/a\nb",
            "s3://bucket?",
            "s3://bucket?endpoint=",
            "s3://bucket?endpoint=host:9000",
            "s3://bucket?endpoint=ftp://host",
            "s3://bucket?endpoint=http:///x",
            "s3://bucket?region=",
            "s3://bucket?region=a b",
            "s3://bucket?region=a&region=b",
            &long,
        ] {
            assert!(url.parse::<SharedPlace>().is_err(), "{url}");
        }
    }
}
