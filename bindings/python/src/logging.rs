//! The native code's log, on standard error.

use std::io::{self, Write};
use std::sync::Once;

use tracing_subscriber::EnvFilter;

/// Variables that set the log level; the first one that is set decides. The value is a level such as
/// `debug`, or a list of levels by target, `warn,mc_store=debug`.
const LEVELS: [&str; 4] = ["MC_LOG", "MC_STORE_LOG", "MC_LOG_LEVEL", "MC_YLT_LOG_LEVEL"];

/// Writes warnings and errors, or the levels that the environment sets, to standard error, and sends spans
/// where the environment says. Keeps
/// the subscriber of a program that embeds the interpreter and has set one up.
pub(crate) fn set_up() {
    static DONE: Once = Once::new();
    DONE.call_once(|| {
        let asked =
            LEVELS.iter().find_map(|name| std::env::var(name).ok().filter(|v| !v.is_empty()));
        let text = asked.map(|text| text.to_ascii_lowercase().replace("warning", "warn"));
        let filter = EnvFilter::try_new(text.as_deref().unwrap_or("warn"));
        let filter = filter.unwrap_or_else(|_| EnvFilter::new("warn"));
        let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| StandardError);
        // Fails if the program has set up another subscriber, which stays.
        let _ = lines.with_ansi(false).try_init();
        crate::traces::set_up();
    });
}

/// Standard error without the lock that `std::io::stderr` has: a thread that is writing when the
/// process is forked would leave it locked in the child for good. A line is one write.
struct StandardError;

impl Write for StandardError {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // SAFETY: the system only reads the bytes, all of which are valid.
        let written =
            unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
        usize::try_from(written).map_err(|_| io::Error::last_os_error())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
