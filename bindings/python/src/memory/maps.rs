//! Checks which addresses of this process are mapped, and with which access.

use std::fs::File;
use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter, Read};
use std::os::fd::AsRawFd;

/// The access to a range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rights {
    /// Whether the whole range can be written. It can always be read.
    pub(super) writable: bool,
}

/// Returns the access to the `len` bytes at `address`; `None` if some of them cannot be read, or
/// `len` is zero.
pub(super) fn rights(address: usize, len: usize) -> Option<Rights> {
    let last = address.checked_add(len.checked_sub(1)?)?;
    let mut probe = Probe::new().ok()?;
    let maps = BufReader::new(File::open("/proc/self/maps").ok()?);
    let (mut reached, mut writable) = (address, true);
    // The lines are sorted by address.
    for line in maps.split(b'\n') {
        let line = line.ok()?;
        let (from, to, rights) = parse(&line)?;
        if to <= reached {
            continue;
        }
        if from > reached || rights[0] != b'r' {
            return None;
        }
        if !probe.can_read(reached) || !probe.can_read(last.min(to - 1)) {
            return None;
        }
        writable &= rights[1] == b'w';
        reached = to;
        if reached > last {
            return Some(Rights { writable });
        }
    }
    None
}

/// Reads single bytes through a system call, which returns an error where a load would end this
/// process: device memory may be listed as readable although the processor cannot read it, and so
/// may a mapping beyond the end of its file.
struct Probe {
    reader: PipeReader,
    writer: PipeWriter,
}

impl Probe {
    fn new() -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        Ok(Self { reader, writer })
    }

    fn can_read(&mut self, address: usize) -> bool {
        let byte = std::ptr::with_exposed_provenance(address);
        // SAFETY: the system call accepts any address and checks it.
        let written = unsafe { libc::write(self.writer.as_raw_fd(), byte, 1) };
        // Read back, so that the pipe never fills.
        written == 1 && self.reader.read_exact(&mut [0]).is_ok()
    }
}

/// Parses the first address, the address after the last, and the access of a line such as
/// `7f1c00000000-7f1c00021000 rw-p …`.
fn parse(line: &[u8]) -> Option<(usize, usize, [u8; 2])> {
    let mut words = line.split(|&byte| byte == b' ');
    let range = std::str::from_utf8(words.next()?).ok()?;
    let (from, to) = range.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    let rights = words.next()?.first_chunk::<2>()?;
    Some((address(from)?, address(to)?, *rights))
}
