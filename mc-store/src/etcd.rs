//! Masters that are found in etcd.

mod directory;
mod lookup;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mc_ha::election::ElectionError;
use mc_ha::etcd::{EtcdConfig, EtcdConfigError, EtcdTls};
use mc_rpc::{Resolve, ResolveError};
use parking_lot::Mutex;

use self::directory::Unknown;
use self::lookup::Lookup;

/// How long one member of etcd may take for an answer before the next one is asked.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// Longest file with a password in bytes.
const MAX_PASSWORD_FILE: usize = 4096;

/// Finds the masters of a cluster in etcd, for masters that are given as
/// `etcd://a:2379;b:2379/cluster`, the leader in front.
///
/// All resolvers of a process that ask for the same cluster share one lookup: a thread with at most
/// one question to etcd under way. The masters that it has found are tried again while none leads,
/// and etcd is asked for them about every half minute then; a process that knows at most one master
/// asks after 250 ms, 500 ms and so on. So etcd, which the masters need to elect a leader, is left
/// alone by the clients meanwhile.
///
/// Every [`Client`](crate::Client) has one for the scheme `etcd`, unless its settings
/// ([`ClientBuilder::rpc`](crate::ClientBuilder::rpc)) have another resolver for it. One of the
/// application's own is needed for an etcd with passwords or TLS:
///
/// ```
/// use std::sync::Arc;
/// use mc_store::{Client, EtcdResolver};
/// let mut rpc = mc_rpc::ClientConfig::default();
/// rpc.resolver("etcd", Arc::new(EtcdResolver::new().credentials("store", "/etc/mc/etcd.password")));
/// let client = Client::builder().master("etcd://10.0.0.1:2379;10.0.0.2:2379/blue").rpc(rpc);
/// ```
///
/// Endpoints that begin with `https://` are asked over TLS, which needs the feature `tls`. Files
/// are read again while no master takes connections.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct EtcdResolver {
    settings: EtcdSettings,
    /// The lookups that it has used, which others may share.
    lookups: Arc<Mutex<Vec<UsedLookup>>>,
}

/// A lookup with the cluster that it is for.
type UsedLookup = (EtcdConfig, Arc<Lookup>);

/// Two are equal when their settings are.
impl PartialEq for EtcdResolver {
    fn eq(&self, other: &Self) -> bool {
        self.settings == other.settings
    }
}

impl Eq for EtcdResolver {}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct EtcdSettings {
    cluster_id: Option<Box<str>>,
    credentials: Option<(Box<str>, PathBuf)>,
    tls: EtcdTls,
}

impl EtcdResolver {
    /// A resolver for an etcd without passwords.
    pub fn new() -> Self {
        Self::default()
    }

    /// The cluster of addresses that name none, `default` otherwise.
    pub fn cluster_id(mut self, cluster_id: impl Into<Box<str>>) -> Self {
        self.settings.cluster_id = Some(cluster_id.into());
        self
    }

    /// The user, and the file with its password, without the white space at the file's end.
    pub fn credentials(
        mut self,
        user: impl Into<Box<str>>,
        password_file: impl Into<PathBuf>,
    ) -> Self {
        self.settings.credentials = Some((user.into(), password_file.into()));
        self
    }

    /// The authorities whose certificates etcd may have (PEM).
    pub fn tls_ca(mut self, ca: impl Into<PathBuf>) -> Self {
        self.settings.tls.ca = Some(ca.into());
        self
    }

    /// The certificate and the private key to show to etcd (PEM).
    pub fn tls_identity(mut self, cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.settings.tls.identity = Some((cert.into(), key.into()));
        self
    }

    /// The name that etcd's certificates are for, where it is not the endpoints' host.
    pub fn tls_server_name(mut self, name: impl Into<Box<str>>) -> Self {
        self.settings.tls.server_name = Some(name.into());
        self
    }

    /// The lookup of this cluster.
    fn lookup(&self, etcd: &EtcdConfig) -> Result<Arc<Lookup>, ElectionError> {
        let mut lookups = self.lookups.lock();
        if let Some((_, lookup)) = lookups.iter().find(|(known, _)| known == etcd) {
            return Ok(Arc::clone(lookup));
        }
        let lookup = Lookup::of(&self.settings, etcd)?;
        lookups.push((etcd.clone(), Arc::clone(&lookup)));
        Ok(lookup)
    }
}

impl EtcdSettings {
    /// The etcd and the cluster that a master's address names.
    fn etcd(&self, target: &str) -> Result<EtcdConfig, EtcdConfigError> {
        let mut etcd = EtcdConfig::new(target)?;
        let names_default = target.trim_end().ends_with("/default");
        let names_cluster = etcd.cluster_id() != "default" || names_default;
        if let Some(cluster_id) = self.cluster_id.as_ref().filter(|_| !names_cluster) {
            etcd = etcd.with_cluster_id(cluster_id)?;
        }
        Ok(etcd.with_tls(self.tls.clone()).with_request_timeout(REQUEST_TIMEOUT))
    }

    /// The same with the password, if there is one.
    fn with_password(&self, etcd: EtcdConfig) -> Result<EtcdConfig, ResolveError> {
        let Some((user, file)) = &self.credentials else { return Ok(etcd) };
        let read = mc_tls::read_file(file, MAX_PASSWORD_FILE).map_err(|error| {
            ResolveError::new("the password for etcd is missing").caused_by(error).lasting()
        })?;
        let password = str::from_utf8(read.trim_ascii_end()).map_err(|error| {
            let message = format!("the password for etcd in {} is not text", file.display());
            ResolveError::new(message).caused_by(error).lasting()
        })?;
        Ok(etcd.with_credentials(user, password))
    }
}

impl Resolve for EtcdResolver {
    fn resolve(&self, target: &str) -> Result<Vec<String>, ResolveError> {
        let misspelt = |error: EtcdConfigError| {
            ResolveError::new(error.to_string()).caused_by(error).lasting()
        };
        let etcd = self.settings.etcd(target).map_err(misspelt)?;
        let lookup = self.lookup(&etcd).map_err(failed)?;
        let etcd = self.settings.with_password(etcd)?;
        let cluster_id = etcd.cluster_id().to_owned();
        lookup.find(etcd).map_err(|unknown| match unknown {
            Unknown::NoMaster => ResolveError::new(format!(
                "no master leads the cluster {cluster_id:?} in etcd now; start its masters, or \
                 name another cluster as in etcd://host:port/cluster"
            )),
            Unknown::Etcd(error) => failed(error),
        })
    }

    fn reached(&self, target: &str, address: &str) {
        let lookup = self.settings.etcd(target).ok().and_then(|etcd| self.lookup(&etcd).ok());
        if let Some(lookup) = lookup {
            lookup.reached(address);
        }
    }
}

/// Makes the client's error of a lookup that failed.
fn failed(error: ElectionError) -> ResolveError {
    // The system may have threads again later.
    let may_pass = matches!(error, ElectionError::Thread { .. } | ElectionError::Closed);
    let is_lasting = !error.is_retryable() && !may_pass;
    let failure = ResolveError::new(error.to_string()).caused_by(error);
    if is_lasting { failure.lasting() } else { failure }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_its_cluster_or_the_settings_do() {
        let of = |resolver: &EtcdResolver, target: &str| {
            resolver.settings.etcd(target).unwrap().cluster_id().to_owned()
        };
        let (plain, blue) = (EtcdResolver::new(), EtcdResolver::new().cluster_id("blue"));
        assert_eq!(of(&plain, "etcd://a:1"), "default");
        assert_eq!(of(&blue, "etcd://a:1;b:2"), "blue");
        assert_eq!(of(&blue, "etcd://a:1/red"), "red");
        assert_eq!(of(&blue, "etcd://a:1/default"), "default");
    }

    #[test]
    fn a_password_that_is_missing_is_named_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("password");
        let resolver = EtcdResolver::new().credentials("store", &file);
        let error = resolver.resolve("etcd://127.0.0.1:1").unwrap_err();
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.contains(file.to_str().unwrap()), "{cause}");
        std::fs::write(&file, "secret \n").unwrap();
        let settings = &resolver.settings;
        let etcd = settings.with_password(settings.etcd("etcd://a:1").unwrap()).unwrap();
        assert_eq!(etcd.user(), Some("store"));
    }
}
