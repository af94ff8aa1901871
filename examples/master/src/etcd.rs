//! The etcd in which the masters elect their leader, from the command line.

use std::path::PathBuf;

use mc_ha::etcd::{EtcdConfig, EtcdConfigError, EtcdTls};
use mc_tls::FileError;

/// Longest file with a password, in bytes.
const MAX_PASSWORD_FILE: usize = 4096;

/// The flags.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "High availability")]
pub(crate) struct EtcdArgs {
    /// Addresses of etcd, with semicolons or commas between them; https://HOST:PORT for those that
    /// speak TLS.
    #[arg(long = "etcd_endpoints", value_name = "HOST:PORT;…", env = "MC_STORE_ETCD_ENDPOINTS")]
    etcd_endpoints: Option<String>,
    /// User of etcd.
    #[arg(long = "etcd_user", value_name = "NAME", env = "MC_STORE_ETCD_USER")]
    etcd_user: Option<String>,
    /// File with the password of --etcd_user.
    #[arg(long = "etcd_password_file", value_name = "PATH", env = "MC_STORE_ETCD_PASSWORD_FILE")]
    etcd_password_file: Option<PathBuf>,
    /// Authorities of etcd's certificates (PEM).
    #[arg(long = "etcd_tls_ca", value_name = "PATH", env = "MC_STORE_ETCD_TLS_CA")]
    etcd_tls_ca: Option<PathBuf>,
    /// Certificate to show to etcd, with its chain (PEM).
    #[arg(long = "etcd_tls_cert", value_name = "PATH", env = "MC_STORE_ETCD_TLS_CERT")]
    etcd_tls_cert: Option<PathBuf>,
    /// The private key of --etcd_tls_cert (PEM, without a pass phrase).
    #[arg(long = "etcd_tls_key", value_name = "PATH", env = "MC_STORE_ETCD_TLS_KEY")]
    etcd_tls_key: Option<PathBuf>,
    /// The name in etcd's certificates, when it is not the host of --etcd_endpoints.
    #[arg(
        long = "etcd_tls_server_name",
        value_name = "NAME",
        env = "MC_STORE_ETCD_TLS_SERVER_NAME"
    )]
    etcd_tls_server_name: Option<String>,
}

/// Why no etcd comes of the flags.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EtcdArgsError {
    #[error(
        "--enable_ha needs --etcd_endpoints: the addresses of etcd, such as \"10.0.0.1:2379;10.0.0.2:2379\""
    )]
    NoEndpoints,
    #[error("--etcd_endpoints: {0}")]
    Endpoints(#[from] EtcdConfigError),
    #[error("{given} needs {lacking}")]
    Half { given: &'static str, lacking: &'static str },
    #[error("--etcd_password_file: {0}")]
    File(#[from] FileError),
    #[error("--etcd_password_file: {} is not text", path.display())]
    NotText { path: PathBuf },
}

impl EtcdArgs {
    /// Returns whether an etcd is named on the command line; the environment may mean clients.
    pub(crate) fn is_named(&self) -> bool {
        self.endpoints().is_some() && std::env::var_os("MC_STORE_ETCD_ENDPOINTS").is_none()
    }

    fn endpoints(&self) -> Option<&str> {
        self.etcd_endpoints.as_deref().filter(|endpoints| !endpoints.trim().is_empty())
    }

    /// The etcd. Reads the password.
    pub(crate) fn config(&self) -> Result<EtcdConfig, EtcdArgsError> {
        let endpoints = self.endpoints().ok_or(EtcdArgsError::NoEndpoints)?;
        let credentials = both(
            ("--etcd_user", &self.etcd_user),
            ("--etcd_password_file", &self.etcd_password_file),
        )?;
        let identity =
            both(("--etcd_tls_cert", &self.etcd_tls_cert), ("--etcd_tls_key", &self.etcd_tls_key))?;
        let mut etcd = EtcdConfig::new(endpoints)?.with_tls(EtcdTls {
            ca: self.etcd_tls_ca.clone(),
            identity: identity.map(|(cert, key)| (cert.clone(), key.clone())),
            server_name: self.etcd_tls_server_name.as_deref().map(Into::into),
        });
        if let Some((user, path)) = credentials {
            let password = mc_tls::read_file(path, MAX_PASSWORD_FILE)?;
            let password = core::str::from_utf8(password.trim_ascii_end())
                .map_err(|_| EtcdArgsError::NotText { path: path.clone() })?;
            etcd = etcd.with_credentials(user, password);
        }
        Ok(etcd)
    }
}

/// The values of two flags that go together, each with its name.
fn both<'a, A, B>(
    one: (&'static str, &'a Option<A>),
    other: (&'static str, &'a Option<B>),
) -> Result<Option<(&'a A, &'a B)>, EtcdArgsError> {
    match (one.1, other.1) {
        (Some(one), Some(other)) => Ok(Some((one, other))),
        (None, None) => Ok(None),
        (Some(_), None) => Err(EtcdArgsError::Half { given: one.0, lacking: other.0 }),
        (None, Some(_)) => Err(EtcdArgsError::Half { given: other.0, lacking: one.0 }),
    }
}
