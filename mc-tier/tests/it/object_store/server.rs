//! Tiers in the buckets of a SeaweedFS.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mc_testkit::SeaweedFs;
use mc_tier::{ObjectStoreSettings, ObjectStoreTier, TierError};

/// How long the server may take for something.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// The secret of the user who may do everything.
pub(crate) const SECRET: &str = SeaweedFs::SECRET;

/// The server of all tests that leave it as it is; `None` when it cannot be installed.
pub(crate) fn shared() -> Option<Arc<SeaweedFs>> {
    SeaweedFs::shared(env!("CARGO_TARGET_TMPDIR"))
}

/// A server of a test's own.
pub(crate) fn start() -> Option<SeaweedFs> {
    SeaweedFs::start(env!("CARGO_TARGET_TMPDIR"))
}

/// Opens a tier in a bucket, as the administrator.
pub(crate) fn open(server: &SeaweedFs, place: &str) -> ObjectStoreTier {
    open_at(server.s3(), place, SeaweedFs::USER, SECRET).unwrap()
}

/// Settings that give up after seconds.
pub(crate) fn settings(address: SocketAddr, user: &str, secret: &str) -> ObjectStoreSettings {
    let variables = [
        ("AWS_ENDPOINT_URL", format!("http://{address}")),
        ("AWS_ALLOW_HTTP", "true".to_owned()),
        ("AWS_ACCESS_KEY_ID", user.to_owned()),
        ("AWS_SECRET_ACCESS_KEY", secret.to_owned()),
    ];
    let mut settings = ObjectStoreSettings::default();
    settings.s3.variables =
        variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    settings.s3.request_timeout = Duration::from_secs(10);
    settings.s3.retry_for = Duration::from_millis(500);
    settings
}

pub(crate) fn open_at(
    address: SocketAddr,
    place: &str,
    user: &str,
    secret: &str,
) -> Result<ObjectStoreTier, TierError> {
    ObjectStoreTier::open(&format!("s3://{place}"), &settings(address, user, secret))
}
