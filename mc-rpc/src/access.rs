//! The access list: callers, their credentials and their roles.

mod parse;

use core::fmt;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mc_meta::TenantId;
use mc_tls::{Reload, Reloading, read_file};
use mc_types::ErrorCode;

use crate::caller::{Caller, Role};
use crate::frame::MAX_TOKEN_LEN;
use crate::refusal::Refusal;
use sha2::{Digest, Sha256};
use subtle::{ConditionallySelectable, ConstantTimeEq};

pub use parse::{AccessError, LineError};

/// Most bytes of an access list.
const MAX_LIST_LEN: usize = 1 << 20;

/// Most lines of an access list.
const MAX_LINES: usize = 10_000;

/// The credentials of a peer that connects.
#[derive(Clone, Copy, Default)]
pub struct Presented<'a> {
    /// The token that it sent.
    pub token: Option<&'a [u8]>,
    /// The names in its certificate, which has been verified.
    pub certificate: &'a [Box<str>],
    /// The user as whom it runs, where the system says so: on a Unix socket.
    pub uid: Option<u32>,
    /// The tenant that it wants to act for; empty when it names none.
    pub tenant: &'a str,
}

impl fmt::Debug for Presented<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Presented")
            .field("token", &self.token.map(|_| "(not shown)"))
            .field("certificate", &self.certificate)
            .field("uid", &self.uid)
            .field("tenant", &self.tenant)
            .finish()
    }
}

/// An entry of the list.
#[derive(Clone, Debug)]
struct Principal {
    line: usize,
    caller: Arc<Caller>,
    /// Whether they act for the caller's tenant only.
    bound: bool,
}

type TokenHash = [u8; 32];

/// A list of those who may call: what each of them shows for itself, what they may do, and
/// for which tenant.
///
/// One of them on a line; what follows a `#` at the beginning of a word is a comment:
///
/// ```text
/// # who                                   role    tenant  name in logs
/// token:9f2c61d0c7b84ab2a1cc              writer  team-a  name=engine
/// sha256:<64 digits, SHA-256 of a token>  admin
/// cert:node-7.cluster.example             node
/// cert:spiffe://cluster.example/prefill   writer  team-b
/// uid:1000                                admin
/// anonymous                               reader
/// ```
///
/// A token has 16 to 4096 characters, letters, digits and `. _ ~ + / = -`; it is kept as
/// its hash. A certificate is known by a DNS name or a URI of its subject alternative
/// names, written in full: a `*` stands for itself. Two lines may have one name, so that
/// a token can be replaced by another, but not the same token, certificate or user.
///
/// The tenant is whose objects they mean. Those without one mean the default tenant's,
/// but administrators without one may act for any.
pub struct Access {
    tokens: Vec<(TokenHash, Principal)>,
    certificates: HashMap<Box<str>, Principal>,
    users: HashMap<u32, Principal>,
    anonymous: Option<Principal>,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access")
            .field("tokens", &self.tokens.len())
            .field("certificates", &self.certificates.len())
            .field("users", &self.users.len())
            .field("anonymous", &self.anonymous.is_some())
            .finish()
    }
}

impl Access {
    /// Reads a list from its text, of at most 1 MiB and 10,000 lines.
    ///
    /// # Errors
    /// [`AccessError`], which names the line and never repeats what stands there.
    pub fn parse(text: &str) -> Result<Self, AccessError> {
        parse::parse(text, "the access list")
    }

    /// Reads a list from a file. Blocks the thread meanwhile.
    ///
    /// # Errors
    /// [`AccessError`] when the file cannot be read, or as for [`parse`](Self::parse).
    pub fn load(path: &Path) -> Result<Self, AccessError> {
        parse::parse_bytes(&read_file(path, MAX_LIST_LEN)?, &path.display().to_string())
    }

    /// Returns the caller. The first of these counts that the peer shows and, but for the
    /// token, the list knows: token, certificate, user. Of several lines that name one
    /// certificate the first counts. A peer that shows nothing that is known is `anonymous`,
    /// if the list has such a line; a token that is not known is refused in any case.
    ///
    /// Takes the same time for every token of one length.
    ///
    /// # Errors
    /// `Unauthenticated` when the list does not know the peer, `PermissionDenied` when it
    /// may not act for the tenant it asks for, `InvalidParams` when that is no tenant's
    /// name.
    pub fn identify(&self, presented: &Presented<'_>) -> Result<Arc<Caller>, Refusal> {
        self.principal(presented)?.acting_for(presented.tenant)
    }

    fn principal(&self, presented: &Presented<'_>) -> Result<&Principal, Refusal> {
        if let Some(token) = presented.token {
            return self.by_token(token).ok_or_else(|| {
                unauthenticated(
                    "the access list of this master does not know the token; use one that is on it",
                )
            });
        }
        let certificate = presented.certificate.iter();
        let certificate = certificate.filter_map(|name| self.certificates.get(name));
        certificate
            .min_by_key(|principal| principal.line)
            .or_else(|| self.users.get(&presented.uid?))
            .or(self.anonymous.as_ref())
            .ok_or_else(|| match (presented.certificate.first(), presented.uid) {
                (Some(name), _) => unauthenticated(format!(
                    "the access list of this master does not know the client certificate of \
                     {name:?}; add a line for it, or send a token"
                )),
                (None, Some(uid)) => unauthenticated(format!(
                    "the access list of this master does not know the user {uid}; add a line \
                     for it, or send a token"
                )),
                (None, None) => unauthenticated(
                    "this master answers only to those who show a token or a client certificate",
                ),
            })
    }

    /// Compares with every token, whether one was found or not, so that the time it takes
    /// tells nothing about any of them.
    fn by_token(&self, token: &[u8]) -> Option<&Principal> {
        if token.len() > MAX_TOKEN_LEN {
            return None;
        }
        let hash: TokenHash = Sha256::digest(token).into();
        // Counted from 1, so that 0 is none.
        let mut found = 0_u32;
        for (number, (known, _)) in (1_u32..).zip(&self.tokens) {
            found.conditional_assign(&number, known.ct_eq(&hash));
        }
        let index = (found as usize).checked_sub(1)?;
        self.tokens.get(index).map(|(_, principal)| principal)
    }

    /// Returns whether a line binds its caller to another tenant than the default one.
    #[must_use]
    pub fn names_tenants(&self) -> bool {
        self.principals().any(|principal| !principal.caller.tenant().is_default())
    }

    /// The role of callers who show nothing that the list knows; `None` when they are refused.
    #[must_use]
    pub fn anonymous_role(&self) -> Option<Role> {
        self.anonymous.as_ref().map(|anonymous| anonymous.caller.role())
    }

    fn principals(&self) -> impl Iterator<Item = &Principal> {
        let tokens = self.tokens.iter().map(|(_, principal)| principal);
        tokens.chain(self.certificates.values()).chain(self.users.values()).chain(&self.anonymous)
    }
}

fn unauthenticated(message: impl Into<String>) -> Refusal {
    Refusal::new(ErrorCode::Unauthenticated, message)
}

impl Principal {
    fn acting_for(&self, asked: &str) -> Result<Arc<Caller>, Refusal> {
        let caller = &self.caller;
        if asked.is_empty() {
            return Ok(Arc::clone(caller));
        }
        let tenant = TenantId::new(asked)
            .map_err(|error| Refusal::invalid(format!("the tenant asked for: {error}")))?;
        if tenant == *caller.tenant() {
            return Ok(Arc::clone(caller));
        }
        if self.bound || caller.role() < Role::Admin {
            return Err(Refusal::new(
                ErrorCode::PermissionDenied,
                format!(
                    "{} acts for the tenant {}, not for {tenant}",
                    caller.name(),
                    caller.tenant()
                ),
            ));
        }
        Ok(Arc::new(Caller::clone(caller).of_tenant(tenant)))
    }
}

/// An [`Access`] list in a file that may be renewed while a server runs. A connection that
/// is there already stays what it was when it began.
#[derive(Debug)]
pub struct AccessFile(Reloading<Access, AccessError>);

impl AccessFile {
    /// Reads the list. Blocks the thread meanwhile.
    ///
    /// # Errors
    /// As for [`Access::load`].
    pub fn load(path: impl Into<PathBuf>) -> Result<Self, AccessError> {
        let path = path.into();
        let files = vec![path.clone()];
        Reloading::new("the access list", files, move || Access::load(&path), news).map(Self)
    }

    /// The list that holds now. Cheap.
    #[must_use]
    pub fn current(&self) -> Arc<Access> {
        self.0.current()
    }

    /// Looks whether the file has changed, and reads it again if so. A list that cannot
    /// be read is logged once and does not take the place of the one before. Blocks the
    /// thread meanwhile.
    pub fn check(&self) -> Reload {
        self.0.check()
    }
}

/// Knows who may call, by what they show. A server asks it about every connection.
pub trait Authenticate: fmt::Debug + Send + Sync + 'static {
    /// Returns the caller that shows this. Must not wait.
    ///
    /// # Errors
    /// The [`Refusal`] that the peer is told: `Unauthenticated` when no caller is known by
    /// what it shows, `PermissionDenied` when they may not act for the tenant asked for.
    fn identify(&self, presented: &Presented<'_>) -> Result<Arc<Caller>, Refusal>;

    /// Returns whether callers may be of different tenants, who then expect to be kept apart.
    fn names_tenants(&self) -> bool {
        true
    }

    /// The role of callers who show nothing that is known; `None`, the default, when they are
    /// refused.
    fn anonymous_role(&self) -> Option<Role> {
        None
    }

    /// Looks whether what it goes by has changed. Called every few seconds, on a thread
    /// that may block.
    fn refresh(&self) {}
}

impl Authenticate for Access {
    fn identify(&self, presented: &Presented<'_>) -> Result<Arc<Caller>, Refusal> {
        self.identify(presented)
    }

    fn names_tenants(&self) -> bool {
        self.names_tenants()
    }

    fn anonymous_role(&self) -> Option<Role> {
        self.anonymous_role()
    }
}

impl Authenticate for AccessFile {
    fn identify(&self, presented: &Presented<'_>) -> Result<Arc<Caller>, Refusal> {
        self.current().identify(presented)
    }

    fn names_tenants(&self) -> bool {
        self.current().names_tenants()
    }

    fn anonymous_role(&self) -> Option<Role> {
        self.current().anonymous_role()
    }

    fn refresh(&self) {
        // What came of it has been logged.
        let _ = self.check();
    }
}

fn news(old: &Access, new: &Access) -> String {
    let of = |role| new.principals().filter(|one| one.caller.role() == role).count();
    let roles = Role::ALL.map(|role| format!("{role} {}", of(role)));
    let (now, before) = (new.principals().count(), old.principals().count());
    format!("it names {now} ({}), and named {before} before", roles.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "
        # who                              role    tenant
        token:writer-of-team-a-0001        writer  team-a  name=engine
        sha256:2e79b0a0ad2a8ff1ab2dd6ac1ae3e80ffd1e5ddba91bbe36db39dbe6e0eb0c2b admin # hashed
        token:node-without-tenant          node
        cert:node-7.example                node
        cert:spiffe://example/prefill      writer  team-b
        uid:1000                           admin
        anonymous                          reader
    ";

    fn list() -> Access {
        let hash = Sha256::digest(b"administrator-token");
        let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        let known = "2e79b0a0ad2a8ff1ab2dd6ac1ae3e80ffd1e5ddba91bbe36db39dbe6e0eb0c2b";
        Access::parse(&LIST.replace(known, &hash)).unwrap()
    }

    fn token(token: &str) -> Presented<'_> {
        Presented { token: Some(token.as_bytes()), ..Presented::default() }
    }

    fn who(access: &Access, presented: Presented<'_>) -> (String, Role, String) {
        let caller = access.identify(&presented).unwrap();
        (caller.name().into(), caller.role(), caller.tenant().to_string())
    }

    fn is(name: &str, role: Role, tenant: &str) -> (String, Role, String) {
        (name.into(), role, tenant.into())
    }

    #[test]
    fn each_kind_of_credential_is_known() {
        let access = list();
        let engine = who(&access, token("writer-of-team-a-0001"));
        assert_eq!(engine, is("engine", Role::Writer, "team-a"));
        let admin = who(&access, token("administrator-token"));
        assert_eq!(admin, is("token#4", Role::Admin, "default"));
        let names = ["spiffe://example/prefill".into(), "node-7.example".into()];
        let certificate = |names| Presented { certificate: names, ..Presented::default() };
        let node = who(&access, certificate(&names[1..]));
        assert_eq!(node, is("node-7.example", Role::Node, "default"));
        // Two of its names are known: the first line counts.
        assert_eq!(who(&access, certificate(&names)), node);
        let user = who(&access, Presented { uid: Some(1000), ..Presented::default() });
        assert_eq!(user, is("uid 1000", Role::Admin, "default"));
        assert_eq!(access.anonymous_role(), Some(Role::Reader));
        let nobody = who(&access, Presented::default());
        assert_eq!(nobody, is("anonymous", Role::Reader, "default"));
    }

    #[test]
    fn what_is_not_known_is_anonymous_but_a_wrong_token_is_refused() {
        let access = list();
        let names = ["stranger.example".into()];
        let stranger = Presented { certificate: &names, uid: Some(7), ..Presented::default() };
        assert_eq!(who(&access, stranger).1, Role::Reader);
        for wrong in ["", "writer-of-team-a-0002", "writer-of-team-a-000", &"x".repeat(5000)] {
            let with_a_good_user = Presented { uid: Some(1000), ..token(wrong) };
            let refusal = access.identify(&with_a_good_user).unwrap_err();
            assert_eq!(refusal.code, ErrorCode::Unauthenticated);
            assert!(wrong.is_empty() || !refusal.message.contains(wrong), "{refusal}");
        }
        // A token counts before anything else that is shown.
        let both = Presented { uid: Some(1000), ..token("writer-of-team-a-0001") };
        assert_eq!(who(&access, both).0, "engine");
    }

    #[test]
    fn without_an_anonymous_line_strangers_are_refused() {
        let access = Access::parse("uid:0 admin").unwrap();
        assert_eq!(access.anonymous_role(), None);
        let names = ["stranger.example".into()];
        for presented in [
            Presented::default(),
            Presented { uid: Some(1), ..Presented::default() },
            Presented { certificate: &names, ..Presented::default() },
        ] {
            let refusal = access.identify(&presented).unwrap_err();
            assert_eq!(refusal.code, ErrorCode::Unauthenticated, "{presented:?}");
        }
    }

    #[test]
    fn tenants_follow_from_the_line() {
        let access = list();
        let asks = |credential: &str, tenant: &str| {
            let presented = Presented { tenant, ..token(credential) };
            access.identify(&presented).map(|caller| caller.tenant().to_string())
        };
        let refused = |code| move |refusal: Refusal| assert_eq!(refusal.code, code, "{refusal}");
        let denied = refused(ErrorCode::PermissionDenied);
        let bound = "writer-of-team-a-0001";
        assert_eq!(asks(bound, "").unwrap(), "team-a");
        assert_eq!(asks(bound, "team-a").unwrap(), "team-a");
        denied(asks(bound, "team-b").unwrap_err());
        denied(asks(bound, "default").unwrap_err());
        let free = "node-without-tenant";
        assert_eq!(asks(free, "").unwrap(), "default");
        assert_eq!(asks(free, "default").unwrap(), "default");
        denied(asks(free, "team-a").unwrap_err());
        let admin = "administrator-token";
        assert_eq!(asks(admin, "").unwrap(), "default");
        assert_eq!(asks(admin, "team-b").unwrap(), "team-b");
        refused(ErrorCode::InvalidParams)(asks(admin, "team/b").unwrap_err());
        refused(ErrorCode::Unauthenticated)(asks("no-such-token-here", "team/b").unwrap_err());

        let bound_admin = Access::parse("anonymous admin team-a").unwrap();
        let presented = Presented { tenant: "team-b", ..Presented::default() };
        denied(bound_admin.identify(&presented).unwrap_err());
    }

    #[test]
    fn a_token_never_shows() {
        let access = list();
        let secret = "writer-of-team-a-0001";
        let presented = token(secret);
        for shown in [format!("{access:?}"), format!("{presented:?}")] {
            assert!(!shown.contains("writer-of"), "{shown}");
            assert!(!shown.contains("119, 114"), "{shown}");
        }
    }

    #[test]
    fn a_renewed_file_takes_the_place_of_the_old_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("access");
        std::fs::write(&path, "token:first-token-0001 writer").unwrap();
        let file = AccessFile::load(&path).unwrap();
        let knows = |credential| file.current().identify(&token(credential)).is_ok();
        assert_eq!(file.check(), Reload::Unchanged);

        std::fs::write(&path, "token:first-token-0001 writer\ntoken:second-token-0001 writer\n")
            .unwrap();
        assert_eq!(file.check(), Reload::Taken);
        assert!(knows("first-token-0001") && knows("second-token-0001"));

        // An empty file would lock every client out; it is one that is being written.
        std::fs::write(&path, "").unwrap();
        assert_eq!(file.check(), Reload::Kept);
        assert!(knows("first-token-0001"));

        std::fs::write(&path, "token:second-token-0001 writer").unwrap();
        assert_eq!(file.check(), Reload::Taken);
        assert!(!knows("first-token-0001") && knows("second-token-0001"));
    }
}
