//! Access control of the pages: the access list of the calls holds for them, too.

use std::sync::Arc;

use mc_http::{Request, header};
use mc_meta::TenantId;
use mc_rpc::{Authenticate, Caller, Presented};
use mc_types::ErrorCode;

use super::failure::Failure;
use super::query::Query;

/// How callers are known.
#[derive(Clone, Debug)]
pub(crate) enum Gate {
    /// Every client that can connect may ask.
    Open,
    /// Callers on the access list may ask, with a token.
    List(Arc<dyn Authenticate>),
    /// No client may ask: callers of the master are known by certificates only, and there are none here.
    Closed,
}

impl Gate {
    /// The caller of a request, acting for the tenant that the query names.
    pub(super) fn admit(&self, request: &Request<()>, query: Query<'_>) -> Result<Caller, Failure> {
        let tenant = query.first("tenant_id")?.unwrap_or_default();
        match self {
            Self::Open if tenant.is_empty() => Ok(Caller::ANYBODY),
            Self::Open => {
                let invalid = |error| {
                    Failure::new(
                        ErrorCode::InvalidParams,
                        format!("the parameter tenant_id: {error}"),
                    )
                };
                Ok(Caller::ANYBODY.of_tenant(TenantId::new(&tenant).map_err(invalid)?))
            }
            Self::List(list) => {
                let presented =
                    Presented { token: token(request)?, tenant: &tenant, ..Presented::default() };
                let caller = list.identify(&presented);
                caller
                    .map(|caller| Caller::clone(&caller))
                    .map_err(|refusal| Failure::new(refusal.code, refusal.message))
            }
            Self::Closed => Err(Failure::new(
                ErrorCode::PermissionDenied,
                "this master knows its callers by certificates, which this port does not ask for; \
                 give it an --access_file with a token for this page",
            )),
        }
    }
}

/// The token that a request shows, if any.
pub(super) fn token(request: &Request<()>) -> Result<Option<&[u8]>, Failure> {
    let Some(value) = request.headers().get(header::AUTHORIZATION) else { return Ok(None) };
    let value = value.as_bytes();
    let is_bearer = value.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"bearer "));
    if is_bearer {
        return Ok(Some(value[7..].trim_ascii()));
    }
    let text = "write the token as Authorization: Bearer TOKEN";
    Err(Failure::new(ErrorCode::Unauthenticated, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mc_rpc::{Access, Role};

    fn admit(gate: &Gate, header: &str, query: &str) -> Result<(Role, String), String> {
        let mut request = Request::builder().uri("/query_key");
        if !header.is_empty() {
            request = request.header("authorization", header);
        }
        let caller = gate.admit(&request.body(()).unwrap(), Query::of(Some(query)));
        caller
            .map(|caller| (caller.role(), caller.tenant().to_string()))
            .map_err(|failure| failure.text)
    }

    #[test]
    fn without_a_list_everybody_may_ask() {
        let asked = |query| admit(&Gate::Open, "Basic x", query);
        assert_eq!(asked(""), Ok((Role::Admin, "default".into())));
        assert_eq!(asked("tenant_id=team-a"), Ok((Role::Admin, "team-a".into())));
        assert!(asked("tenant_id=a%2Fb").unwrap_err().contains("tenant_id"));
    }

    #[test]
    fn with_a_list_a_token_is_asked_for() {
        let list = "token:the-token-of-team-a reader team-a\ntoken:the-administrators admin\n";
        let gate = Gate::List(Arc::new(Access::parse(list).unwrap()));
        let team = Ok((Role::Reader, "team-a".to_owned()));
        assert_eq!(admit(&gate, "Bearer the-token-of-team-a", ""), team);
        assert_eq!(admit(&gate, "bearer  the-token-of-team-a ", "tenant_id=team-a"), team);
        let admin = admit(&gate, "Bearer the-administrators", "tenant_id=team-b");
        assert_eq!(admin, Ok((Role::Admin, "team-b".into())));
        for (header, query, says) in [
            ("", "", "show a token"),
            ("Basic x", "", "Authorization: Bearer TOKEN"),
            ("Bearer", "", "Authorization: Bearer TOKEN"),
            ("Bearer ", "", "does not know the token"),
            ("Bearer the-token-of-team-b", "", "does not know the token"),
            ("Bearer the-token-of-team-a", "tenant_id=team-b", "not for team-b"),
        ] {
            let refused = admit(&gate, header, query).unwrap_err();
            assert!(refused.contains(says), "{header}: {refused}");
        }
        assert!(admit(&Gate::Closed, "Bearer x", "").unwrap_err().contains("--access_file"));
    }
}
