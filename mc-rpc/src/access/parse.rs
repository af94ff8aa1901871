//! The text of an access list.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use mc_meta::{TenantId, TenantIdError};
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::{Access, MAX_LINES, MAX_LIST_LEN, MAX_TOKEN_LEN, Principal, TokenHash};
use crate::caller::{Caller, Role, UnknownRole};
use mc_tls::FileError;

/// Fewest characters of a token: 16 random ones of 64 are 96 bits.
const MIN_TOKEN_LEN: usize = 16;

/// Longest name of a certificate, in bytes.
const MAX_CERTIFICATE_NAME_LEN: usize = 256;

/// Longest name in logs, in bytes.
const MAX_NAME_LEN: usize = 128;

/// Why there is no access list.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum AccessError {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The list is too long.
    #[error("{list} has {len} bytes; the limit is {MAX_LIST_LEN}")]
    TooLarge {
        /// The file, or that it is none.
        list: Box<str>,
        /// Its length in bytes.
        len: usize,
    },
    /// The list has too many lines.
    #[error("{list} has more than {MAX_LINES} lines")]
    TooManyLines {
        /// The file, or that it is none.
        list: Box<str>,
    },
    /// The file is not text.
    #[error("{list} is not UTF-8")]
    NotText { list: Box<str> },
    /// The list has no entries, so that no call could be answered.
    #[error("{list} has no entries; write a line such as `uid:0 admin`")]
    Empty {
        /// The file, or that it is none.
        list: Box<str>,
    },
    /// One of its lines is wrong.
    #[error("{list}, line {line}: {problem}")]
    Line {
        /// The file, or that it is none.
        list: Box<str>,
        /// The line's number, from 1.
        line: usize,
        /// The fault of the line.
        problem: LineError,
    },
}

/// The error of a line of an access list. No word of the line is repeated: a word in
/// the wrong place may be a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LineError {
    /// The first word is none of those that say who.
    #[error("begin with token:..., sha256:..., cert:..., uid:... or anonymous")]
    Who,
    /// The token can be guessed, or is not complete.
    #[error(
        "the token has fewer than {MIN_TOKEN_LEN} characters; make one with `openssl rand -hex 32`"
    )]
    ShortToken,
    /// The token is too long.
    #[error("the token has more than {MAX_TOKEN_LEN} characters")]
    LongToken,
    /// The token cannot be sent in every protocol.
    #[error("a token has letters, digits and . _ ~ + / = - only")]
    TokenCharacter,
    /// This is no SHA-256.
    #[error("sha256: takes the 64 digits that `printf %s \"$token\" | sha256sum` prints")]
    Hash,
    /// This can be no name in a certificate.
    #[error(
        "cert: takes a DNS name or a URI, 1 to {MAX_CERTIFICATE_NAME_LEN} visible ASCII characters"
    )]
    CertificateName,
    /// This is no user's number.
    #[error("uid: takes the number of a user, as `id -u` prints it")]
    User,
    /// The second word is missing.
    #[error("the role is missing; {UnknownRole}")]
    NoRole,
    /// The second word is no role.
    #[error("the second word is no role; {0}")]
    Role(#[from] UnknownRole),
    /// The third word is no tenant.
    #[error("the third word is no tenant: {0}")]
    Tenant(#[from] TenantIdError),
    /// The name cannot be shown.
    #[error("name= takes 1 to {MAX_NAME_LEN} visible ASCII characters")]
    Name,
    /// There is a word too many.
    #[error("a line is: who, role, and if wanted a tenant and name=...; there is a word more")]
    ExtraWord,
    /// The same credential stands on two lines.
    #[error("line {first} is for the same token, certificate or user; keep one of them")]
    Twice {
        /// The number of the first of them.
        first: usize,
    },
}

/// The subject of a line.
#[derive(PartialEq, Eq, Hash)]
enum Who {
    Token(TokenHash),
    Certificate(Box<str>),
    User(u32),
    Anonymous,
}

pub(super) fn parse_bytes(bytes: &[u8], list: &str) -> Result<Access, AccessError> {
    let not_text = |_| AccessError::NotText { list: list.into() };
    parse(core::str::from_utf8(bytes).map_err(not_text)?, list)
}

pub(super) fn parse(text: &str, list: &str) -> Result<Access, AccessError> {
    if text.len() > MAX_LIST_LEN {
        return Err(AccessError::TooLarge { list: list.into(), len: text.len() });
    }
    if text.lines().nth(MAX_LINES).is_some() {
        return Err(AccessError::TooManyLines { list: list.into() });
    }
    let mut access = Access {
        tokens: Vec::new(),
        certificates: HashMap::new(),
        users: HashMap::new(),
        anonymous: None,
    };
    let mut lines = HashMap::new();
    for (line, text) in (1..).zip(text.lines()) {
        let wrong = |problem| AccessError::Line { list: list.into(), line, problem };
        let words = text.split_whitespace().take_while(|word| !word.starts_with('#'));
        let Some((who, principal)) = parse_line(line, words).map_err(wrong)? else { continue };
        if let Some(&first) = lines.get(&who) {
            return Err(wrong(LineError::Twice { first }));
        }
        match &who {
            Who::Token(hash) => access.tokens.push((*hash, principal)),
            Who::Certificate(name) => {
                access.certificates.insert(name.clone(), principal);
            }
            Who::User(uid) => {
                access.users.insert(*uid, principal);
            }
            Who::Anonymous => access.anonymous = Some(principal),
        }
        lines.insert(who, line);
    }
    if lines.is_empty() {
        return Err(AccessError::Empty { list: list.into() });
    }
    Ok(access)
}

fn parse_line<'a>(
    line: usize,
    mut words: impl Iterator<Item = &'a str>,
) -> Result<Option<(Who, Principal)>, LineError> {
    let Some(first) = words.next() else { return Ok(None) };
    let (who, mut name) = parse_who(first, line)?;
    let role: Role = words.next().ok_or(LineError::NoRole)?.parse()?;
    let mut rest = words.next();
    let tenant = match rest {
        Some(word) if !word.starts_with("name=") => {
            rest = words.next();
            Some(TenantId::new(word)?)
        }
        _ => None,
    };
    if let Some(word) = rest {
        let given = word.strip_prefix("name=").ok_or(LineError::ExtraWord)?;
        if !is_visible(given, MAX_NAME_LEN) {
            return Err(LineError::Name);
        }
        name = Cow::Owned(given.into());
    }
    if words.next().is_some() {
        return Err(LineError::ExtraWord);
    }
    let bound = tenant.is_some();
    let caller = Caller::new(name, role).of_tenant(tenant.unwrap_or(TenantId::DEFAULT));
    Ok(Some((who, Principal { line, caller: Arc::new(caller), bound })))
}

/// Parses the first word of a line: its subject, and the name that the subject has if none is
/// given.
fn parse_who(word: &str, line: usize) -> Result<(Who, Cow<'static, str>), LineError> {
    if word == "anonymous" {
        return Ok((Who::Anonymous, Cow::Borrowed("anonymous")));
    }
    let (kind, value) = word.split_once(':').ok_or(LineError::Who)?;
    match kind {
        "token" => Ok((Who::Token(hash_of_token(value)?), Cow::Owned(format!("token#{line}")))),
        "sha256" => {
            let hash = parse_hash(value).ok_or(LineError::Hash)?;
            Ok((Who::Token(hash), Cow::Owned(format!("token#{line}"))))
        }
        "cert" => {
            if !is_visible(value, MAX_CERTIFICATE_NAME_LEN) {
                return Err(LineError::CertificateName);
            }
            // Only DNS names have no colon; they are the same in capitals.
            let name = if value.contains(':') { value.into() } else { value.to_ascii_lowercase() };
            Ok((Who::Certificate(name.as_str().into()), Cow::Owned(name)))
        }
        "uid" => {
            let digits = value.bytes().all(|byte| byte.is_ascii_digit());
            // The highest number is what the system says of a user that it does not know.
            let uid = value.parse().ok().filter(|&uid| digits && uid != u32::MAX);
            let uid = uid.ok_or(LineError::User)?;
            Ok((Who::User(uid), Cow::Owned(format!("uid {uid}"))))
        }
        _ => Err(LineError::Who),
    }
}

fn hash_of_token(token: &str) -> Result<TokenHash, LineError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._~+/=-".contains(&byte);
    if !token.bytes().all(allowed) {
        return Err(LineError::TokenCharacter);
    }
    if token.len() < MIN_TOKEN_LEN {
        return Err(LineError::ShortToken);
    }
    if token.len() > MAX_TOKEN_LEN {
        return Err(LineError::LongToken);
    }
    Ok(Sha256::digest(token).into())
}

fn parse_hash(digits: &str) -> Option<TokenHash> {
    if digits.len() != 64 {
        return None;
    }
    let mut hash = [0; 32];
    for (byte, pair) in hash.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16);
        *byte = u8::try_from(digit(0)? << 4 | digit(1)?).ok()?;
    }
    Some(hash)
}

fn is_visible(text: &str, max: usize) -> bool {
    (1..=max).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn problem(text: &str) -> (usize, LineError) {
        match Access::parse(text).unwrap_err() {
            AccessError::Line { line, problem, .. } => (line, problem),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line_and_without_the_secret() {
        let long = format!("token:{} writer", "s3cret".repeat(700));
        for (line, expected) in [
            ("s3cret", LineError::Who),
            ("tokn:s3cret-s3cret-s3cret writer", LineError::Who),
            ("writer token:s3cret-s3cret-s3cret", LineError::Who),
            ("token:s3cret writer", LineError::ShortToken),
            ("token: writer", LineError::ShortToken),
            (&long, LineError::LongToken),
            ("token:s3cret-s3cret-s3cr*t writer", LineError::TokenCharacter),
            ("token:s3cret-s3cret-s3cret", LineError::NoRole),
            ("token:s3cret-s3cret-s3cret s3cret", LineError::Role(UnknownRole)),
            ("token:s3cret-s3cret-s3cret Writer", LineError::Role(UnknownRole)),
            ("sha256:abc admin", LineError::Hash),
            ("cert: node", LineError::CertificateName),
            ("cert:kn\u{f6}del node", LineError::CertificateName),
            ("uid:root admin", LineError::User),
            ("uid:+1 admin", LineError::User),
            ("uid: admin", LineError::User),
            ("uid:-1 admin", LineError::User),
            ("uid:4294967295 admin", LineError::User),
            ("anonymous reader team-a s3cret", LineError::ExtraWord),
            ("anonymous reader name=a team-a", LineError::ExtraWord),
            ("anonymous reader team-a name=a name=b", LineError::ExtraWord),
            ("anonymous reader name=", LineError::Name),
            ("anonymous reader name=\u{1b}[1m", LineError::Name),
        ] {
            let text = format!("# a comment\n\nuid:7 reader\n{line}\n");
            assert_eq!(problem(&text), (4, expected), "{line}");
            let message = Access::parse(&text).unwrap_err().to_string();
            assert!(message.starts_with("the access list, line 4: "), "{message}");
            assert!(!message.contains("s3cr"), "{message}");
        }
        assert!(matches!(problem("anonymous reader a/b"), (1, LineError::Tenant(_))));
    }

    #[test]
    fn a_credential_stands_on_one_line_only() {
        let token = "an-administrators-token";
        let hash = Sha256::digest(token);
        let hash: String = hash.iter().map(|byte| format!("{byte:02X}")).collect();
        for (first, second) in [
            ("anonymous", "anonymous"),
            ("uid:7", "uid:007"),
            ("cert:Node.example", "cert:node.EXAMPLE"),
            (&*format!("token:{token}"), &*format!("sha256:{hash}")),
        ] {
            let text = format!("\n{first} reader\n{second} admin");
            assert_eq!(problem(&text), (3, LineError::Twice { first: 2 }), "{text}");
        }
        // Tokens may have one name, so that one can take the other's place.
        let both = "token:the-first-of-them reader name=a\ntoken:the-second-of-them reader name=a";
        assert!(Access::parse(both).is_ok());
    }

    #[test]
    fn a_list_is_bounded_and_names_somebody() {
        for nobody in ["", "\n\n", "# anonymous reader"] {
            assert!(matches!(Access::parse(nobody), Err(AccessError::Empty { .. })), "{nobody:?}");
        }
        let lines = "\n".repeat(MAX_LINES);
        assert!(matches!(
            Access::parse(&format!("{lines}anonymous reader")),
            Err(AccessError::TooManyLines { .. })
        ));
        assert!(Access::parse(&format!("{}anonymous reader", &lines[1..])).is_ok());
        let long = format!("#{}\nanonymous reader", " ".repeat(MAX_LIST_LEN));
        assert!(matches!(Access::parse(&long), Err(AccessError::TooLarge { .. })));
        assert!(matches!(
            parse_bytes(b"anonymous reader \xff", "list"),
            Err(AccessError::NotText { .. })
        ));
    }

    proptest! {
        #[test]
        fn no_text_is_too_strange(text in "(token|sha256|cert|uid|anonymous|name|[ :=#\n]|\\PC){0,40}") {
            let _ = Access::parse(&text);
        }
    }
}
