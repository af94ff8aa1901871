//! The pages that change something, under Mooncake's names: quotas of tenants, drains, the removal of all
//! objects. Each is a call to this master over a connection of its own, with the token of the request: the
//! roles, the limits and the audit log of calls hold for it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use mc_http::{HeaderValue, Method, Page, Request, StatusCode, header};
use mc_meta::{DrainJobInfo, JobStatus, TenantId, TenantUsage};
use mc_rpc::{
    ByteStream, ClientConfig, ClientEnvironment, Connecting, MasterClient, Role, RpcError, Streams,
    Token,
};
use mc_types::{ErrorCode, JobId};
use parking_lot::RwLock;
use serde_json::{Value, json};

use super::failure::Failure;
use super::gate::{Gate, token};
use super::query::Query;
use super::shown::{Asked, Shown};
use super::{not_leading, require};

/// Longest body: names of segments.
pub(crate) const MAX_BODY: usize = 256 << 10;

/// Bytes on their way between a page and the master.
const PIPE: usize = 16 << 10;

/// The pages, by method and path.
const ROUTES: &[(Method, &str, Change)] = &[
    (Method::PUT, "/api/v1/tenant_quotas", Change::SetQuota),
    (Method::DELETE, "/api/v1/tenant_quotas", Change::DeleteQuota),
    (Method::POST, "/api/v1/drain_jobs", Change::Drain),
    (Method::POST, "/api/v1/drain_jobs/cancel", Change::CancelDrain),
    (Method::POST, "/api/v1/remove_all", Change::RemoveAll),
];

/// The methods and paths of all.
#[cfg(test)]
pub(super) fn all() -> impl Iterator<Item = (&'static Method, &'static str)> {
    ROUTES.iter().map(|(method, path, _)| (method, *path))
}

#[derive(Clone, Copy, Debug)]
enum Change {
    SetQuota,
    DeleteQuota,
    Drain,
    CancelDrain,
    RemoveAll,
}

impl Change {
    const fn role(self) -> Role {
        match self {
            Self::RemoveAll => Role::Writer,
            _ => Role::Admin,
        }
    }
}

/// Answers a request that changes something; `None` where there is no such page.
pub(crate) fn changed(
    shown: &Arc<RwLock<Shown>>,
    gate: &Gate,
    request: Request<Bytes>,
) -> Option<impl Future<Output = Page> + Send + use<>> {
    let (method, path) = (request.method(), request.uri().path());
    let wanted = match ROUTES.iter().find(|(of, at, _)| of == method && *at == path) {
        Some((.., change)) => Ok(*change),
        None => Err(wrong_method(path)?),
    };
    let (shown, gate) = (shown.read().clone(), gate.clone());
    Some(async move {
        match wanted {
            Ok(change) => {
                let page = answer(change, &shown, &gate, &request).await;
                page.unwrap_or_else(|failure| failure.page())
            }
            Err(refusal) => refusal,
        }
    })
}

/// The answer to a method that a path among these has not: which ones it has.
pub(super) fn wrong_method(path: &str) -> Option<Page> {
    let own = ROUTES.iter().filter(|(_, at, _)| *at == path).map(|(method, ..)| method.as_str());
    let mut methods: Vec<&str> = own.collect();
    if methods.is_empty() {
        return None;
    }
    if super::has_page(path) {
        methods.extend(["GET", "HEAD"]);
    }
    let allowed = methods.join(", ");
    let page =
        Page::text(format!("{path} takes {allowed}\n")).status(StatusCode::METHOD_NOT_ALLOWED);
    Some(match HeaderValue::try_from(allowed) {
        Ok(allowed) => page.header(header::ALLOW, allowed),
        Err(_) => page,
    })
}

async fn answer(
    change: Change,
    shown: &Shown,
    gate: &Gate,
    request: &Request<Bytes>,
) -> Result<Page, Failure> {
    refuse_other_sites(request)?;
    let query = Query::of(request.uri().query());
    let head = head_of(request);
    require(&gate.admit(&head, query)?, change.role())?;
    let master = shown.master.as_ref().ok_or_else(|| not_leading(shown))?;
    let caller = Caller { streams: &master.streams, request: &head };
    let body = match change {
        Change::SetQuota => {
            let tenant = named_tenant(query)?;
            let bytes = quota_of(request.body())?;
            let client = caller.client("").await?;
            client.set_tenant_quota(&tenant, bytes).await?;
            json!({ "success": true, "data": quota(&client.tenant_quota(&tenant).await?) })
        }
        Change::DeleteQuota => {
            let tenant = named_tenant(query)?;
            let client = caller.client("").await?;
            let before = client.tenant_quota(&tenant).await?;
            client.delete_tenant_quota(&tenant).await?;
            let had_one = before.requested.is_some();
            json!({ "success": true, "data": had_one.then(|| quota(&before)) })
        }
        Change::Drain => {
            let wanted = Drain::parse(request.body())?;
            let segments: Vec<&str> = wanted.segments.iter().map(String::as_str).collect();
            let targets: Vec<&str> = wanted.targets.iter().map(String::as_str).collect();
            let client = caller.client("").await?;
            let id = client.create_drain_job(&segments, &targets, wanted.concurrency).await?;
            json!({ "success": true, "job_id": id.to_string(), "status": status(JobStatus::Created) })
        }
        Change::CancelDrain => {
            let id = job_id(query)?;
            let now = caller.client("").await?.cancel_drain_job(id).await?;
            json!({ "success": true, "job_id": id.to_string(), "status": status(now) })
        }
        Change::RemoveAll => {
            let force = matches!(query.first("force")?.as_deref(), Some("true" | "1"));
            json!({ "success": true, "removed_count": remove_all(&caller, query, force).await? })
        }
    };
    Ok(Page::json(body.to_string()))
}

/// Removes the objects of the tenant that the query names; without one, those that the caller may remove: of an
/// administrator the objects of all tenants.
async fn remove_all(caller: &Caller<'_>, query: Query<'_>, force: bool) -> Result<u64, Failure> {
    let named = query.first("tenant_id")?.unwrap_or_default();
    let client = caller.client(&named).await?;
    if !named.is_empty() {
        return Ok(client.remove_all(force).await?);
    }
    let (mut removed, mut after) = (0, None);
    loop {
        let page = match client.tenant_quotas(after.as_ref(), 0).await {
            Ok(page) => page,
            Err(error) if is_of_one_tenant(error.code()) => {
                return Ok(client.remove_all(force).await?);
            }
            Err(error) => return Err(error.into()),
        };
        for usage in &page.tenants {
            let client = caller.client(usage.tenant.as_str()).await?;
            removed += client.remove_all(force).await?;
        }
        after = page.next_after;
        if after.is_none() {
            return Ok(removed);
        }
    }
}

/// Whether a refusal of the list of tenants says that the master has none, or that its caller has but one.
const fn is_of_one_tenant(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::UnavailableInCurrentMode | ErrorCode::PermissionDenied)
}

/// A browser sends requests of any site, also to an address that only its user reaches. It says which site.
fn refuse_other_sites(request: &Request<Bytes>) -> Result<(), Failure> {
    let Some(origin) = request.headers().get(header::ORIGIN) else { return Ok(()) };
    let site = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    if host.is_some() && host == site.map(|(_, at)| at) {
        return Ok(());
    }
    let why = "the request comes from a page of another site; send it without the header Origin";
    Err(Failure::new(ErrorCode::PermissionDenied, why))
}

/// The request without its body.
fn head_of(request: &Request<Bytes>) -> Request<()> {
    request.clone().map(drop)
}

/// The caller of a change, and its way to the master.
struct Caller<'a> {
    streams: &'a Streams,
    request: &'a Request<()>,
}

impl Caller<'_> {
    /// A client of this master that acts for the tenant; empty for the token's own.
    async fn client(&self, tenant: &str) -> Result<MasterClient, Failure> {
        let mut config = ClientConfig::default();
        config.software = concat!("mc-master-pages/", env!("CARGO_PKG_VERSION")).into();
        if let Some(token) = token(self.request)? {
            let text = String::from_utf8_lossy(token);
            config.token =
                Some(Token::new(&text).map_err(|error| {
                    Failure::new(ErrorCode::Unauthenticated, error.to_string())
                })?);
        }
        config.tenant = tenant.to_owned();
        let from = self.request.extensions().get::<SocketAddr>();
        let from = from.copied().unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)));
        config.environment(Arc::new(Inside { streams: self.streams.clone(), from }));
        // The environment does not look at the address.
        Ok(MasterClient::connect("localhost:1", config).await?)
    }
}

/// The way to the master within its process.
#[derive(Debug)]
struct Inside {
    streams: Streams,
    from: SocketAddr,
}

impl ClientEnvironment for Inside {
    fn connect<'a>(&'a self, _: &'a str) -> Connecting<'a> {
        Box::pin(async {
            let (near, far) = tokio::io::duplex(PIPE);
            self.streams.hand_in(far, self.from)?;
            Ok(Box::new(near) as Box<dyn ByteStream>)
        })
    }

    /// Without, no call is repeated, and none gets lost on this way.
    fn random(&self, _: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl From<RpcError> for Failure {
    fn from(error: RpcError) -> Self {
        match error {
            RpcError::Refused(refusal) => Self::refused(refusal.code, refusal.message),
            error => Self::new(error.code(), error.to_string()),
        }
    }
}

fn invalid(text: impl Into<String>) -> Failure {
    Failure::new(ErrorCode::InvalidParams, text)
}

/// The tenant of a query, which must name one.
fn named_tenant(query: Query<'_>) -> Result<TenantId, Failure> {
    let name = query.required("tenant_id", "/api/v1/tenant_quotas?tenant_id=NAME")?;
    TenantId::new(&name).map_err(|error| invalid(format!("the parameter tenant_id: {error}")))
}

/// The drain job of a query.
fn job_id(query: Query<'_>) -> Result<JobId, Failure> {
    let text = query.required("job_id", "/api/v1/drain_jobs/query?job_id=ID")?;
    text.parse().map_err(|_| invalid(format!("{text:?} is no id of a drain job")))
}

fn object(body: &[u8], example: &str) -> Result<serde_json::Map<String, Value>, Failure> {
    match serde_json::from_slice(body) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(invalid(format!("the body is no JSON object; write {example}"))),
        Err(error) => Err(invalid(format!("the body is no JSON: {error}; write {example}"))),
    }
}

/// Bytes of a quota, of a body such as Mooncake's clients send.
fn quota_of(body: &[u8]) -> Result<u64, Failure> {
    let fields = object(body, r#"{"requested_quota_bytes": 1073741824}"#)?;
    let bytes = fields.get("requested_quota_bytes").and_then(Value::as_u64);
    bytes.filter(|bytes| (1..1 << 63).contains(bytes)).ok_or_else(|| {
        invalid("requested_quota_bytes must be a whole number between 1 and 2^63 - 1")
    })
}

/// The body that asks for a drain.
#[derive(Debug)]
struct Drain {
    segments: Vec<String>,
    targets: Vec<String>,
    concurrency: usize,
}

impl Drain {
    fn parse(body: &[u8]) -> Result<Self, Failure> {
        let fields = object(body, r#"{"segments": ["NAME"]}"#)?;
        let names = |field: &str| -> Result<Vec<String>, Failure> {
            let Some(value) = fields.get(field) else { return Ok(Vec::new()) };
            let names = value.as_array().and_then(|names| {
                names.iter().map(|name| name.as_str().map(str::to_owned)).collect()
            });
            names.ok_or_else(|| invalid(format!("{field} must be a list of names of segments")))
        };
        let concurrency = match fields.get("max_concurrency") {
            None => 0,
            Some(value) => value.as_u64().filter(|n| *n <= u32::MAX.into()).ok_or_else(|| {
                invalid("max_concurrency must be a whole number; 0 leaves it to the master")
            })?,
        };
        let (segments, targets) = (names("segments")?, names("target_segments")?);
        Ok(Self { segments, targets, concurrency: concurrency as usize })
    }
}

/// A tenant's quota and usage, as Mooncake's master tells them.
fn quota(usage: &TenantUsage) -> Value {
    json!({
        "tenant_id": usage.tenant.as_str(),
        "requested_quota_bytes": usage.requested.unwrap_or(0),
        "effective_quota_bytes": usage.effective,
        "charged_bytes": usage.charged,
        "admission_closed": usage.charged >= usage.effective,
        "over_quota": usage.charged > usage.effective,
        "has_explicit_policy": usage.requested.is_some(),
    })
}

/// The status of a drain as Mooncake's master names it.
fn status(status: JobStatus) -> String {
    status.as_str().to_ascii_uppercase()
}

/// `GET /api/v1/tenant_quotas`: all tenants, or the one that the query names.
pub(super) fn tenant_quotas(asked: &Asked<'_>) -> Result<Page, Failure> {
    let state = &asked.master.state;
    let report = state.tenant_quotas().ok_or_else(|| {
        let text = "this master has no tenants; start it with --enable_multi_tenants";
        Failure::new(ErrorCode::UnavailableInCurrentMode, text)
    })?;
    let data = match asked.query.first("tenant_id")?.filter(|name| !name.is_empty()) {
        None => report.tenants.iter().map(quota).collect(),
        Some(_) => {
            let tenant = named_tenant(asked.query)?;
            let usage = state.tenant_quota(&tenant).ok_or_else(|| {
                let text = format!("there is no tenant {tenant}");
                Failure::new(ErrorCode::TenantNotRegistered, text)
            })?;
            quota(&usage)
        }
    };
    Ok(Page::json(json!({ "success": true, "data": data }).to_string()))
}

/// `GET /api/v1/drain_jobs/query`: one drain.
pub(super) fn drain_job(asked: &Asked<'_>) -> Result<Page, Failure> {
    let job = asked.master.state.query_drain_job(job_id(asked.query)?);
    let job: DrainJobInfo = job.map_err(|error| Failure::new(error.code(), error.to_string()))?;
    let now = asked.master.clock.now();
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let at = |time| since_1970.saturating_sub(now - time).as_millis() as u64;
    let body = json!({
        "success": true,
        "job_id": job.id.to_string(),
        "type": 0,
        "type_name": "DRAIN",
        "status": job.status as i32,
        "status_name": status(job.status),
        "created_at_ms_epoch": at(job.created_at),
        "last_updated_at_ms_epoch": at(job.last_updated_at),
        "segments": job.segments,
        "succeeded_units": job.moved,
        "failed_units": job.failed,
        "blocked_units": job.blocked,
        "active_units": job.active,
        "migrated_bytes": job.moved_bytes,
        "message": job.message,
    });
    Ok(Page::json(body.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_that_say_nothing_useful_are_refused() {
        for (body, says) in [
            (&b""[..], "no JSON"),
            (b"[]", "no JSON object"),
            (b"{}", "between 1 and 2^63 - 1"),
            (br#"{"requested_quota_bytes": 0}"#, "between 1"),
            (br#"{"requested_quota_bytes": 9223372036854775808}"#, "between 1"),
            (br#"{"requested_quota_bytes": "1"}"#, "between 1"),
        ] {
            assert!(quota_of(body).unwrap_err().text.contains(says), "{body:?}");
        }
        assert_eq!(quota_of(br#"{"requested_quota_bytes": 7}"#), Ok(7));
        for (body, says) in [
            (&br#"{"segments": "a"}"#[..], "segments must be a list"),
            (br#"{"segments": [1]}"#, "segments must be a list"),
            (br#"{"segments": [], "target_segments": {}}"#, "target_segments must be"),
            (br#"{"segments": [], "max_concurrency": -1}"#, "max_concurrency must be"),
        ] {
            assert!(Drain::parse(body).unwrap_err().text.contains(says), "{body:?}");
        }
        let drain = Drain::parse(br#"{"segments": ["a"], "max_concurrency": 3}"#).unwrap();
        assert_eq!(
            (drain.segments, drain.targets.len(), drain.concurrency),
            (vec!["a".into()], 0, 3)
        );
    }

    #[test]
    fn a_page_of_another_site_changes_nothing() {
        let from = |origin: &str, host: &str| {
            let mut request = Request::builder().uri("/api/v1/remove_all");
            for (name, value) in [("origin", origin), ("host", host)] {
                if !value.is_empty() {
                    request = request.header(name, value);
                }
            }
            refuse_other_sites(&request.body(Bytes::new()).unwrap()).is_ok()
        };
        assert!(from("", "10.0.0.1:9003"));
        assert!(from("http://10.0.0.1:9003", "10.0.0.1:9003"));
        assert!(!from("http://example.org", "10.0.0.1:9003"));
        assert!(!from("null", "10.0.0.1:9003"));
        assert!(!from("http://10.0.0.1:9003", ""));
    }
}
