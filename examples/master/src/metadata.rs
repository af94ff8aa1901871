//! The metadata server of Mooncake: small values by key, in memory. Its clients find
//! by them where the others' memory is; what the values say is theirs.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use mc_http::{Method, Page, Request, StatusCode};

/// Longest value. A segment that has registered 10,000 buffers has one of about that.
pub(crate) const MAX_VALUE: usize = 1 << 20;
/// Most bytes of all keys and values.
const MAX_BYTES: usize = 256 << 20;
/// The cost of a key beside its bytes, as a round number.
const PER_KEY: usize = 128;
/// Each client keeps a connection for a while, on which a value may be under way.
pub(crate) const MAX_CONNECTIONS: usize = 1024;

/// Keys with this in them name a process, of which there must not be two.
const UNIQUE: &str = "rpc_meta";

/// The values that there are.
#[derive(Debug)]
pub(crate) struct Values {
    kept: Mutex<Kept>,
    max_bytes: usize,
}

#[derive(Debug, Default)]
struct Kept {
    values: HashMap<Box<str>, Bytes>,
    bytes: usize,
}

impl Default for Values {
    fn default() -> Self {
        Self { kept: Mutex::default(), max_bytes: MAX_BYTES }
    }
}

impl Values {
    /// Does what the request asks for.
    pub(crate) fn answer(&self, request: &Request<Bytes>) -> Page {
        match request.uri().path() {
            "/metadata" => self.answer_for_metadata(request),
            "/health" => match *request.method() {
                Method::GET | Method::HEAD => Page::text("OK"),
                _ => no(StatusCode::METHOD_NOT_ALLOWED, "Method not allowed"),
            },
            _ => no(StatusCode::NOT_FOUND, "not found"),
        }
    }

    fn answer_for_metadata(&self, request: &Request<Bytes>) -> Page {
        let Some(key) = key(request.uri().query().unwrap_or_default()) else {
            return no(StatusCode::BAD_REQUEST, "metadata key is required");
        };
        match *request.method() {
            Method::GET | Method::HEAD => self.get(&key),
            Method::PUT => self.put(&key, request.body()),
            Method::DELETE => self.delete(&key),
            _ => no(StatusCode::METHOD_NOT_ALLOWED, "Method not allowed"),
        }
    }

    fn get(&self, key: &str) -> Page {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.values.get(key).map_or_else(not_found, |value| Page::json(value.clone()))
    }

    fn put(&self, key: &str, value: &Bytes) -> Page {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let before = kept.values.get(key);
        // A process that says the same again has lost the answer.
        if key.contains(UNIQUE) && before.is_some_and(|before| before != value) {
            return no(StatusCode::BAD_REQUEST, "Duplicate rpc_meta key not allowed");
        }
        let freed = before.map_or(0, |before| cost(key, before));
        let bytes = kept.bytes - freed + cost(key, value);
        if bytes > self.max_bytes {
            return no(StatusCode::INSUFFICIENT_STORAGE, "there is no room for more metadata");
        }
        kept.bytes = bytes;
        kept.values.insert(key.into(), value.clone());
        Page::text("metadata updated")
    }

    fn delete(&self, key: &str) -> Page {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(value) = kept.values.remove(key) else { return not_found() };
        kept.bytes -= cost(key, &value);
        Page::text("metadata deleted")
    }
}

/// The key of a query, if it has one that is not blank.
fn key(query: &str) -> Option<Cow<'_, str>> {
    let (_, key) = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "key")?;
    (!key.trim().is_empty()).then_some(key)
}

fn cost(key: &str, value: &Bytes) -> usize {
    key.len() + value.len() + PER_KEY
}

fn not_found() -> Page {
    no(StatusCode::NOT_FOUND, "metadata not found")
}

fn no(status: StatusCode, text: &'static str) -> Page {
    Page::text(text).status(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(values: &Values, method: Method, target: &str, body: &'static str) -> Page {
        let request = Request::builder().method(method).uri(target);
        values.answer(&request.body(Bytes::from_static(body.as_bytes())).unwrap())
    }

    #[test]
    fn values_come_and_go() {
        let values = Values::default();
        let target = "/metadata?x=1&key=mooncake%2Fram%2Fhost%3A1+2";
        assert_eq!(ask(&values, Method::GET, target, ""), not_found());
        for value in ["{}", "[1]"] {
            assert_eq!(ask(&values, Method::PUT, target, value), Page::text("metadata updated"));
            assert_eq!(ask(&values, Method::GET, target, ""), Page::json(value));
        }
        let same = "/metadata?key=mooncake/ram/host:1%202";
        assert_eq!(ask(&values, Method::DELETE, same, ""), Page::text("metadata deleted"));
        assert_eq!(ask(&values, Method::DELETE, same, ""), not_found());
        assert_eq!(values.kept.lock().unwrap().bytes, 0);
    }

    #[test]
    fn a_process_has_its_name_to_itself() {
        let values = Values::default();
        let target = "/metadata?key=mooncake/rpc_meta/host:1";
        for _ in 0..2 {
            assert_eq!(ask(&values, Method::PUT, target, "a"), Page::text("metadata updated"));
        }
        let refused = no(StatusCode::BAD_REQUEST, "Duplicate rpc_meta key not allowed");
        assert_eq!(ask(&values, Method::PUT, target, "b"), refused);
        assert_eq!(ask(&values, Method::GET, target, ""), Page::json("a"));
    }

    #[test]
    fn what_is_no_request_for_metadata_is_refused() {
        let values = Values::default();
        let required = no(StatusCode::BAD_REQUEST, "metadata key is required");
        for target in
            ["/metadata", "/metadata?", "/metadata?key=", "/metadata?key=%20", "/metadata?k=a"]
        {
            assert_eq!(ask(&values, Method::PUT, target, "a"), required, "{target}");
        }
        assert_eq!(
            ask(&values, Method::GET, "/other?key=a", ""),
            no(StatusCode::NOT_FOUND, "not found")
        );
        for target in ["/metadata?key=a", "/health"] {
            let post = ask(&values, Method::POST, target, "");
            assert_eq!(post, no(StatusCode::METHOD_NOT_ALLOWED, "Method not allowed"), "{target}");
        }
        assert_eq!(ask(&values, Method::GET, "/health", ""), Page::text("OK"));
    }

    #[test]
    fn all_values_together_are_bounded() {
        let values = Values { max_bytes: 2 * PER_KEY + 4, ..Values::default() };
        let updated = Page::text("metadata updated");
        assert_eq!(ask(&values, Method::PUT, "/metadata?key=a", "1"), updated);
        assert_eq!(ask(&values, Method::PUT, "/metadata?key=b", "1"), updated);
        let full = no(StatusCode::INSUFFICIENT_STORAGE, "there is no room for more metadata");
        assert_eq!(ask(&values, Method::PUT, "/metadata?key=b", "12"), full);
        assert_eq!(ask(&values, Method::PUT, "/metadata?key=c", ""), full);
        assert_eq!(ask(&values, Method::PUT, "/metadata?key=b", "2"), updated);
        assert_eq!(
            ask(&values, Method::DELETE, "/metadata?key=a", ""),
            Page::text("metadata deleted")
        );
        assert_eq!(ask(&values, Method::PUT, "/metadata?key=b", "12"), updated);
    }
}
