//! A ZeroMQ SUB socket of a few lines, on a thread of its own.

use std::io::{self, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::error::BenchError;

/// The place of the array of events in a batch: after the array's head and a time of nine bytes.
const EVENTS_AT: usize = 10;

/// The speed of a subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// Reads every message at once; a gap in the numbers is an error.
    Eager,
    /// Sleeps a millisecond after each message.
    Slow,
    /// Subscribes, and reads nothing.
    Stalled,
}

/// A subscription to everything. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Subscriber {
    received: Arc<AtomicU64>,
    stream: TcpStream,
    reader: Option<JoinHandle<Result<(), BenchError>>>,
}

impl Subscriber {
    pub(super) fn start(endpoint: &str, pace: Pace) -> Result<Self, BenchError> {
        let address = endpoint.trim_start_matches("tcp://");
        let mut stream = TcpStream::connect(address)?;
        let mut hello = b"\xff\0\0\0\0\0\0\0\0\x7f\x03\0NULL".to_vec();
        hello.resize(64, 0);
        // The command READY, then the subscription to every topic.
        hello.extend_from_slice(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB\0\x01\x01");
        stream.write_all(&hello)?;
        let received = Arc::new(AtomicU64::new(0));
        let reader = if pace == Pace::Stalled {
            None
        } else {
            let (stream, received) = (stream.try_clone()?, Arc::clone(&received));
            Some(thread::spawn(move || read(stream, pace, &received)))
        };
        Ok(Self { received, stream, reader })
    }

    /// Events received so far.
    ///
    /// # Errors
    /// The connection ended, or a message is missing.
    pub(super) fn received(&mut self) -> Result<u64, BenchError> {
        if let Some(reader) = self.reader.take_if(|reader| reader.is_finished()) {
            reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok(self.received.load(Ordering::Relaxed))
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        // It fails if the publisher has closed the connection, which ends the reader too.
        let _ = self.stream.shutdown(Shutdown::Both);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

fn read(stream: TcpStream, pace: Pace, received: &AtomicU64) -> Result<(), BenchError> {
    let mut stream = BufReader::with_capacity(1 << 16, stream);
    stream.read_exact(&mut [0; 64])?;
    let mut frame = Vec::new();
    read_frame(&mut stream, &mut frame)?;
    let mut last: Option<u64> = None;
    loop {
        // The topic, the number, the batch.
        read_frame(&mut stream, &mut frame)?;
        read_frame(&mut stream, &mut frame)?;
        let number = <[u8; 8]>::try_from(&*frame).map(u64::from_be_bytes);
        let number = number.map_err(|_| BenchError::wrong("subscribing", "a number's length"))?;
        read_frame(&mut stream, &mut frame)?;
        let is_next = last.is_none_or(|last| match pace {
            Pace::Eager => number == last + 1,
            Pace::Slow | Pace::Stalled => number > last,
        });
        if !is_next {
            return Err(BenchError::wrong("subscribing", format!("{number} after {last:?}")));
        }
        last = Some(number);
        received.fetch_add(events(&frame)?, Ordering::Relaxed);
        if pace == Pace::Slow {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The events of a batch.
fn events(batch: &[u8]) -> Result<u64, BenchError> {
    match batch.get(EVENTS_AT..) {
        Some([short @ 0x90..=0x9f, ..]) => Ok(u64::from(short & 0xf)),
        Some([0xdc, high, low, ..]) => Ok(u16::from_be_bytes([*high, *low]).into()),
        _ => Err(BenchError::wrong("subscribing", "a batch without an array of events")),
    }
}

fn read_frame(stream: &mut impl Read, frame: &mut Vec<u8>) -> io::Result<()> {
    let mut flags = [0];
    stream.read_exact(&mut flags)?;
    let len = if flags[0] & 2 == 0 {
        let mut len = [0];
        stream.read_exact(&mut len)?;
        u64::from(len[0])
    } else {
        let mut len = [0; 8];
        stream.read_exact(&mut len)?;
        u64::from_be_bytes(len)
    };
    frame.clear();
    if stream.take(len).read_to_end(frame)? as u64 == len {
        return Ok(());
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}
