//! Which addresses of this process mean anything.

use std::fs::File;
use std::io::{BufRead, BufReader};

/// What may be done with a range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rights {
    /// Whether all of it can be written; all of it can be read anyway.
    pub(super) writable: bool,
}

/// What may be done with the `len` bytes at `address`; `None` when some of them cannot be read.
pub(super) fn rights(address: usize, len: usize) -> Option<Rights> {
    let end = address.checked_add(len)?;
    let maps = BufReader::new(File::open("/proc/self/maps").ok()?);
    let (mut reached, mut writable) = (address, true);
    // Lines are in the order of the addresses.
    for line in maps.split(b'\n') {
        let line = line.ok()?;
        let (from, to, rights) = parse(&line)?;
        if to <= reached {
            continue;
        }
        if from > reached || rights[0] != b'r' {
            return None;
        }
        writable &= rights[1] == b'w';
        reached = to;
        if reached >= end {
            return Some(Rights { writable });
        }
    }
    None
}

/// First address, address behind the last, and rights of a line as
/// `7f1c00000000-7f1c00021000 rw-p …`.
fn parse(line: &[u8]) -> Option<(usize, usize, [u8; 2])> {
    let mut words = line.split(|&byte| byte == b' ');
    let range = std::str::from_utf8(words.next()?).ok()?;
    let (from, to) = range.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    let rights = words.next()?.first_chunk::<2>()?;
    Some((address(from)?, address(to)?, *rights))
}
