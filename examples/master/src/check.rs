//! The check of all settings, without a start.

use std::error::Error;

use mc_cli::cause_chain;
use mc_rpc::Token;

use crate::args::Args;

/// Longest file with a token, in bytes.
const MAX_TOKEN_FILE: usize = 64 << 10;

/// Checks what the parser cannot: settings that need each other, and the files that they name. Makes nothing
/// and connects nowhere. Blocks.
///
/// # Errors
/// One line, which names the setting.
pub(crate) fn check(args: &Args) -> Result<(), String> {
    let line = |error: &dyn Error| cause_chain(error);
    args.master_config().validate().map_err(|error| line(&error))?;
    let list = args.access.load_list().map_err(|error| line(&error))?;
    args.access.server_config(list.as_ref()).map_err(|error| line(&error))?;
    args.storage.check(args.cluster.cluster_id()).map_err(|error| line(&error))?;
    args.c2c.settings().map_err(|error| line(&error))?;
    args.cluster.check(args.rpc_address()).map_err(|error| line(&error))?;
    if let Some(path) = args.cluster.token_file() {
        let read = mc_tls::read_file(path, MAX_TOKEN_FILE);
        let token = read.map_err(|error| format!("--ha_token_file: {}", line(&error)))?;
        let token = String::from_utf8_lossy(token.trim_ascii_end()).into_owned();
        Token::new(&token).map_err(|error| format!("--ha_token_file: {error}"))?;
    }
    if let Some(tls) = args.cluster.client_tls(&args.access) {
        let check = tls.connect_config(mc_tls::Protocol::new(&[]));
        check.map_err(|error| format!("--ha_tls_ca: {}", line(&error)))?;
    }
    Ok(())
}
