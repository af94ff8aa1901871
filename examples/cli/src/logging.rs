//! Logs on standard error.

use std::io::{self, IsTerminal};
use std::sync::OnceLock;

use tracing::Level;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::log_limit::LIMIT;
use crate::log_queue;

/// Environment variable that sets the levels.
const LEVELS: &str = "MC_LOG";
/// The variable for it that Mooncake's programs read, heeded when there is no other.
const MOONCAKE_LEVEL: &str = "MC_YLT_LOG_LEVEL";
/// Environment variable that sets the format.
const FORMAT: &str = "MC_LOG_FORMAT";
/// Level names of other logging libraries that operators type, and ours.
const SYNONYMS: [(&str, &str); 2] = [("warning", "warn"), ("critical", "error")];

/// Sends this process's logs to standard error, at `default` unless `MC_LOG` says
/// otherwise, as JSON lines if `MC_LOG_FORMAT` is `json`.
///
/// `MC_LOG` is a level (`trace`, `debug`, `info`, `warn` or `warning`, `error` or
/// `critical`, `off`) or a list of levels by target, `info,mc_store=debug`.
/// `MC_YLT_LOG_LEVEL` counts for it when it is not set. Servers pass [`Level::INFO`], tools [`Level::WARN`].
///
/// # Errors
/// [`LogError`] when a variable cannot be understood, or when the process has a
/// subscriber already.
///
/// Logging never waits for a reader of standard error, and works without one: unread lines
/// are dropped after the first mebibyte, counted, and their number is logged later. Each place in the code
/// writes a hundred lines at a time and then ten a second; how many more there were is logged, too. Lines of the target
/// `audit` and those at the levels debug and trace have no limit.
pub fn init_tracing(default: Level) -> Result<(), LogError> {
    let levels = match variable(LEVELS)? {
        None => variable(MOONCAKE_LEVEL)?,
        levels => levels,
    };
    let format = variable(FORMAT)?;
    begin(filter(levels.as_deref(), default)?, parse_format(format.as_deref())?)
}

/// The way to change the levels of this process.
type SetLevels = Box<dyn Fn(EnvFilter) -> bool + Send + Sync>;

static SET_LEVELS: OnceLock<SetLevels> = OnceLock::new();

/// Sends the last spans, writes what is to be said of the log, and waits until all is written, for half a second at
/// most.
pub(crate) fn end() {
    #[cfg(feature = "otel")]
    crate::traces::end();
    LIMIT.report();
    log_queue::flush_log();
}

/// Begins to log with these levels in this format.
pub(crate) fn begin(filter: EnvFilter, format: Format) -> Result<(), LogError> {
    let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(log_queue::begin().map_err(|source| LogError::NoThread(source.to_string()))?)
        // A line that could not be written is no reason to write another one, or to end.
        .log_internal_errors(false)
        .with_ansi(colours);
    let (result, set): (_, SetLevels) = match format {
        Format::Text => {
            let subscriber = subscriber.with_filter_reloading();
            let handle = subscriber.reload_handle();
            let subscriber = subscriber.finish().with(LIMIT.clone());
            (subscriber.try_init(), Box::new(move |filter| handle.reload(filter).is_ok()))
        }
        Format::Json => {
            let subscriber = subscriber.json().with_ansi(false).with_filter_reloading();
            let handle = subscriber.reload_handle();
            let subscriber = subscriber.finish().with(LIMIT.clone());
            (subscriber.try_init(), Box::new(move |filter| handle.reload(filter).is_ok()))
        }
    };
    result.map_err(|_| LogError::AlreadyInitialised)?;
    SET_LEVELS.set(set).map_err(|_| LogError::AlreadyInitialised)?;
    #[cfg(feature = "otel")]
    crate::traces::begin();
    Ok(())
}

/// Changes the levels of this process's log. Does nothing before [`begin`].
pub(crate) fn set_levels(filter: EnvFilter) {
    if let Some(set) = SET_LEVELS.get() {
        // It fails only when the subscriber is gone, which is never: it is the process's own.
        let _ = set(filter);
    }
}

/// Why logs cannot be set up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum LogError {
    /// `MC_LOG` is no level and no list of levels.
    #[error("MC_LOG='{text}' is refused at '{part}'; write a level such as debug, or target=level")]
    BadLevels {
        text: String,
        /// The part that is wrong.
        part: String,
    },
    /// `MC_LOG_FORMAT` is neither `text` nor `json`.
    #[error("MC_LOG_FORMAT='{text}' is refused; write text or json")]
    BadFormat { text: String },
    /// The system refused the thread that writes the log.
    #[error("the thread that writes the log cannot be started: {0}")]
    NoThread(String),
    /// The process logs somewhere already.
    #[error("logs were set up twice in this process")]
    AlreadyInitialised,
}

/// The format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Format {
    #[default]
    Text,
    Json,
}

/// The variable's value; an empty one counts as unset.
fn variable(name: &str) -> Result<Option<String>, LogError> {
    match std::env::var(name) {
        Ok(text) if text.trim().is_empty() => Ok(None),
        Ok(text) => Ok(Some(text)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(text)) => {
            let text = text.to_string_lossy().into_owned();
            Err(if name == LEVELS {
                LogError::BadLevels { part: text.clone(), text }
            } else {
                LogError::BadFormat { text }
            })
        }
    }
}

pub(crate) fn parse_format(text: Option<&str>) -> Result<Format, LogError> {
    match text.map(str::trim) {
        None | Some("text") => Ok(Format::Text),
        Some("json") => Ok(Format::Json),
        Some(text) => Err(LogError::BadFormat { text: text.into() }),
    }
}

/// The levels of a text, which change nothing of `default` when there is none.
pub(crate) fn filter(text: Option<&str>, default: Level) -> Result<EnvFilter, LogError> {
    let Some(text) = text else { return Ok(EnvFilter::new(default.as_str())) };
    let mut filter = EnvFilter::new(default.as_str());
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let refused = || LogError::BadLevels { text: text.into(), part: part.into() };
        // A lone word is a level. The filter would take an unknown one for a
        // target and then log nothing else, which is never wanted when a level is mistyped.
        let directive = match part.split_once('=') {
            None => level(part).ok_or_else(refused)?.into(),
            Some((target, name)) => format!("{target}={}", level(name).ok_or_else(refused)?),
        };
        filter = filter.add_directive(directive.parse().map_err(|_| refused())?);
    }
    Ok(filter)
}

/// Our name of a level.
fn level(name: &str) -> Option<&'static str> {
    const LEVELS: [&str; 6] = ["trace", "debug", "info", "warn", "error", "off"];
    let name = name.trim().to_ascii_lowercase();
    let ours = SYNONYMS.iter().find(|(synonym, _)| *synonym == name).map(|(_, ours)| *ours);
    ours.or_else(|| LEVELS.into_iter().find(|level| *level == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Set for the process that floods its log.
    const FLOODS: &str = "MC_TEST_LOG_FLOOD";

    #[test]
    fn a_program_says_at_its_end_what_it_left_out() {
        if std::env::var_os(FLOODS).is_some() {
            init_tracing(Level::INFO).unwrap();
            (0..1_000).for_each(|n| tracing::info!(n, "flood"));
            return end();
        }
        let name = "logging::tests::a_program_says_at_its_end_what_it_left_out";
        let this = std::env::current_exe().unwrap();
        let mut child = std::process::Command::new(this);
        let ended = child.args(["--exact", name, "--nocapture"]).env(FLOODS, "1").output().unwrap();
        let text = String::from_utf8(ended.stderr).unwrap();
        let told = text.lines().find(|line| line.contains("lines of the log were left out"));
        let told = told.unwrap_or_else(|| panic!("nothing is told in {text}"));
        let left_out: usize = told
            .split_whitespace()
            .find_map(|word| word.strip_prefix("lines=")?.parse().ok())
            .unwrap_or_else(|| panic!("no number in {told}"));
        assert_eq!(text.matches("flood").count() + left_out, 1_000, "{text}");
    }

    #[test]
    fn levels_are_words_or_lists() {
        for (text, shown) in [
            (None, "info"),
            (Some("debug"), "debug"),
            (Some("Warning"), "warn"),
            (Some("critical"), "error"),
            (Some("warn, mc_store=debug"), "mc_store=debug,warn"),
            (Some("mc_store=trace"), "mc_store=trace,info"),
        ] {
            assert_eq!(filter(text, Level::INFO).unwrap().to_string(), shown, "{text:?}");
        }
    }

    #[test]
    fn mistyped_levels_are_refused() {
        for (text, part) in [("verbose", "verbose"), ("info,a=loud", "a=loud"), ("a=b=c", "a=b=c")]
        {
            let expected = LogError::BadLevels { text: text.into(), part: part.into() };
            assert_eq!(filter(Some(text), Level::INFO).unwrap_err(), expected);
        }
    }

    #[test]
    fn formats_are_two() {
        assert_eq!(parse_format(None), Ok(Format::Text));
        assert_eq!(parse_format(Some("json")), Ok(Format::Json));
        assert!(parse_format(Some("xml")).is_err());
    }

    #[test]
    fn a_second_set_up_is_an_error() {
        init_tracing(Level::ERROR).unwrap();
        assert_eq!(init_tracing(Level::ERROR), Err(LogError::AlreadyInitialised));
    }
}
