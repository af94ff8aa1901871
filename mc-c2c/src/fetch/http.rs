//! Requests over HTTP, and answers that are checked before their bytes are believed.

use std::path::PathBuf;
use std::time::Duration;

use ureq::http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, DATE, ETAG,
    HeaderName, IF_RANGE, LAST_MODIFIED, LOCATION, RANGE, TRANSFER_ENCODING,
};
use ureq::http::{HeaderMap, HeaderValue};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, BodyReader, Proxy};

use super::error::FetchError;
use super::url::Url;

/// How many redirects of a request are followed.
const MAX_REDIRECTS: usize = 10;
/// The longest validator that is kept; longer ones are none.
const MAX_VALIDATOR: usize = 1024;

/// How servers are talked to.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) connect_timeout: Duration,
    pub(super) idle_timeout: Duration,
    /// The hub's URL, whose server alone gets the token.
    pub(super) hub: String,
    pub(super) token: Option<String>,
    /// Trusted in place of the authorities that browsers trust.
    pub(super) authorities: Option<PathBuf>,
}

/// The connections of one download.
pub(super) struct Client<'a> {
    settings: &'a Settings,
    agent: Agent,
    proxy: Option<Proxy>,
    /// The server that gets the token, and the header.
    token: Option<(Url, HeaderValue)>,
}

impl<'a> Client<'a> {
    pub(super) fn new(settings: &'a Settings) -> Result<Self, FetchError> {
        let authorities = match &settings.authorities {
            None => RootCerts::WebPki,
            Some(path) => {
                let pem = std::fs::read(path).map_err(FetchError::io(path))?;
                let items: Result<Vec<_>, _> = parse_pem(&pem).collect();
                let certificates = items.unwrap_or_default().into_iter().filter_map(|item| {
                    if let PemItem::Certificate(item) = item { Some(item) } else { None }
                });
                let certificates: Vec<_> = certificates.collect();
                if certificates.is_empty() {
                    return Err(FetchError::Authorities { path: path.clone() });
                }
                RootCerts::new_with_certs(&certificates)
            }
        };
        let idle = Some(settings.idle_timeout);
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // They are followed here: of what stands in a redirect's body nothing is read, and
            // the token stays with its server.
            .max_redirects(0)
            .timeout_resolve(Some(settings.connect_timeout))
            .timeout_connect(Some(settings.connect_timeout))
            .timeout_send_request(idle)
            .timeout_recv_response(idle)
            .timeout_per_read(idle)
            .user_agent(concat!("mc-c2c/", env!("CARGO_PKG_VERSION")))
            .tls_config(TlsConfig::builder().root_certs(authorities).build());
        let token = match &settings.token {
            None => None,
            Some(token) => {
                let mut header = HeaderValue::from_str(&format!("Bearer {token}"))
                    .map_err(|_| FetchError::Token)?;
                header.set_sensitive(true);
                Some((Url::parse(&settings.hub)?, header))
            }
        };
        let agent = config.build().new_agent();
        let proxy = agent.config().proxy().cloned();
        Ok(Self { settings, agent, proxy, token })
    }

    /// Closes all connections and makes no more, so that nothing waits for them.
    pub(super) fn shut_down(&self) {
        self.agent.clone().shutdown();
    }

    /// Asks for the bytes of `range`, of the file that has this validator if one is given, and
    /// follows redirects.
    pub(super) fn get(
        &self,
        url: &Url,
        range: (u64, Option<u64>),
        validator: Option<&str>,
    ) -> Result<Answer, FetchError> {
        let (start, end) = range;
        // The end of a range is its last byte.
        let range =
            format!("bytes={start}-{}", end.map_or_else(String::new, |end| (end - 1).to_string()));
        let mut at = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let proxy = self.proxy.clone().filter(|_| !at.is_loopback());
            let mut request = self.agent.get(at.uri()).config().proxy(proxy).build();
            request = request.header(RANGE, &range).header(ACCEPT_ENCODING, "identity");
            if let Some(validator) = validator {
                request = request.header(IF_RANGE, validator);
            }
            if let Some((hub, token)) = &self.token
                && hub.has_same_origin(&at)
                && !at.has_credentials()
            {
                request = request.header(AUTHORIZATION, token);
            }
            let response = request.call().map_err(|error| self.broken(&at, error))?;
            let (parts, body) = response.into_parts();
            let status = parts.status.as_u16();
            match (status, text(&parts.headers, LOCATION)) {
                (301 | 302 | 303 | 307 | 308, Some(target)) => {
                    let target = at.join(target)?;
                    if at.is_https() && !target.is_https() {
                        let (url, target) = (at.shown(), target.shown());
                        return Err(FetchError::Downgrade { url, target });
                    }
                    at = target;
                }
                (200 | 206, _) => {
                    return Answer::new(at, status, &parts.headers, start, body.into_reader());
                }
                _ => return Err(FetchError::Status { url: at.shown(), status }),
            }
        }
        Err(FetchError::Redirects { url: url.shown(), limit: MAX_REDIRECTS })
    }

    /// The error of a connection that broke.
    pub(super) fn broken(&self, url: &Url, error: ureq::Error) -> FetchError {
        let url = url.shown();
        match error {
            ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => {
                FetchError::Stalled { url, timeout: self.settings.connect_timeout }
            }
            ureq::Error::Timeout(_) => {
                FetchError::Stalled { url, timeout: self.settings.idle_timeout }
            }
            error => FetchError::Network { url, source: Box::new(error) },
        }
    }
}

/// An answer with bytes of the file. Its header is consistent.
pub(super) struct Answer {
    pub(super) url: Url,
    /// Behind the last one; `None` when only the end of the answer tells.
    pub(super) end: Option<u64>,
    /// The file's length.
    pub(super) total: Option<u64>,
    /// Whether it is a part of the file, as it was asked for.
    pub(super) is_part: bool,
    /// Whether the end of an answer without a length cannot be mistaken.
    pub(super) is_chunked: bool,
    /// The validator, which changes when the file does.
    pub(super) validator: Option<String>,
    pub(super) body: BodyReader<'static>,
}

impl Answer {
    fn new(
        url: Url,
        status: u16,
        headers: &HeaderMap,
        asked: u64,
        body: BodyReader<'static>,
    ) -> Result<Self, FetchError> {
        if let Some(encoding) = text(headers, CONTENT_ENCODING)
            && !encoding.eq_ignore_ascii_case("identity")
        {
            return Err(FetchError::Encoding { url: url.shown(), encoding: encoding.into() });
        }
        let length: Option<u64> = text(headers, CONTENT_LENGTH).and_then(|text| text.parse().ok());
        let is_part = status == 206;
        let (end, total) = if is_part {
            let answered = text(headers, CONTENT_RANGE).unwrap_or_default();
            match content_range(answered) {
                Some((start, end, total))
                    if start == asked && length.is_none_or(|length| length == end - start) =>
                {
                    (Some(end), Some(total))
                }
                _ => {
                    let length =
                        length.map_or_else(String::new, |length| format!(", {length} bytes"));
                    let answered = format!("{answered}{length}");
                    return Err(FetchError::Range { url: url.shown(), start: asked, answered });
                }
            }
        } else {
            (length, length)
        };
        let is_chunked = text(headers, TRANSFER_ENCODING)
            .is_some_and(|coding| coding.to_ascii_lowercase().ends_with("chunked"));
        let validator = validator(headers);
        Ok(Self { url, end, total, is_part, is_chunked, validator, body })
    }
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// Returns the value for `If-Range`: a strong tag, or a date that was over when the file was sent.
/// Of a file that is changed within the second in which it is sent, the date says nothing.
fn validator(headers: &HeaderMap) -> Option<String> {
    let strong = text(headers, ETAG).filter(|tag| tag.starts_with('"'));
    let date = || {
        let sent = text(headers, DATE)?;
        text(headers, LAST_MODIFIED).filter(|modified| *modified != sent)
    };
    let validator = strong.or_else(date)?;
    (validator.len() <= MAX_VALIDATOR).then(|| validator.to_owned())
}

/// The first byte of `bytes 0-99/100`, the one behind the last, and the file's length.
fn content_range(value: &str) -> Option<(u64, u64, u64)> {
    let (range, total) = value.strip_prefix("bytes ")?.split_once('/')?;
    let (start, last) = range.split_once('-')?;
    let (start, last, total): (u64, u64, u64) =
        (start.parse().ok()?, last.parse().ok()?, total.parse().ok()?);
    (start <= last && last < total).then(|| (start, last + 1, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_content_ranges_are_understood() {
        assert_eq!(content_range("bytes 0-99/100"), Some((0, 100, 100)));
        assert_eq!(content_range("bytes 5-5/6"), Some((5, 6, 6)));
        for bad in [
            "",
            "bytes",
            "bytes */100",
            "bytes 0-99/*",
            "bytes 9-5/100",
            "bytes 0-100/100",
            "bytes -5/100",
            "bytes 0-18446744073709551615/18446744073709551615",
            "items 0-1/2",
        ] {
            assert_eq!(content_range(bad), None, "{bad}");
        }
    }

    #[test]
    fn validators_are_strong() {
        let found = |pairs: &[(HeaderName, &'static str)]| {
            let pairs = pairs.iter().cloned();
            let headers = pairs.map(|(name, value)| (name, HeaderValue::from_static(value)));
            validator(&headers.collect())
        };
        let day = "Wed, 25 Nov 2026 08:50:02 GMT";
        let later = "Wed, 25 Nov 2026 08:50:03 GMT";
        assert_eq!(found(&[(ETAG, "\"a\""), (LAST_MODIFIED, day)]).unwrap(), "\"a\"");
        assert_eq!(found(&[(ETAG, "W/\"a\""), (LAST_MODIFIED, day), (DATE, later)]).unwrap(), day);
        assert_eq!(found(&[(ETAG, "W/\"a\""), (LAST_MODIFIED, day), (DATE, day)]), None);
        assert_eq!(found(&[(LAST_MODIFIED, day)]), None);
        assert_eq!(found(&[]), None);
    }
}
