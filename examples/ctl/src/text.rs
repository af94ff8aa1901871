//! Output for people.

use std::io::{self, Write};
use std::time::Duration;

use crate::error::CtlError;

/// Writes `text` to standard output. A closed pipe is no failure.
pub(crate) fn print(text: &[u8]) -> Result<(), CtlError> {
    print_while_read(text).map(|_| ())
}

/// [`print`], which returns whether the reader is still there.
pub(crate) fn print_while_read(text: &[u8]) -> Result<bool, CtlError> {
    let mut out = io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(CtlError::WriteOutput(error)),
    }
}

/// `1.25 s`, `3 m`: as much as is worth reading.
pub(crate) fn duration(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..600 => format!("{seconds}.{:02} s", time.subsec_millis() / 10),
        seconds @ 600..36_000 => format!("{} m", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short() {
        for (millis, text) in
            [(0, "0.00 s"), (1_259, "1.25 s"), (1_800_000, "30 m"), (86_400_000, "24 h")]
        {
            assert_eq!(duration(Duration::from_millis(millis)), text);
        }
    }
}
