//! Credentials for the master and the check of the master's own: flags that all clients have.

use std::path::PathBuf;

use mc_rpc::{ClientConfig, Token};
use mc_store::{ClientConfig as Settings, ConfigError};

use crate::entry::UsageError;
use crate::refusal::cause_chain;

/// Longest file with a token, in bytes.
const MAX_SECRET_LEN: usize = 64 << 10;
/// Longest file of etcd's password or certificates, in bytes.
const MAX_PEM_LEN: usize = 1 << 20;

/// The credential flags, to flatten into a program's own. A flag overrides its variable, which
/// overrides the file that `MOONCAKE_CONFIG_PATH` names, see [`Settings::from_env`].
///
/// The files are read for each connection, so that renewed files take effect without a restart.
/// Masters in etcd are found with the credentials for etcd that variables and that file name.
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
    /// The name in the master's certificate, if it differs from the host in the address.
    #[arg(long = "tls_server_name", value_name = "NAME", global = true)]
    pub tls_server_name: Option<String>,
    /// The file with the token to show to the master.
    #[arg(long = "token_file", value_name = "PATH", global = true)]
    pub token_file: Option<PathBuf>,
    /// The tenant to act for [default: the tenant of the token or certificate].
    #[arg(long = "tenant", alias = "tenant_id", value_name = "NAME", global = true)]
    pub tenant: Option<String>,
}

impl CredentialArgs {
    /// Returns the settings for connecting to the master, from the flags and the environment.
    ///
    /// # Errors
    /// [`UsageError`] if a flag lacks another flag that it needs, or a variable has an invalid
    /// value.
    pub fn client_config(&self) -> Result<ClientConfig, UsageError> {
        let said = Settings::from_env().map_err(|error| UsageError::new(error.to_string()))?;
        self.over(said)
    }

    /// Returns the same, over these settings in place of the environment's.
    ///
    /// # Errors
    /// As [`client_config`](Self::client_config).
    pub fn over(&self, said: Settings) -> Result<ClientConfig, UsageError> {
        said.overridden_by(self.settings()).rpc_config().map_err(|error| match error {
            // The settings are flags here.
            ConfigError::Missing { key, needs, .. } => {
                UsageError::new(format!("--{key} needs --{needs}"))
            }
            error => UsageError::new(error.to_string()),
        })
    }

    /// Returns the flags as settings of a client.
    #[must_use]
    pub fn settings(&self) -> Settings {
        let mut flags = Settings::default();
        flags.token_file = self.token_file.clone();
        flags.tenant_id = self.tenant.clone();
        flags.tls_ca = self.tls_ca.clone();
        flags.tls_cert = self.tls_cert.clone();
        flags.tls_key = self.tls_key.clone();
        flags.tls_server_name = self.tls_server_name.clone();
        flags
    }
}

/// Checks that the files can be used that `settings` name for calls to the master and for etcd: the token,
/// the certificates and the password. Blocks.
///
/// # Errors
/// [`UsageError`], which names the setting and the fault.
pub fn check_client_files(settings: &Settings) -> Result<(), UsageError> {
    let rpc = CredentialArgs::default().over(settings.clone())?;
    let fault = |key: &str, error: &dyn std::error::Error| {
        UsageError::new(format!("{key}: {}", cause_chain(error)))
    };
    if let Some(tls) = &rpc.tls {
        let check = tls.connect_config(mc_tls::Protocol::new(&[]));
        check.map_err(|error| fault("tls_ca, tls_cert, tls_key", &error))?;
    }
    if let Some(path) = &settings.token_file {
        let read = mc_tls::read_file(path, MAX_SECRET_LEN);
        let token = read.map_err(|error| fault("token_file", &error))?;
        let token = String::from_utf8_lossy(token.trim_ascii_end()).into_owned();
        Token::new(&token).map_err(|error| fault("token_file", &error))?;
    }
    for (key, path) in [
        ("etcd_password_file", &settings.etcd_password_file),
        ("etcd_tls_ca", &settings.etcd_tls_ca),
        ("etcd_tls_cert", &settings.etcd_tls_cert),
        ("etcd_tls_key", &settings.etcd_tls_key),
    ] {
        if let Some(path) = path {
            mc_tls::read_file(path, MAX_PEM_LEN).map_err(|error| fault(key, &error))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use mc_rpc::tls::ClientTls;

    use super::*;

    #[derive(clap::Parser)]
    struct Args {
        #[command(flatten)]
        credentials: CredentialArgs,
    }

    fn over(said: Settings, args: &[&str]) -> Result<ClientConfig, UsageError> {
        let args = std::iter::once("prog").chain(args.iter().copied()).map(Into::into);
        crate::parse_from::<Args>(args).unwrap().credentials.over(said)
    }

    fn config(args: &[&str]) -> Result<ClientConfig, UsageError> {
        over(Settings::default(), args)
    }

    #[test]
    fn what_no_flag_says_the_environment_says() {
        let variables = |name: &str| {
            let value = match name {
                "MC_STORE_TOKEN_FILE" => "env.token",
                "MOONCAKE_TENANT_ID" => "team-e",
                "MC_STORE_TLS_CA" => "env.pem",
                "MC_RPC_TIMEOUT_MS" => "700",
                _ => return None,
            };
            Some(value.into())
        };
        let said = Settings::from_vars(variables).unwrap();
        let config = over(said.clone(), &["--tenant=team-f"]).unwrap();
        assert_eq!(config.token, Some(Token::from_file("env.token")));
        assert_eq!((config.tls, &*config.tenant), (Some(ClientTls::new("env.pem")), "team-f"));
        assert_eq!(config.call_timeout.as_millis(), 700);
        // A flag may need what a variable says.
        let flags = ["--tls_cert=a.pem", "--tls_key=a.key"];
        assert!(over(said, &flags).unwrap().tls.is_some());
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
        assert_eq!(&*config(&["--tenant_id=team-b"]).unwrap().tenant, "team-b");
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
