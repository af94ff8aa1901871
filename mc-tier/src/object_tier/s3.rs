//! The way to a bucket of S3.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::client::{HttpClient, HttpConnector};
use object_store::{BackoffConfig, ClientConfigKey, ClientOptions, ObjectStore, RetryConfig};
use rustls_platform_verifier::BuilderVerifierExt as _;

use super::profile::{self, ProfileError};
use crate::shared_place::BucketPlace;

/// How S3 is reached.
///
/// A request that cannot be sent, that is not answered in time, or that is answered with a failure
/// of the server (5xx, 429) is sent again, after a pause that doubles from 100 ms to at most 5 s,
/// until it was sent [`max_retries`](Self::max_retries) times more or
/// [`retry_for`](Self::retry_for) has passed. So a request fails after `retry_for`,
/// `request_timeout` and 5 s at the latest: about a minute by default. A put aborts its multipart
/// upload after such a failure, which may take as long again.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct S3Settings {
    /// The endpoint, the region, the credentials and more; the endpoint and the region of the URL go before
    /// these. None by default, which is Amazon's
    /// `us-east-1` with the credentials of the machine's role.
    pub variables: S3Variables,
    /// How long a connection may take to be made; 5 s by default.
    pub connect_timeout: Duration,
    /// How long a request may take, its body and that of its answer included; 30 s by default. A
    /// body has at most [`part_len`](crate::ObjectStoreSettings::part_len) bytes.
    pub request_timeout: Duration,
    /// How often a request is sent again; 5 by default.
    pub max_retries: usize,
    /// After which time a request is not sent again; 30 s by default.
    pub retry_for: Duration,
}

impl Default for S3Settings {
    fn default() -> Self {
        Self {
            variables: S3Variables::default(),
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(30),
            max_retries: 5,
            retry_for: Duration::from_secs(30),
        }
    }
}

/// Settings of S3 by the names of environment variables: `AWS_ENDPOINT_URL`, `AWS_REGION`,
/// `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_ALLOW_HTTP` (`true` for
/// an endpoint without TLS) and the others that
/// [`object_store`](https://docs.rs/object_store/0.14/object_store/aws/enum.AmazonS3ConfigKey.html)
/// knows. Names that it does not know are ignored.
///
/// Without a key, the credentials are those of a web identity, of the container or of the machine,
/// as AWS gives them. `Debug` shows the names and none of the values.
#[derive(Clone, Default)]
pub struct S3Variables(Vec<(String, String)>);

impl S3Variables {
    /// Takes the variables of this process that begin with `AWS_`.
    #[must_use]
    pub fn from_env() -> Self {
        let all = std::env::vars_os();
        let all = all.filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        all.filter(|(name, _)| name.starts_with("AWS_")).collect()
    }

    /// Adds what is not among the variables from the files of AWS's own tools: the credentials, unless there
    /// is a key or a web identity, and the region and the endpoint, unless there is one. That is of the profile
    /// that `AWS_PROFILE` names, or of `default`, in `AWS_SHARED_CREDENTIALS_FILE` (`~/.aws/credentials`) and
    /// `AWS_CONFIG_FILE` (`~/.aws/config`). A file that is not there says nothing. Reads files, and so blocks.
    ///
    /// # Errors
    /// [`ProfileError`]: a file cannot be read, or has credentials of a kind that is not supported.
    pub fn with_files(mut self) -> Result<Self, ProfileError> {
        let added = profile::missing(&self.0, std::env::home_dir().as_deref())?;
        self.0.extend(added);
        Ok(self)
    }
}

impl FromIterator<(String, String)> for S3Variables {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(variables: I) -> Self {
        Self(variables.into_iter().collect())
    }
}

impl fmt::Debug for S3Variables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

/// Makes two clients of a bucket: one whose requests remove one object, and one whose requests remove many.
pub(super) fn connect(
    bucket: &BucketPlace,
    settings: &S3Settings,
) -> object_store::Result<[Box<dyn ObjectStore>; 2]> {
    let mut builder = AmazonS3Builder::new();
    for (name, value) in &settings.variables.0 {
        if let Ok(key) = name.to_ascii_lowercase().parse() {
            builder = builder.with_config(key, value);
        }
    }
    if let Some(endpoint) = bucket.endpoint() {
        // Also over an endpoint of all services.
        builder = builder.with_config(AmazonS3ConfigKey::Endpoint, endpoint);
        builder = builder.with_config(AmazonS3ConfigKey::S3Endpoint, endpoint);
    }
    if let Some(region) = bucket.region() {
        builder = builder.with_region(region);
    }
    check_endpoint(&builder)?;
    let retry = RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(5),
            base: 2.0,
        },
        max_retries: settings.max_retries,
        retry_timeout: settings.retry_for,
    };
    let connector = Connector {
        connect_timeout: settings.connect_timeout,
        request_timeout: settings.request_timeout,
    };
    let builder =
        builder.with_bucket_name(bucket.name()).with_retry(retry).with_http_connector(connector);
    // One request removes one object, as every store can.
    let single = builder.clone().with_config(AmazonS3ConfigKey::DisableBulkDelete, "true");
    Ok([Box::new(single.build()?), Box::new(builder.build()?)])
}

/// Returns an error for an endpoint without TLS that is not allowed: otherwise each request would
/// fail for it.
fn check_endpoint(builder: &AmazonS3Builder) -> object_store::Result<()> {
    let allows = AmazonS3ConfigKey::Client(ClientConfigKey::AllowHttp);
    if builder.get_config_value(&allows).is_some_and(|value| is_true(&value)) {
        return Ok(());
    }
    for key in [AmazonS3ConfigKey::Endpoint, AmazonS3ConfigKey::S3Endpoint] {
        if builder.get_config_value(&key).is_some_and(|endpoint| endpoint.starts_with("http:")) {
            let source = "the endpoint has no TLS; use https, or set AWS_ALLOW_HTTP=true".into();
            return Err(object_store::Error::Generic { store: "S3", source });
        }
    }
    Ok(())
}

/// As `object_store` reads a variable.
fn is_true(value: &str) -> bool {
    matches!(&*value.to_ascii_lowercase(), "1" | "true" | "on" | "yes" | "y")
}

/// Makes HTTP clients whose TLS is that of `ring`, whatever provider the process has or lacks.
#[derive(Debug)]
struct Connector {
    connect_timeout: Duration,
    request_timeout: Duration,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let allows_http = options.get_config_value(&ClientConfigKey::AllowHttp);
        let allows_http = allows_http.is_some_and(|value| is_true(&value));
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls(allows_http).map_err(failure)?)
            .https_only(!allows_http)
            .http1_only()
            .connect_timeout(self.connect_timeout)
            .timeout(self.request_timeout)
            .build()
            .map_err(failure)?;
        Ok(HttpClient::new(client))
    }
}

/// TLS with the authorities that the system trusts. Without any on the system, those who use HTTP
/// are served all the same.
fn tls(allows_http: bool) -> Result<rustls::ClientConfig, rustls::Error> {
    let builder = || {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()
    };
    match builder()?.with_platform_verifier() {
        Ok(builder) => Ok(builder.with_no_client_auth()),
        Err(_) if allows_http => {
            let none = rustls::RootCertStore::empty();
            Ok(builder()?.with_root_certificates(none).with_no_client_auth())
        }
        Err(error) => Err(error),
    }
}

fn failure(error: impl core::error::Error + Send + Sync + 'static) -> object_store::Error {
    object_store::Error::Generic { store: "S3", source: error.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_not_shown() {
        let variable = ("AWS_SECRET_ACCESS_KEY".to_owned(), "the secret".to_owned());
        let settings =
            S3Settings { variables: [variable].into_iter().collect(), ..S3Settings::default() };
        let shown = format!("{settings:?}");
        assert!(
            shown.contains("AWS_SECRET_ACCESS_KEY") && !shown.contains("the secret"),
            "{shown}"
        );
    }
}
