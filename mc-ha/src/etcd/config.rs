//! Where etcd is, and how a cluster uses it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

/// Longest text with endpoints in bytes.
const MAX_TEXT_LEN: usize = 4096;

/// Most endpoints.
const MAX_ENDPOINTS: usize = 16;

/// Longest name of a cluster in bytes.
const MAX_CLUSTER_ID_LEN: usize = 128;

/// The name of a cluster that is not named.
const DEFAULT_CLUSTER_ID: &str = "default";

/// The beginning of the keys of all clusters.
pub(crate) const PREFIX: &str = "/mc-store";

/// The lease of a leader where none is set: it outlives two elections of etcd's in a row.
const DEFAULT_LEASE: Duration = Duration::from_secs(6);

/// How long etcd, as it is by default, waits for its own leader before it begins to elect another.
const ETCD_ELECTION_TIMEOUT: Duration = Duration::from_secs(1);

/// The shortest and the longest lease of a leader.
const MIN_LEASE: Duration = Duration::from_millis(500);
pub(crate) const MAX_LEASE: Duration = Duration::from_secs(3600);

/// The port of etcd where none is written, in the errors' advice.
const USUAL_PORT: u16 = 2379;

/// How a cluster uses etcd.
///
/// ```
/// use mc_ha::etcd::EtcdConfig;
/// let config: EtcdConfig = "etcd://10.0.0.1:2379;10.0.0.2:2379/blue".parse()?;
/// assert_eq!(config.endpoints().collect::<Vec<_>>(), ["10.0.0.1:2379", "10.0.0.2:2379"]);
/// assert_eq!(config.cluster_id(), "blue");
/// # Ok::<(), mc_ha::etcd::EtcdConfigError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdConfig {
    pub(super) endpoints: Vec<Endpoint>,
    cluster_id: Box<str>,
    pub(super) credentials: Option<(Box<str>, Box<str>)>,
    pub(super) tls: EtcdTls,
    lease_ttl: Duration,
    request_timeout: Option<Duration>,
    history: Option<Duration>,
    compacts_for_others: bool,
}

/// The files of TLS, all in PEM. Used for the endpoints that begin with `https://`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdTls {
    /// The authorities whose certificates etcd may have.
    pub ca: Option<PathBuf>,
    /// The certificate and the key to show to etcd.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name that etcd's certificates are for, where it is not the endpoints' host.
    pub server_name: Option<Box<str>>,
}

/// The address of one member of etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    /// `host:port`.
    pub(super) authority: Box<str>,
    pub(super) encrypted: bool,
}

/// The settings for etcd are not valid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum EtcdConfigError {
    /// There is no endpoint.
    #[error(
        "the list of etcd endpoints is empty; write host:{USUAL_PORT}, several with ';' between them"
    )]
    Empty,
    /// There are too many endpoints, or the text is too long.
    #[error(
        "the list of etcd endpoints is too long; at most {MAX_ENDPOINTS} endpoints in \
         {MAX_TEXT_LEN} bytes are accepted"
    )]
    TooLong,
    /// An endpoint is not one.
    #[error(
        "{endpoint:?} is not an etcd endpoint: {reason}; write host:{USUAL_PORT} or http://host:{USUAL_PORT}"
    )]
    Endpoint {
        /// The endpoint as it was written.
        endpoint: Box<str>,
        /// The fault of the endpoint.
        reason: &'static str,
    },
    /// The name of the cluster is not valid.
    #[error(
        "{cluster_id:?} is not a cluster id; write 1 to {MAX_CLUSTER_ID_LEN} letters, digits, '.', \
         '_' and '-'"
    )]
    ClusterId {
        /// The name as it was written.
        cluster_id: Box<str>,
    },
    /// An endpoint is encrypted, and this build cannot do that.
    #[error("{endpoint} needs TLS, which this build lacks; build mc-ha with the feature \"tls\"")]
    NoTls { endpoint: Box<str> },
    /// An endpoint is encrypted, and no file with its authority is set.
    #[error("{endpoint} needs TLS; set the file with the authority of etcd's certificates")]
    NoAuthority { endpoint: Box<str> },
    /// The lease is too short or too long.
    #[error("the lease of a leader lasts 500 ms to an hour, not {ttl:?}")]
    LeaseTtl {
        /// The duration that was wanted.
        ttl: Duration,
    },
}

impl EtcdConfig {
    /// Settings for a cluster in the etcd behind these endpoints; the other settings have their
    /// defaults. The text is as for [`FromStr`].
    ///
    /// # Errors
    /// [`EtcdConfigError`], which names what is wrong.
    pub fn new(endpoints: &str) -> Result<Self, EtcdConfigError> {
        if endpoints.len() > MAX_TEXT_LEN {
            return Err(EtcdConfigError::TooLong);
        }
        let (list, cluster_id) = match endpoints.trim().strip_prefix("etcd://") {
            None => (endpoints, None),
            // Behind the last endpoint, none of which has a path.
            Some(rest) => match rest.rsplit_once('/') {
                Some((list, cluster_id)) if !list.ends_with('/') && !list.ends_with(':') => {
                    (list, Some(cluster_id).filter(|id| !id.is_empty()))
                }
                _ => (rest, None),
            },
        };
        let written = list.split([';', ',']).map(str::trim).filter(|endpoint| !endpoint.is_empty());
        let endpoints = written.map(str::parse).collect::<Result<Vec<Endpoint>, _>>()?;
        if endpoints.is_empty() {
            return Err(EtcdConfigError::Empty);
        }
        if endpoints.len() > MAX_ENDPOINTS {
            return Err(EtcdConfigError::TooLong);
        }
        let config = Self {
            endpoints,
            cluster_id: DEFAULT_CLUSTER_ID.into(),
            credentials: None,
            tls: EtcdTls::default(),
            lease_ttl: DEFAULT_LEASE,
            request_timeout: None,
            history: Some(Duration::from_secs(300)),
            compacts_for_others: false,
        };
        match cluster_id {
            Some(cluster_id) => config.with_cluster_id(cluster_id),
            None => Ok(config),
        }
    }

    /// Sets the name of the cluster, `default` otherwise. Clusters of different names share an etcd.
    ///
    /// # Errors
    /// [`EtcdConfigError::ClusterId`].
    pub fn with_cluster_id(mut self, cluster_id: &str) -> Result<Self, EtcdConfigError> {
        let good = (1..=MAX_CLUSTER_ID_LEN).contains(&cluster_id.len())
            && cluster_id
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        if !good {
            let cluster_id = cluster_id.chars().take(MAX_CLUSTER_ID_LEN).collect::<String>().into();
            return Err(EtcdConfigError::ClusterId { cluster_id });
        }
        self.cluster_id = cluster_id.into();
        Ok(self)
    }

    /// Sets the user and the password, for an etcd with authentication.
    #[must_use]
    pub fn with_credentials(mut self, user: &str, password: &str) -> Self {
        self.credentials = Some((user.into(), password.into()));
        self
    }

    /// Sets the files of TLS.
    #[must_use]
    pub fn with_tls(mut self, tls: EtcdTls) -> Self {
        self.tls = tls;
        self
    }

    /// Sets how long a leader that has died is believed to live, 6 s otherwise. A lease that is
    /// [short](Self::has_short_lease) ends when etcd elects a leader of its own, although the master
    /// is well. The registrations of members are leases of etcd, which counts whole seconds and
    /// lengthens leases that are shorter than one and a half of its election timeout, that is 2 s
    /// with its defaults.
    ///
    /// # Errors
    /// [`EtcdConfigError::LeaseTtl`] when it is not 500 ms to an hour.
    pub fn with_lease_ttl(mut self, ttl: Duration) -> Result<Self, EtcdConfigError> {
        if !(MIN_LEASE..=MAX_LEASE).contains(&ttl) {
            return Err(EtcdConfigError::LeaseTtl { ttl });
        }
        self.lease_ttl = ttl;
        Ok(self)
    }

    /// Sets how much of the history of its keys etcd keeps, 5 minutes otherwise; `None`: all, or
    /// what etcd's own `--auto-compaction-retention` leaves. The masters have etcd forget the older
    /// part, which would fill its space in months otherwise: etcd can forget the history of all of its
    /// keys only, so that they do it while all keys are those of clusters of masters, unless
    /// [more is allowed](Self::with_compaction_for_others).
    #[must_use]
    pub fn with_history(mut self, history: Option<Duration>) -> Self {
        self.history = history;
        self
    }

    /// Sets whether the masters have etcd forget the history of other users' keys, too; not
    /// otherwise. Those who watch such keys from an old revision, or read it, get an error.
    #[must_use]
    pub fn with_compaction_for_others(mut self, allowed: bool) -> Self {
        self.compacts_for_others = allowed;
        self
    }

    /// Sets how long one member of etcd may take for an answer before another one is asked, a
    /// quarter of the lease otherwise.
    #[must_use]
    pub fn with_request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = Some(timeout);
        self
    }

    /// The endpoints as `host:port`, in their order.
    pub fn endpoints(&self) -> impl Iterator<Item = &str> {
        self.endpoints.iter().map(|endpoint| &*endpoint.authority)
    }

    /// Returns the name of the cluster.
    #[must_use]
    pub fn cluster_id(&self) -> &str {
        &self.cluster_id
    }

    /// Returns the user.
    #[must_use]
    pub fn user(&self) -> Option<&str> {
        self.credentials.as_ref().map(|(user, _)| &**user)
    }

    /// Returns how long a leader that has died is believed to live.
    #[must_use]
    pub fn lease_ttl(&self) -> Duration {
        self.lease_ttl
    }

    /// Returns whether the lease is shorter than four election timeouts of etcd's, by etcd's default
    /// of 1 s. etcd answers nothing for 1 to 2 s when its leader dies, and for up to 4 s when the
    /// votes are split, and a renewal is due every sixth of the lease.
    #[must_use]
    pub fn has_short_lease(&self) -> bool {
        self.lease_ttl < 4 * ETCD_ELECTION_TIMEOUT
    }

    /// Returns how much of its keys' history etcd keeps; `None`: all.
    #[must_use]
    pub fn history(&self) -> Option<Duration> {
        self.history
    }

    /// Returns whether etcd may forget the history of other users' keys.
    #[must_use]
    pub fn compacts_for_others(&self) -> bool {
        self.compacts_for_others
    }

    /// Returns how long one member of etcd may take for an answer.
    #[must_use]
    pub fn request_timeout(&self) -> Duration {
        self.request_timeout.unwrap_or(self.lease_ttl / 4)
    }

    /// Returns what all keys of the cluster begin with.
    pub(crate) fn prefix(&self) -> String {
        format!("{PREFIX}/{}/", self.cluster_id)
    }
}

/// `a:2379;b:2379` or `a:2379,b:2379`, or `etcd://a:2379;b:2379/cluster`, where the cluster may be
/// left out. An endpoint may begin with `http://` or `https://`.
impl FromStr for EtcdConfig {
    type Err = EtcdConfigError;

    fn from_str(text: &str) -> Result<Self, EtcdConfigError> {
        Self::new(text)
    }
}

impl FromStr for Endpoint {
    type Err = EtcdConfigError;

    fn from_str(text: &str) -> Result<Self, EtcdConfigError> {
        let wrong = |reason| EtcdConfigError::Endpoint { endpoint: text.into(), reason };
        let (encrypted, authority) = match text.split_once("://") {
            None => (false, text),
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            Some(_) => return Err(wrong("its scheme is neither http nor https")),
        };
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        if encrypted && !cfg!(feature = "tls") {
            return Err(EtcdConfigError::NoTls { endpoint: text.into() });
        }
        let (host, port) = authority.rsplit_once(':').ok_or_else(|| wrong("it has no port"))?;
        if !port.parse::<u16>().is_ok_and(|port| port != 0) {
            return Err(wrong("its port is not a number from 1 to 65535"));
        }
        let good = match host.strip_prefix('[') {
            Some(ip) => {
                ip.strip_suffix(']').is_some_and(|ip| ip.parse::<std::net::Ipv6Addr>().is_ok())
            }
            None => {
                !host.is_empty()
                    && host
                        .bytes()
                        .all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
            }
        };
        if !good {
            return Err(wrong("its host is neither a name nor an address"));
        }
        Ok(Self { authority: authority.into(), encrypted })
    }
}

/// Without the password.
impl fmt::Debug for EtcdConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdConfig")
            .field("endpoints", &self.endpoints)
            .field("cluster_id", &self.cluster_id)
            .field("user", &self.user())
            .field("lease_ttl", &self.lease_ttl)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints(text: &str) -> Vec<String> {
        let config = EtcdConfig::new(text).unwrap();
        config.endpoints().map(str::to_owned).collect()
    }

    #[test]
    fn endpoints_are_separated_by_semicolons_or_commas() {
        for text in
            ["a:1;b:2", "a:1,b:2", " a:1 ; b:2 ;", "http://a:1;http://b:2/", "etcd://a:1;b:2"]
        {
            assert_eq!(endpoints(text), ["a:1", "b:2"], "{text}");
        }
        assert_eq!(endpoints("etcd://[::1]:2379,10.0.0.1:2379"), ["[::1]:2379", "10.0.0.1:2379"]);
    }

    #[test]
    fn a_cluster_may_be_named_behind_the_endpoints() {
        let named = |text: &str| EtcdConfig::new(text).unwrap().cluster_id().to_owned();
        assert_eq!(named("etcd://a:1;b:2/blue-1"), "blue-1");
        assert_eq!(named("etcd://http://a:1/blue"), "blue");
        for text in ["a:1", "etcd://a:1", "etcd://a:1/", "etcd://http://a:1", "etcd://http://a:1/"]
        {
            assert_eq!(named(text), "default", "{text}");
        }
        assert!(matches!(
            EtcdConfig::new("etcd://a:1/b c"),
            Err(EtcdConfigError::ClusterId { .. })
        ));
    }

    #[test]
    fn what_is_misspelt_is_rejected_with_its_reason() {
        for (text, reason) in [
            ("a", "no port"),
            ("a:x", "not a number"),
            ("a:0", "not a number"),
            ("a:70000", "not a number"),
            (":2379", "neither a name"),
            ("a b:1", "neither a name"),
            ("::1:2379", "neither a name"),
            ("[::g]:2379", "neither a name"),
            ("htp://a:1", "neither http"),
            ("etcd:a:1", "neither a name"),
            ("http://a:1/v3", "not a number"),
            ("a:1;user@b:1", "neither a name"),
            ("", "empty"),
            ("etcd://", "empty"),
            (";,", "empty"),
        ] {
            let error = EtcdConfig::new(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
        let many = "a:1;".repeat(17);
        assert_eq!(EtcdConfig::new(&many), Err(EtcdConfigError::TooLong));
        assert_eq!(EtcdConfig::new(&"a".repeat(5000)), Err(EtcdConfigError::TooLong));
    }

    #[test]
    fn the_default_lease_is_longer_than_four_election_timeouts_of_etcd() {
        let config = EtcdConfig::new("a:1").unwrap();
        assert!(!config.has_short_lease());
        for (millis, is_short) in [(500, true), (3_999, true), (4_000, false)] {
            let config = config.clone().with_lease_ttl(Duration::from_millis(millis)).unwrap();
            assert_eq!(config.has_short_lease(), is_short, "{millis}");
        }
    }

    #[test]
    fn the_password_is_not_shown() {
        let config = EtcdConfig::new("a:1").unwrap().with_credentials("root", "secret");
        assert!(!format!("{config:?}").contains("secret"));
    }
}
