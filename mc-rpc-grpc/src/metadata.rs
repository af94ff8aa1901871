//! The metadata beside a caller's message.

use core::fmt;
use core::time::Duration;

use http::HeaderMap;
use mc_rpc::Refusal;
use mc_rpc::frame::MIN_MAX_PAYLOAD;
use mc_types::ErrorCode;
use tokio::time::Instant;

/// Most bytes of an answer unless the caller says otherwise: what the clients of gRPC
/// accept unless they are told otherwise.
const DEFAULT_MAX_REPLY: u32 = 4 << 20;

/// The caller's claim of its identity; nothing of it is proven.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Claim<'a> {
    /// The bearer token, when one was given.
    pub(super) token: Option<&'a [u8]>,
    /// The tenant to act for; empty for the one that the credential says.
    pub(super) tenant: &'a str,
}

impl fmt::Debug for Claim<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the token, which is a secret.
        f.debug_struct("Claim").field("tenant", &self.tenant).finish_non_exhaustive()
    }
}

impl<'a> Claim<'a> {
    /// Reads `authorization: Bearer TOKEN` and `mc-tenant: NAME`.
    pub(super) fn read(headers: &'a HeaderMap) -> Result<Self, Refusal> {
        let token = match only(headers, "authorization")? {
            None => None,
            Some(text) => Some(bearer(text).ok_or_else(|| {
                let message = "the metadata authorization is not \"Bearer TOKEN\"";
                Refusal::new(ErrorCode::Unauthenticated, message)
            })?),
        };
        Ok(Self { token, tenant: only(headers, "mc-tenant")?.unwrap_or_default() })
    }
}

fn bearer(text: &str) -> Option<&[u8]> {
    let (scheme, token) = text.split_once(' ')?;
    let token = token.trim_start_matches(' ');
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token.as_bytes())
}

/// When the caller stops waiting; `None` when it does not say.
pub(super) fn deadline(headers: &HeaderMap, arrived: Instant) -> Result<Option<Instant>, Refusal> {
    let Some(text) = only(headers, "grpc-timeout")? else { return Ok(None) };
    let timeout = parse_timeout(text).ok_or_else(|| {
        Refusal::invalid("the metadata grpc-timeout is not 1 to 8 digits and one of H M S m u n")
    })?;
    // Beyond what the clock can tell there is no deadline.
    Ok(arrived.checked_add(timeout))
}

fn parse_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if !(1..=8).contains(&digits.len()) || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let value = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(value * 3600),
        "M" => Duration::from_secs(value * 60),
        "S" => Duration::from_secs(value),
        "m" => Duration::from_millis(value),
        "u" => Duration::from_micros(value),
        "n" => Duration::from_nanos(value),
        _ => return None,
    })
}

/// Most bytes that the caller accepts as an answer, `mc-max-reply: BYTES`; never more than
/// `max`.
pub(super) fn max_reply(headers: &HeaderMap, max: u32) -> Result<usize, Refusal> {
    let asked = match only(headers, "mc-max-reply")? {
        None => DEFAULT_MAX_REPLY,
        Some(text) => match text.parse() {
            Ok(bytes) if bytes >= MIN_MAX_PAYLOAD => bytes,
            _ => {
                return Err(Refusal::invalid(format!(
                    "the metadata mc-max-reply is not a number of bytes from {MIN_MAX_PAYLOAD} on"
                )));
            }
        },
    };
    Ok(asked.min(max) as usize)
}

/// The one value of this name. Two would leave open which of them counts.
fn only<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, Refusal> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Refusal::invalid(format!("the metadata {name} is given more than once")));
    }
    match value.to_str() {
        Ok(text) => Ok(Some(text)),
        Err(_) => Err(Refusal::invalid(format!("the metadata {name} is not printable ASCII"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn headers(name: &'static str, value: &[u8]) -> HeaderMap {
        HeaderMap::from_iter([(
            http::HeaderName::from_static(name),
            HeaderValue::from_bytes(value).unwrap(),
        )])
    }

    #[test]
    fn timeouts() {
        let parsed = |text: &str| {
            let now = Instant::now();
            let deadline = deadline(&headers("grpc-timeout", text.as_bytes()), now);
            deadline.map(|at| at.map(|at| at - now))
        };
        for (text, duration) in [
            ("1H", Duration::from_secs(3600)),
            ("2M", Duration::from_secs(120)),
            ("0S", Duration::ZERO),
            ("100m", Duration::from_millis(100)),
            ("5u", Duration::from_micros(5)),
            ("99999999n", Duration::from_nanos(99_999_999)),
        ] {
            assert_eq!(parsed(text), Ok(Some(duration)), "{text}");
        }
        assert!(parsed("99999999H").is_ok());
        for text in ["", "S", "1", "123456789S", "-1S", "+1S", "1 S", "1s", "1.5S"] {
            assert_eq!(parsed(text).unwrap_err().code, ErrorCode::InvalidParams, "{text}");
        }
        assert_eq!(deadline(&HeaderMap::new(), Instant::now()), Ok(None));
    }

    #[test]
    fn claims() {
        let none = HeaderMap::new();
        assert_eq!(Claim::read(&none), Ok(Claim { token: None, tenant: "" }));
        for text in ["Bearer abc", "bearer  abc"] {
            let headers = headers("authorization", text.as_bytes());
            assert_eq!(Claim::read(&headers).unwrap().token, Some(&b"abc"[..]), "{text}");
        }
        for text in ["Bearer", "Bearer ", "Basic abc", "abc", ""] {
            let headers = headers("authorization", text.as_bytes());
            let refusal = Claim::read(&headers).unwrap_err();
            assert_eq!(refusal.code, ErrorCode::Unauthenticated, "{text}");
        }
        let tenant = headers("mc-tenant", b"team-a");
        let claim = Claim::read(&tenant).unwrap();
        assert_eq!(claim.tenant, "team-a");

        let mut twice = headers("mc-tenant", b"team-a");
        twice.append("mc-tenant", HeaderValue::from_static("team-b"));
        assert!(Claim::read(&twice).unwrap_err().message.contains("more than once"));
        assert!(Claim::read(&headers("mc-tenant", b"\xff")).is_err());
        let secret = headers("authorization", b"Bearer secret");
        assert!(!format!("{:?}", Claim::read(&secret).unwrap()).contains("secret"));
    }

    #[test]
    fn largest_answers() {
        let max = 16 << 20;
        assert_eq!(max_reply(&HeaderMap::new(), max), Ok(4 << 20));
        assert_eq!(max_reply(&HeaderMap::new(), 1 << 20), Ok(1 << 20));
        assert_eq!(max_reply(&headers("mc-max-reply", b"65536"), max), Ok(65_536));
        assert_eq!(max_reply(&headers("mc-max-reply", b"4294967295"), max), Ok(16 << 20));
        for text in ["", "0", "65535", "4294967296", "-1", "many"] {
            assert!(max_reply(&headers("mc-max-reply", text.as_bytes()), max).is_err(), "{text}");
        }
    }
}
