//! Flags that all servers have: where the settings come from, and the log.

use std::ffi::OsString;

use tracing::{Level, error, info, warn};
use tracing_subscriber::EnvFilter;

use crate::config::{Configured, Reloaded, Reloader};
use crate::logging::{self, Format, LogError};
use crate::shutdown::Hangups;

/// The level when nothing else is said.
const LEVEL: Level = Level::INFO;
/// The setting that [`ServerArgs::set_levels`] changes.
const LEVELS: &str = "log_level";

/// The flags, to flatten into a program's own.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "General")]
pub struct ServerArgs {
    /// File of settings, TOML, YAML or JSON by its name: a map of their names to values. A variable of
    /// the environment overrides the file, and a flag both.
    #[arg(long = "config_path", alias = "config", value_name = "PATH")]
    _config_path: Option<OsString>,
    /// Print every setting with its value and where that comes from, without secrets, and end.
    #[arg(long = "print_config")]
    _print_config: bool,
    /// With --print_config: one JSON object per line.
    #[arg(long = "json", requires = "_print_config")]
    _json: bool,
    /// Read and check all settings and the files of certificates, tokens and the like, and end: with
    /// status 0, or 2 and the fault.
    #[arg(long = "check_config")]
    pub check_config: bool,
    /// Level of the log: trace, debug, info, warn, error or off, or levels by target, as in
    /// info,mc_rpc=debug. The variable MC_LOG says the same.
    #[arg(long = LEVELS, value_name = "LEVELS", default_value = "info", value_parser = parse_levels)]
    log_level: Levels,
    /// Format of the log: text or json. The variable MC_LOG_FORMAT says the same.
    #[arg(long = "log_format", value_name = "NAME", default_value = "text", value_parser = parse_format)]
    log_format: Format,
}

/// Reads the settings again at each SIGHUP, and has those of `live` that have changed take effect by `apply`.
/// Settings that `check` refuses, as those that cannot be read, change nothing. The log has each outcome in
/// a line, and the names of changed settings that need a restart in another one. Never completes.
///
/// Cancelling it loses a change that is under way.
pub async fn reload_on_hangup<P: clap::Parser + Clone + Send + 'static>(
    mut hangups: Hangups,
    mut reloader: Reloader<P>,
    live: &'static [&'static str],
    check: fn(&Configured<P>) -> Result<(), String>,
    mut apply: impl FnMut(&P),
) {
    loop {
        hangups.requested().await;
        let reading = reloader.clone();
        let read = tokio::task::spawn_blocking(move || {
            let reloaded = reading.read(live).map_err(|refusal| refusal.to_string())?;
            check(&reloaded.configured).map(|()| reloaded)
        });
        let Reloaded { configured, changed, needs_restart } = match read.await {
            Ok(Ok(reloaded)) => reloaded,
            Ok(Err(fault)) => {
                error!("SIGHUP: all settings stay as they are: {fault}");
                continue;
            }
            Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
        };
        apply(&configured.args);
        reloader.apply(&changed);
        let shown: Vec<String> =
            changed.iter().map(|it| format!("{}={}", it.name, it.shown())).collect();
        match shown.is_empty() {
            true => info!("SIGHUP: settings read again, none has changed that takes effect now"),
            false => info!("SIGHUP: settings read again: {}", shown.join(", ")),
        }
        if !needs_restart.is_empty() {
            warn!("SIGHUP: needs a restart: {}", needs_restart.join(", "));
        }
    }
}

/// A text that is a level, or a list of levels by target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Levels(Option<String>);

impl Levels {
    fn filter(&self) -> Result<EnvFilter, LogError> {
        logging::filter(self.0.as_deref(), LEVEL)
    }
}

/// Why a text is no levels, or no format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum BadLog {
    #[error("'{part}' is no level; write one such as debug, or target=level")]
    Levels { part: String },
    #[error("write text or json")]
    Format,
}

fn parse_levels(text: &str) -> Result<Levels, BadLog> {
    match logging::filter(Some(text), LEVEL) {
        Ok(_) => Ok(Levels(Some(text.into()))),
        Err(LogError::BadLevels { part, .. }) => Err(BadLog::Levels { part }),
        Err(_) => Err(BadLog::Levels { part: text.into() }),
    }
}

fn parse_format(text: &str) -> Result<Format, BadLog> {
    logging::parse_format(Some(text)).map_err(|_| BadLog::Format)
}

impl ServerArgs {
    /// The settings that [`set_levels`](Self::set_levels) changes.
    pub const LIVE: &'static [&'static str] = &[LEVELS];

    /// Sends this process's logs to standard error, as the flags say.
    ///
    /// # Errors
    /// As [`init_tracing`](crate::init_tracing), but for variables.
    pub fn init_tracing(&self) -> Result<(), LogError> {
        logging::begin(self.log_level.filter()?, self.log_format)
    }

    /// Changes the levels of this process's log to those of these flags.
    pub fn set_levels(&self) {
        if let Ok(filter) = self.log_level.filter() {
            logging::set_levels(filter);
        }
    }
}
