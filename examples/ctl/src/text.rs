//! Output for people.

use std::io::{self, Write};

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
