//! Access and encryption, from the command line.

use std::path::PathBuf;
use std::sync::Arc;

use clap::ArgAction;
use mc_rpc::tls::{ClientAuth, ServerTls, TlsError, TlsFiles};
use mc_rpc::{AccessError, AccessFile, Authenticate, ServerConfig};

use crate::http::Gate;

/// The flags.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Access")]
pub(crate) struct AccessArgs {
    /// Listen at this Unix socket too, for processes of this host and user.
    #[arg(long = "rpc_socket", value_name = "PATH")]
    pub(crate) rpc_socket: Option<PathBuf>,
    /// Offer TCP clients of this host a socket over which calls take half the time. Never
    /// with TLS.
    #[arg(
        long = "offer_local_socket",
        default_value_t = true,
        action = ArgAction::Set
    )]
    offer_local_socket: bool,
    /// Access list: a line for each token, certificate or user, with a role and a tenant.
    /// Read again when it changes. Without it every client that can connect has
    /// full access.
    #[arg(long = "access_file", value_name = "PATH")]
    pub(crate) access_file: Option<PathBuf>,
    /// Speak TLS only, with this certificate and its chain (PEM). Read again when it changes.
    #[arg(long = "tls_cert", value_name = "PATH", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key (PEM, without a pass phrase).
    #[arg(long = "tls_key", value_name = "PATH", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Ask clients for certificates of these authorities (PEM). With --access_file a client
    /// may come without one and show a token instead.
    #[arg(long = "tls_client_ca", value_name = "PATH", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
}

impl AccessArgs {
    /// This master's certificate and its key.
    pub(crate) fn certificate(&self) -> Option<(&PathBuf, &PathBuf)> {
        self.tls_cert.as_ref().zip(self.tls_key.as_ref())
    }

    /// Reads the access list. The server and the pages share it, so that both know the same callers
    /// when it is read again.
    pub(crate) fn load_list(&self) -> Result<Option<Arc<dyn Authenticate>>, UnusableFile> {
        let Some(path) = &self.access_file else { return Ok(None) };
        let list: Arc<dyn Authenticate> = Arc::new(AccessFile::load(path)?);
        Ok(Some(list))
    }

    /// Returns the access rule of the pages about objects.
    pub(crate) fn gate(&self, list: Option<&Arc<dyn Authenticate>>) -> Gate {
        match (list, &self.tls_client_ca) {
            (Some(list), _) => Gate::List(Arc::clone(list)),
            (None, Some(_)) => Gate::Closed,
            (None, None) => Gate::Open,
        }
    }

    /// Returns the settings of the server, with this access list. Reads the other files.
    pub(crate) fn server_config(
        &self,
        list: Option<&Arc<dyn Authenticate>>,
    ) -> Result<ServerConfig, UnusableFile> {
        let mut config = ServerConfig::default();
        config.local_socket = self.offer_local_socket;
        config.authenticator = list.map(Arc::clone);
        if let (Some(cert), Some(key)) = (&self.tls_cert, &self.tls_key) {
            let mut files = TlsFiles::new(cert, key);
            if let Some(authorities) = &self.tls_client_ca {
                // Without a list only a certificate identifies a caller.
                let auth = match &self.access_file {
                    Some(_) => ClientAuth::Optional,
                    None => ClientAuth::Required,
                };
                files = files.client_ca(authorities, auth);
            }
            config.tls = Some(Arc::new(ServerTls::load(files)?));
        }
        Ok(config)
    }
}

/// A file that a flag names cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum UnusableFile {
    #[error("--access_file")]
    Access(#[from] AccessError),
    #[error("--tls_cert, --tls_key, --tls_client_ca")]
    Tls(#[from] TlsError),
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn list(dir: &Path, text: &str) -> Option<PathBuf> {
        let path = dir.join("access.list");
        fs::write(&path, text).unwrap();
        Some(path)
    }

    fn refused(flags: &AccessArgs) -> String {
        let error = flags.load_list().and_then(|list| flags.server_config(list.as_ref()));
        let error = error.unwrap_err();
        let cause = std::error::Error::source(&error).unwrap();
        format!("{error}: {cause}")
    }

    #[test]
    fn without_flags_nobody_is_asked() {
        let flags = AccessArgs::default();
        assert!(flags.load_list().unwrap().is_none() && matches!(flags.gate(None), Gate::Open));
        assert!(flags.server_config(None).unwrap().tls.is_none());
        let certified = AccessArgs { tls_client_ca: Some("ca.pem".into()), ..flags };
        assert!(matches!(certified.gate(None), Gate::Closed));
    }

    #[test]
    fn a_list_is_read_and_what_is_wrong_with_it_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let with = |text| AccessArgs { access_file: list(dir.path(), text), ..Default::default() };
        let flags = with("uid:0 admin\n");
        let list = flags.load_list().unwrap();
        assert!(flags.server_config(list.as_ref()).unwrap().authenticator.is_some());
        assert!(matches!(flags.gate(list.as_ref()), Gate::List(_)));
        let said = refused(&with("uid:0 admin\ntoken:s3cret-s3cret-s3cret root\n"));
        assert!(said.starts_with("--access_file: /"), "{said}");
        assert!(said.contains("line 2") && !said.contains("s3cret"), "{said}");
        let missing = Some(dir.path().join("missing"));
        let missing = AccessArgs { access_file: missing, ..Default::default() };
        assert!(refused(&missing).contains("missing"));
    }

    #[test]
    fn certificates_that_cannot_be_used_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("master.pem");
        fs::write(&path, "no certificate").unwrap();
        let flags =
            AccessArgs { tls_cert: Some(path.clone()), tls_key: Some(path), ..Default::default() };
        let said = refused(&flags);
        assert!(said.starts_with("--tls_cert") && said.contains("master.pem"), "{said}");
    }
}
