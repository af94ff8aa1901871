//! URLs: what is accepted, what is printed, and under which name a file is cached.

use std::net::IpAddr;

use ureq::http::Uri;

use super::error::FetchError;

/// The longest name of a file that is taken from a URL; file systems allow 255 bytes in all.
const MAX_NAME: usize = 200;
/// The longest text of a URL that an error shows.
const MAX_SHOWN: usize = 500;

/// A URL with the scheme http or https and a host.
#[derive(Clone)]
pub(super) struct Url {
    text: String,
    uri: Uri,
}

impl Url {
    pub(super) fn parse(text: &str) -> Result<Self, FetchError> {
        let bad = |cause| FetchError::BadUrl { url: shown(text), cause };
        let (scheme, _) = text.split_once(':').ok_or_else(|| bad("it has no scheme"))?;
        if !["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) {
            let scheme = scheme.chars().take(20).flat_map(char::escape_debug).collect();
            return Err(FetchError::Scheme { url: shown(text), scheme });
        }
        let uri: Uri = text.parse().map_err(|_| bad("it is malformed; a space is %20"))?;
        let authority = uri.authority().ok_or_else(|| bad("it has no host"))?;
        if authority.host().is_empty() {
            return Err(bad("it has no host"));
        }
        // Not a port that the parser drops because it is none.
        let after_host = authority.as_str().rsplit(['@', ']']).next().unwrap_or_default();
        if after_host.contains(':') && authority.port_u16().is_none() {
            return Err(bad("its port is not a number up to 65535"));
        }
        Ok(Self { text: text.to_owned(), uri })
    }

    pub(super) const fn uri(&self) -> &Uri {
        &self.uri
    }

    /// The URL for people: without credentials and without the query, which may be one.
    pub(super) fn shown(&self) -> String {
        shown(&self.text)
    }

    pub(super) fn is_https(&self) -> bool {
        self.uri.scheme_str() == Some("https")
    }

    pub(super) fn has_credentials(&self) -> bool {
        self.uri.authority().is_some_and(|authority| authority.as_str().contains('@'))
    }

    /// Returns whether the host is this machine, which no proxy on another machine can reach.
    pub(super) fn is_loopback(&self) -> bool {
        let host = self.uri.host().unwrap_or_default().trim_matches(['[', ']']);
        host.eq_ignore_ascii_case("localhost")
            || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
    }

    /// Returns whether both are served by one server: scheme, host and port are the same.
    pub(super) fn has_same_origin(&self, other: &Self) -> bool {
        let origin = |url: &Self| {
            let port = url.uri.port_u16().unwrap_or(if url.is_https() { 443 } else { 80 });
            (url.is_https(), url.uri.host().map(str::to_ascii_lowercase), port)
        };
        origin(self) == origin(other)
    }

    /// Resolves the target of a redirect.
    pub(super) fn join(&self, target: &str) -> Result<Self, FetchError> {
        let target = target.split('#').next().unwrap_or_default();
        let scheme = self.uri.scheme_str().unwrap_or_default();
        let authority = self.uri.authority().map_or("", |authority| authority.as_str());
        // A path may contain a colon, a scheme no slash.
        let scheme_end = target.find(':').filter(|end| !target[..*end].contains(['/', '?']));
        let path = self.uri.path();
        Self::parse(&if scheme_end.is_some() {
            target.to_owned()
        } else if target.starts_with("//") {
            format!("{scheme}:{target}")
        } else if target.starts_with('/') {
            format!("{scheme}://{authority}{target}")
        } else if target.starts_with('?') {
            format!("{scheme}://{authority}{path}{target}")
        } else {
            let folder = path.rfind('/').map_or("/", |slash| &path[..=slash]);
            format!("{scheme}://{authority}{folder}{target}")
        })
    }

    /// The name of the file in the cache: `<djb2 of the URL, 16 digits>_<the URL's last part>`, as
    /// Mooncake forms it. Where its last part cannot be a name, it is changed.
    pub(super) fn cache_name(&self) -> String {
        let path = self.text.split('?').next().unwrap_or_default();
        let name = path.rsplit('/').next().unwrap_or_default();
        let keep = |c: char| c.is_ascii_alphanumeric() || "._-+=,@%~()".contains(c);
        let name: String =
            name.chars().take(MAX_NAME).map(|c| if keep(c) { c } else { '_' }).collect();
        let is_name = !name.trim_matches('.').is_empty();
        format!("{:016x}_{}", djb2(&self.text), if is_name { &name } else { "file" })
    }
}

/// Dan Bernstein's hash, with 64 bits.
fn djb2(text: &str) -> u64 {
    text.bytes().fold(5381, |hash: u64, byte| hash.wrapping_mul(33).wrapping_add(byte.into()))
}

/// The text of a URL, or of what should be one, without credentials, query and control characters.
pub(super) fn shown(text: &str) -> String {
    let (before, query) = match text.find(['?', '#']) {
        Some(end) => (&text[..end], if text[end..].starts_with('?') { "?…" } else { "" }),
        None => (text, ""),
    };
    let (scheme, rest) = match before.find("://") {
        Some(end) => before.split_at(end + 3),
        None => ("", before),
    };
    let authority = &rest[..rest.find('/').unwrap_or(rest.len())];
    let host = authority.rfind('@').map_or(0, |at| at + 1);
    let plain = scheme.chars().chain(rest[host..].chars()).take(MAX_SHOWN);
    plain.flat_map(char::escape_debug).chain(query.chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn cache_names_are_those_of_mooncake() {
        // The hash of another program: h = 5381; h = (h * 33 + c) mod 2^64.
        assert_eq!(djb2(""), 5381);
        assert_eq!(djb2("a"), 177_670);
        let name = |text: &str| url(text).cache_name();
        assert_eq!(name("http://h/a/projector.bin?token=x/y")[16..], *"_projector.bin");
        assert_ne!(name("http://h/a.bin?v=1"), name("http://h/a.bin?v=2"));
        assert_eq!(name("https://example.org/c2c/projector.bin"), "a97174f275452f07_projector.bin");
    }

    #[test]
    fn hostile_names_become_harmless() {
        let long = format!("http://h/{}", "x".repeat(5000));
        for (text, expected) in [
            ("http://h", "_h"),
            ("http://h/", "_file"),
            ("http://h/a/", "_file"),
            ("http://h/..", "_file"),
            ("http://h/.", "_file"),
            ("http://h/%2e%2e%2fetc", "_%2e%2e%2fetc"),
            ("http://h/a:b*c", "_a_b_c"),
            ("http://h/.hidden", "_.hidden"),
            ("http://h?/etc/passwd", "_h"),
            (&long, &format!("_{}", "x".repeat(MAX_NAME))),
        ] {
            assert_eq!(url(text).cache_name()[16..], *expected, "{text}");
        }
    }

    #[test]
    fn only_http_with_a_host_is_accepted() {
        for text in ["file:///etc/passwd", "ftp://h/x", "data:text/plain,x", "localhost:80/x"] {
            assert!(matches!(Url::parse(text), Err(FetchError::Scheme { .. })), "{text}");
        }
        for text in [
            "",
            "x",
            "http:",
            "http://",
            "http:///x",
            "http://:80/x",
            "http://h:70000/x",
            "http://h:x/",
            "http://[::1]:70000/",
            "http://h/a b",
            "http://h/\0",
            "http://h/\n",
            "http://user@/x",
        ] {
            assert!(matches!(Url::parse(text), Err(FetchError::BadUrl { .. })), "{text:?}");
        }
        for text in ["http://h", "HTTPS://H:8443/x?y#z", "http://[::1]/x", "http://u:p@h:1/x"] {
            url(text);
        }
    }

    #[test]
    fn errors_show_no_secrets() {
        for (text, expected) in [
            ("https://user:secret@h:1/x?sig=secret#secret", "https://h:1/x?…"),
            ("user:secret@h/x@y", "h/x@y"),
            ("ftp://a@secret@h/\u{1b}[1m", "ftp://h/\\u{1b}[1m"),
            ("http://h/x", "http://h/x"),
        ] {
            assert_eq!(shown(text), expected);
        }
    }

    #[test]
    fn redirects_are_resolved() {
        let base = url("https://user@h:1/a/b?c=d");
        for (target, expected) in [
            ("http://other/x", "http://other/x"),
            ("//other/x", "https://other/x"),
            ("/x?y", "https://user@h:1/x?y"),
            ("?y", "https://user@h:1/a/b?y"),
            ("x:y", "x"),
            ("x/y:z#part", "https://user@h:1/a/x/y:z"),
            ("../x", "https://user@h:1/a/../x"),
        ] {
            match base.join(target) {
                Ok(joined) => assert_eq!(joined.text, expected),
                Err(FetchError::Scheme { scheme, .. }) => assert_eq!(scheme, expected),
                Err(error) => panic!("{target}: {error}"),
            }
        }
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let hub = url("https://hub.example/x");
        assert!(hub.has_same_origin(&url("https://HUB.example:443/other")));
        for other in ["http://hub.example/x", "https://hub.example:444/", "https://a.hub.example/"]
        {
            assert!(!hub.has_same_origin(&url(other)), "{other}");
        }
        for local in ["http://localhost:1/", "http://127.8.0.1/", "http://[::1]/"] {
            assert!(url(local).is_loopback());
        }
        for remote in ["http://localhost.example/", "http://10.0.0.1/", "http://127.0.0.1.nip/"] {
            assert!(!url(remote).is_loopback());
        }
    }
}
