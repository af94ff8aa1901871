//! Real programs as child processes: started, watched, and never left behind.

mod cluster;
mod program;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

pub(crate) use cluster::{Master, Node, ctl, ctl_with_input};
pub(crate) use program::{Finished, Program, binary, run};

/// Longer than anything here takes on a busy machine, shorter than anybody waits.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// A pause between two looks at a condition that nobody announces.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Returns what `look` finds, as soon as it finds something.
///
/// # Panics
/// When it finds nothing within [`DEADLINE`].
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < DEADLINE, "after {DEADLINE:?} still not: {what}");
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// A page of the port at `url`, which is `http://host:port`.
///
/// # Panics
/// When there is none within [`DEADLINE`].
pub(crate) fn page(url: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(url.trim_start_matches("http://")).expect("a listener");
    stream.set_read_timeout(Some(DEADLINE)).expect("a time");
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .expect("a reader");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    body.to_owned()
}

/// `len` bytes that no other seed has at the same place by chance.
pub(crate) fn bytes_of(seed: &str, len: usize) -> Vec<u8> {
    let mut state = seed.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        // splitmix64, public domain, by Sebastiano Vigna
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.extend_from_slice(&(z ^ (z >> 31)).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
