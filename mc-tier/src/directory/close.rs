//! Closing a file with the result of it.
#![allow(unsafe_code, reason = "the standard library drops the result of close")]

use std::fs::File;
use std::io;
use std::os::fd::IntoRawFd as _;

/// Closes a file.
///
/// # Errors
/// What the file system says: errors of bytes that it took and could not write back. The descriptor is
/// closed all the same.
pub(super) fn close(file: File) -> io::Result<()> {
    let descriptor = file.into_raw_fd();
    // SAFETY: `into_raw_fd` has given the descriptor's ownership to this function alone, which does not use
    // it again, whatever the call returns.
    match unsafe { libc::close(descriptor) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
