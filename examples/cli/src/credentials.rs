//! What a program shows a master, and how it knows the master: flags that all clients have.

use std::path::PathBuf;

use mc_rpc::tls::ClientTls;
use mc_rpc::{ClientConfig, Token};

use crate::entry::UsageError;

/// The flags, to be flattened into a program's own.
///
/// The files are read at each connection, so that renewed ones are used without a restart.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Access")]
pub struct CredentialArgs {
    /// Speak TLS with the master, and trust certificates of these authorities (PEM).
    #[arg(long = "tls_ca", value_name = "PATH", global = true)]
    pub tls_ca: Option<PathBuf>,
    /// The certificate to show to the master, with its chain (PEM).
    #[arg(long = "tls_cert", value_name = "PATH", global = true)]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's private key (PEM, without a pass phrase).
    #[arg(long = "tls_key", value_name = "PATH", global = true)]
    pub tls_key: Option<PathBuf>,
    /// The name in the master's certificate, when it is not the one in its address.
    #[arg(long = "tls_server_name", value_name = "NAME", global = true)]
    pub tls_server_name: Option<String>,
    /// The file of the token to show to the master.
    #[arg(long = "token_file", value_name = "PATH", global = true)]
    pub token_file: Option<PathBuf>,
    /// The tenant to act for [default: the one that the token or certificate is for].
    #[arg(long = "tenant", value_name = "NAME", global = true)]
    pub tenant: Option<String>,
}

impl CredentialArgs {
    /// How to connect to the master.
    ///
    /// # Errors
    /// [`UsageError`] when a flag is given without another one that it needs.
    pub fn client_config(&self) -> Result<ClientConfig, UsageError> {
        let mut config = ClientConfig::default();
        config.tls = self.tls()?;
        config.token = self.token_file.as_ref().map(Token::from_file);
        config.tenant = self.tenant.clone().unwrap_or_default();
        Ok(config)
    }

    fn tls(&self) -> Result<Option<ClientTls>, UsageError> {
        let identity = match (&self.tls_cert, &self.tls_key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (Some(_), None) => return Err(UsageError::new("--tls_cert needs --tls_key")),
            (None, Some(_)) => return Err(UsageError::new("--tls_key needs --tls_cert")),
            (None, None) => None,
        };
        let Some(ca) = &self.tls_ca else {
            if identity.is_some() || self.tls_server_name.is_some() {
                return Err(UsageError::new(
                    "--tls_cert and --tls_server_name need --tls_ca, by which to know the master",
                ));
            }
            return Ok(None);
        };
        let mut tls = ClientTls::new(ca);
        if let Some((cert, key)) = identity {
            tls = tls.identity(cert, key);
        }
        if let Some(name) = &self.tls_server_name {
            tls = tls.server_name(name.as_str());
        }
        Ok(Some(tls))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Args {
        #[command(flatten)]
        credentials: CredentialArgs,
    }

    fn config(args: &[&str]) -> Result<ClientConfig, UsageError> {
        let args = std::iter::once("prog").chain(args.iter().copied()).map(Into::into);
        crate::parse_from::<Args>(args).unwrap().credentials.client_config()
    }

    #[test]
    fn flags_reach_the_client() {
        let none = config(&[]).unwrap();
        assert!(none.tls.is_none() && none.token.is_none() && none.tenant.is_empty());
        let all = config(&[
            "--tls-ca=ca.pem",
            "--tls_cert=a.pem",
            "--tls_key=a.key",
            "--tls_server_name=master.example",
            "--token_file=a.token",
            "--tenant=team-a",
        ])
        .unwrap();
        let tls = ClientTls::new("ca.pem").identity("a.pem", "a.key").server_name("master.example");
        assert_eq!((all.tls, &*all.tenant), (Some(tls), "team-a"));
        assert_eq!(all.token, Some(Token::from_file("a.token")));
    }

    #[test]
    fn flags_that_need_others_say_so() {
        for (args, needs) in [
            (&["--tls_ca=a", "--tls_cert=a"][..], "--tls_key"),
            (&["--tls_ca=a", "--tls_key=a"], "--tls_cert"),
            (&["--tls_cert=a", "--tls_key=a"], "--tls_ca"),
            (&["--tls_server_name=a"], "--tls_ca"),
        ] {
            assert!(config(args).unwrap_err().to_string().contains(needs), "{args:?}");
        }
    }
}
