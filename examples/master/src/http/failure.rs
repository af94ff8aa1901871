//! Errors as Mooncake's master answers them over HTTP.

use mc_http::{HeaderValue, Page, StatusCode, header};
use mc_types::ErrorCode;

/// A request that is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    code: ErrorCode,
    pub(super) text: String,
    /// Whether this master refused a call, which it answers as the one that leads.
    is_refusal: bool,
}

impl Failure {
    pub(super) fn new(code: ErrorCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into(), is_refusal: false }
    }

    /// A refusal of a call that a page made.
    pub(super) fn refused(code: ErrorCode, text: impl Into<String>) -> Self {
        Self { is_refusal: true, ..Self::new(code, text) }
    }

    /// The name of its cause.
    pub(super) const fn name(&self) -> &'static str {
        self.code.as_str()
    }

    const fn status(&self) -> StatusCode {
        match self.code {
            ErrorCode::InvalidParams | ErrorCode::InvalidKey => StatusCode::BAD_REQUEST,
            ErrorCode::Unauthenticated => StatusCode::UNAUTHORIZED,
            ErrorCode::PermissionDenied => StatusCode::FORBIDDEN,
            ErrorCode::ObjectNotFound
            | ErrorCode::ReplicaIsNotReady
            | ErrorCode::SegmentNotFound
            | ErrorCode::JobNotFound
            | ErrorCode::TenantNotRegistered => StatusCode::NOT_FOUND,
            ErrorCode::UnavailableInCurrentMode | ErrorCode::TenantNotEmpty => StatusCode::CONFLICT,
            ErrorCode::UnavailableInCurrentStatus if self.is_refusal => StatusCode::CONFLICT,
            ErrorCode::UnavailableInCurrentStatus => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The page that says so.
    pub(super) fn page(&self) -> Page {
        let body = serde_json::json!({
            "success": false,
            "error_code": self.code.reference_code(),
            "error_message": format!("{}: {}", self.code.as_str(), self.text),
        });
        let page = Page::json(body.to_string()).status(self.status());
        if self.code == ErrorCode::Unauthenticated {
            return page.header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        page
    }
}
