//! The check of all settings, without a start.

use std::error::Error;

use mc_cli::{Configured, cause_chain};
use mc_store::{ClientBuilder, ClientConfig};
use mc_types::ByteSize;

use crate::args::Args;
use crate::host::{local_host, total_memory};
use crate::settings::settings;

/// Settings that do not go together, or not with this host.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadSettings {
    #[error(
        "--global_segment_size: {size} is more than this host's {total} of memory; contribute less"
    )]
    TooLarge { size: ByteSize, total: ByteSize },
    #[error("global_segment_size")]
    TooSmall(#[from] mc_cli::SegmentTooSmall),
    #[error(
        "--enable_offload needs the directory of a disk; give --ssd_offload_path, or set \
         MOONCAKE_OFFLOAD_FILE_STORAGE_PATH"
    )]
    NoDisk,
    #[error(
        "--keep_segment keeps the objects in this memory for the next process, and --drain_timeout moves \
         them to other nodes; leave one of them out"
    )]
    KeptAndMoved,
}

/// Checks what the parser cannot: settings that need each other, and the files that they name. Connects
/// nowhere. Blocks.
///
/// # Errors
/// One line, which names the setting.
pub(crate) fn check(configured: &Configured<Args>) -> Result<(), String> {
    let (args, config) = (&configured.args, settings(configured));
    let line = |error: &dyn Error| cause_chain(error);
    args.credentials.over(config.clone()).map_err(|error| line(&error))?;
    mc_cli::check_client_files(&config).map_err(|error| line(&error))?;
    check_host(args, &config).map_err(|error| line(&error))?;
    if let Some(host) = &args.host {
        local_host(host, args.data_port).map_err(|error| line(&error))?;
    }
    ClientBuilder::from_config(&config).map(drop).map_err(|error| line(&error))
}

/// Checks the settings against each other and the memory of this host.
pub(crate) fn check_host(args: &Args, config: &ClientConfig) -> Result<(), BadSettings> {
    let size = config.global_segment_size.unwrap_or_default();
    mc_cli::check_segment_size(size)?;
    check_size(size, total_memory())?;
    let has_disk =
        config.ssd_offload_path.as_ref().is_some_and(|path| !path.as_os_str().is_empty());
    if args.enable_offload == Some(true) && !has_disk {
        return Err(BadSettings::NoDisk);
    }
    if config.keep_segment == Some(true) && !args.drain_timeout.is_zero() {
        return Err(BadSettings::KeptAndMoved);
    }
    Ok(())
}

/// Refuses what the host cannot hold: the system may well promise more memory
/// than there is, and kill the process that then uses it.
fn check_size(size: ByteSize, total: Option<ByteSize>) -> Result<(), BadSettings> {
    match total {
        Some(total) if size > total => Err(BadSettings::TooLarge { size, total }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_the_host_has_is_refused() {
        let total = Some(ByteSize::gib(2));
        assert!(check_size(ByteSize::gib(2), total).is_ok());
        assert!(check_size(ByteSize::gib(64), None).is_ok());
        let refused = check_size(ByteSize::gib(3), total).unwrap_err().to_string();
        assert!(refused.contains("2.00 GB of memory; contribute less"), "{refused}");
    }
}
