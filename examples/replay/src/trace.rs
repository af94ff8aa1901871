//! Request traces: one JSON object per line, as published with the Mooncake paper
//! (FAST '25): `{"timestamp": 27, "input_length": 6755, "output_length": 500,
//! "hash_ids": [46, 47]}`. `timestamp` is the arrival in milliseconds after the
//! trace begins; `hash_ids` names the prompt's blocks in order, equal ids for equal
//! prefixes. Other fields are not needed to replay the trace and are passed over.
//!
//! Arrivals must not go backwards: a trace that is out of order is refused, since
//! replaying it as it stands would measure another load than its author recorded.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flate2::bufread::MultiGzDecoder;
use serde::Deserialize;

/// The conversation trace; `data/README.md` says where it comes from.
const BUILTIN: &[u8] = include_bytes!("../data/conversation_trace.jsonl.gz");

/// Longest line, in bytes. The longest of the published traces has 2 KB.
const MAX_LINE: usize = 4 << 20;

/// Most blocks of one request: half a billion tokens at 512 to the block.
const MAX_BLOCKS: usize = 1 << 20;

/// Most blocks and requests of a trace together, which bounds the memory that any
/// file, however well compressed, can make us take to about half a gigabyte.
const MAX_ITEMS: usize = 1 << 26;

/// The first bytes of a gzip file (RFC 1952, section 2.3.1).
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// The content hash of a block and of everything before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(transparent)]
pub struct BlockId(pub u64);

/// One prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// When it arrives, after the trace begins.
    pub arrival: Duration,
    /// Its blocks, from the first token on. A prompt shorter than a block has none.
    pub blocks: Box<[BlockId]>,
}

/// Prompts in the order of their arrival; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    requests: Vec<Request>,
    distinct_blocks: u64,
}

impl Trace {
    /// The first `limit` requests of the trace that this program carries.
    ///
    /// # Errors
    /// None while the program is as it was built.
    pub fn builtin(limit: Option<NonZeroU64>) -> Result<Self, TraceError> {
        Self::read(BUILTIN, limit).map_err(|cause| TraceError { name: TraceName::Builtin, cause })
    }

    /// The first `limit` requests of a file. What follows them is not looked at.
    ///
    /// # Errors
    /// [`TraceError`] names the file, the line, and what is wrong with it.
    pub fn open(path: &Path, limit: Option<NonZeroU64>) -> Result<Self, TraceError> {
        let failed = |cause| TraceError { name: TraceName::File(path.to_owned()), cause };
        let file = File::open(path).map_err(|source| failed(TraceCause::Open { source }))?;
        Self::read(BufReader::with_capacity(1 << 16, file), limit).map_err(failed)
    }

    /// The first `limit` requests of a stream, plain or gzip.
    fn read(mut stream: impl BufRead, limit: Option<NonZeroU64>) -> Result<Self, TraceCause> {
        // A reader may hand out a single byte at first, so the magic is read, not
        // peeked at, and put back in front.
        let mut start = Vec::with_capacity(GZIP_MAGIC.len());
        stream
            .by_ref()
            .take(GZIP_MAGIC.len() as u64)
            .read_to_end(&mut start)
            .map_err(|source| TraceCause::Read { line: 1, source })?;
        let is_gzip = start == GZIP_MAGIC;
        let stream = io::Cursor::new(start).chain(stream);
        if is_gzip {
            Self::read_lines(BufReader::new(MultiGzDecoder::new(stream)), limit)
        } else {
            Self::read_lines(stream, limit)
        }
    }

    fn read_lines(mut stream: impl BufRead, limit: Option<NonZeroU64>) -> Result<Self, TraceCause> {
        let mut requests: Vec<Request> = Vec::new();
        let mut distinct = HashSet::new();
        let (mut line, mut number, mut items) = (Vec::new(), 0, 0);
        while limit.is_none_or(|limit| (requests.len() as u64) < limit.get()) {
            number += 1;
            line.clear();
            let read = stream.by_ref().take(MAX_LINE as u64 + 1).read_until(b'\n', &mut line);
            if read.map_err(|source| TraceCause::Read { line: number, source })? == 0 {
                break;
            }
            if line.len() > MAX_LINE {
                return Err(TraceCause::LineTooLong { line: number });
            }
            if line.trim_ascii().is_empty() {
                continue;
            }
            let request = parse_line(&line, number)?;
            if let Some(before) = requests.last().filter(|last| last.arrival > request.arrival) {
                let (before, arrival) = (before.arrival.as_millis(), request.arrival.as_millis());
                return Err(TraceCause::OutOfOrder { line: number, arrival, before });
            }
            items += 1 + request.blocks.len();
            if items > MAX_ITEMS {
                return Err(TraceCause::TooLarge { line: number });
            }
            distinct.extend(request.blocks.iter().copied());
            requests.push(request);
        }
        if requests.is_empty() {
            return Err(TraceCause::Empty);
        }
        Ok(Self { requests, distinct_blocks: distinct.len() as u64 })
    }

    /// The requests, at least one.
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// The number of distinct blocks in the requests.
    pub fn distinct_blocks(&self) -> u64 {
        self.distinct_blocks
    }

    /// The hits of a memory that forgets nothing, if the requests are served one after the other: the
    /// blocks of each request before the first that no earlier request had.
    pub fn infinite_hits(&self) -> u64 {
        let mut put = HashSet::with_capacity(usize::try_from(self.distinct_blocks).unwrap_or(0));
        let mut hits = 0;
        for request in &self.requests {
            hits += request.blocks.iter().take_while(|block| put.contains(*block)).count();
            put.extend(request.blocks.iter().copied());
        }
        hits as u64
    }
}

fn parse_line(line: &[u8], number: u64) -> Result<Request, TraceCause> {
    #[derive(Deserialize)]
    struct Line {
        timestamp: u64,
        hash_ids: Vec<BlockId>,
    }
    let parsed: Line = serde_json::from_slice(line)
        .map_err(|source| TraceCause::Malformed { line: number, source })?;
    if parsed.hash_ids.len() > MAX_BLOCKS {
        return Err(TraceCause::TooManyBlocks { line: number, blocks: parsed.hash_ids.len() });
    }
    Ok(Request {
        arrival: Duration::from_millis(parsed.timestamp),
        blocks: parsed.hash_ids.into_boxed_slice(),
    })
}

/// A trace that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{name}{cause}")]
pub struct TraceError {
    name: TraceName,
    cause: TraceCause,
}

#[derive(Debug)]
enum TraceName {
    Builtin,
    File(PathBuf),
}

impl fmt::Display for TraceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Builtin => f.write_str("the built-in trace"),
            Self::File(path) => write!(f, "trace {}", path.display()),
        }
    }
}

/// A fault in a trace, worded to follow its name.
#[derive(Debug, thiserror::Error)]
enum TraceCause {
    #[error(": cannot open it: {source}; --trace takes a file of JSON lines, plain or gzip")]
    Open { source: io::Error },
    #[error(", line {line}: cannot read it: {source}")]
    Read { line: u64, source: io::Error },
    #[error(", line {line}: longer than {} MiB; one request is one line", MAX_LINE >> 20)]
    LineTooLong { line: u64 },
    #[error(
        ", line {line}: {}; a line looks like {{\"timestamp\": 27, \"hash_ids\": [46, 47]}}",
        within_line(.source)
    )]
    Malformed { line: u64, source: serde_json::Error },
    #[error(", line {line}: {blocks} hash_ids; a request has at most {MAX_BLOCKS}")]
    TooManyBlocks { line: u64, blocks: usize },
    #[error(", line {line}: timestamp {arrival} comes after {before}; sort the trace by timestamp")]
    OutOfOrder { line: u64, arrival: u128, before: u128 },
    #[error(", line {line}: more than {MAX_ITEMS} blocks up to here; use --limit to replay less")]
    TooLarge { line: u64 },
    #[error(": it holds no request")]
    Empty,
}

/// The parser's message with the column alone: it saw one line, so its line number
/// is always 1.
fn within_line(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let message = text.rsplit_once(" at line ").map_or(text.as_str(), |(message, _)| message);
    format!("{message} at column {}", error.column())
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use proptest::prelude::*;
    use std::io::Write;

    fn read(text: &str) -> Result<Trace, String> {
        Trace::read(text.as_bytes(), None).map_err(|cause| cause.to_string())
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn line(timestamp: u64, ids: &[u64]) -> String {
        format!("{{\"timestamp\": {timestamp}, \"input_length\": 9, \"hash_ids\": {ids:?}}}\n")
    }

    /// Hands out one byte at a time.
    struct Trickle<'a>(&'a [u8]);

    impl Read for Trickle<'_> {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            let len = buf.len().min(1);
            self.0.read(&mut buf[..len])
        }
    }

    #[test]
    fn the_builtin_trace_is_the_published_one() {
        let trace = Trace::builtin(None).unwrap();
        assert_eq!(trace.requests().len(), 12_031);
        let blocks: usize = trace.requests().iter().map(|request| request.blocks.len()).sum();
        assert_eq!((blocks, trace.distinct_blocks()), (288_500, 182_790));
        assert_eq!(trace.requests()[12_030].arrival, Duration::from_millis(3_536_999));
        let some = Trace::builtin(NonZeroU64::new(2)).unwrap();
        assert_eq!(some.requests(), &trace.requests()[..2]);
        assert_eq!(some.distinct_blocks(), 14 + 14);
        assert_eq!((trace.infinite_hits(), some.infinite_hits()), (105_710, 1));
    }

    #[test]
    fn infinite_memory_hits_prefixes_of_earlier_requests() {
        let hits = |requests: &[&[u64]]| {
            let text: String = requests.iter().map(|ids| line(1, ids)).collect();
            read(&text).unwrap().infinite_hits()
        };
        assert_eq!(hits(&[&[1, 2], &[1, 2], &[1, 3, 2], &[3, 1]]), 2 + 1 + 2);
        assert_eq!(hits(&[&[1, 1, 1], &[]]), 0);
    }

    #[test]
    fn malformed_lines_are_named() {
        let good = line(5, &[1, 2]);
        for (bad, says) in [
            ("{", "EOF while parsing"),
            ("[]", "line 2: "),
            ("{\"timestamp\": 6}", "missing field `hash_ids`"),
            ("{\"hash_ids\": []}", "missing field `timestamp`"),
            ("{\"timestamp\": -1, \"hash_ids\": []}", "integer `-1`"),
            ("{\"timestamp\": 6, \"hash_ids\": [\"a\"]}", "string \"a\""),
            ("{\"timestamp\": 6, \"hash_ids\": [18446744073709551616]}", "floating point"),
            ("{\"timestamp\": 6, \"hash_ids\": []} x", "trailing characters"),
            ("{\"timestamp\": 4, \"hash_ids\": []}", "timestamp 4 comes after 5"),
        ] {
            let error = read(&format!("{good}{bad}\n{good}")).unwrap_err();
            assert!(error.starts_with(", line 2: ") && error.contains(says), "{bad}: {error}");
        }
        let error = Trace::read(&b"{\"timestamp\": 1, \"\xff"[..], None).unwrap_err().to_string();
        assert!(error.starts_with(", line 1: "), "{error}");
    }

    #[test]
    fn empty_traces_are_refused_and_blank_lines_passed_over() {
        for text in ["", "\n", " \r\n\n"] {
            assert_eq!(read(text).unwrap_err(), ": it holds no request");
        }
        let trace = read(&format!("\n{}\r\n{}", line(1, &[7]), line(1, &[]).trim_end())).unwrap();
        assert_eq!((trace.requests().len(), trace.distinct_blocks()), (2, 1));
        assert!(read(&format!("\n\n{}{{", line(1, &[]))).unwrap_err().starts_with(", line 4: "));
    }

    #[test]
    fn lines_and_requests_have_bounds() {
        let long = format!("{{\"x\": \"{}\"}}\n", "y".repeat(MAX_LINE));
        assert!(read(&long).unwrap_err().contains("line 1: longer than 4 MiB"));
        let crowded = format!("{{\"timestamp\":0,\"hash_ids\":[0{}]}}", ",0".repeat(MAX_BLOCKS));
        assert!(read(&crowded).unwrap_err().contains("1048577 hash_ids"));
        // Without a newline it could go on for ever.
        let endless = BufReader::new(io::repeat(b'['));
        assert!(matches!(Trace::read(endless, None), Err(TraceCause::LineTooLong { line: 1 })));
    }

    #[test]
    fn compressed_traces_that_expand_without_end_are_refused() {
        let bomb = gzip(&vec![b' '; 3 * MAX_LINE]);
        assert!(bomb.len() < MAX_LINE / 50);
        let error = Trace::read(&bomb[..], None).unwrap_err();
        assert!(matches!(error, TraceCause::LineTooLong { line: 1 }));
    }

    #[test]
    fn damaged_compression_is_an_error_with_its_line() {
        let text: String = (0..2000).map(|at| line(at, &[at])).collect();
        let whole = gzip(text.as_bytes());
        let error = Trace::read(&whole[..whole.len() / 2], None).unwrap_err();
        assert!(matches!(error, TraceCause::Read { line, .. } if line > 1), "{error}");
    }

    #[test]
    fn what_follows_the_limit_is_not_looked_at() {
        let text = format!("{}garbage", line(1, &[1]));
        assert!(Trace::read(text.as_bytes(), NonZeroU64::new(1)).is_ok());
        assert!(Trace::read(text.as_bytes(), NonZeroU64::new(2)).is_err());
    }

    proptest! {
        #[test]
        fn any_trace_is_read_back(
            mut requests in prop::collection::vec((0u64..1 << 40, prop::collection::vec(any::<u64>(), 0..20)), 1..50)
        ) {
            requests.sort_by_key(|request| request.0);
            let text: String = requests.iter().map(|(at, ids)| line(*at, ids)).collect();
            let trace = read(&text).unwrap();
            let expected: Vec<Request> = requests
                .into_iter()
                .map(|(at, ids)| Request {
                    arrival: Duration::from_millis(at),
                    blocks: ids.into_iter().map(BlockId).collect(),
                })
                .collect();
            prop_assert_eq!(trace.requests(), &expected[..]);
            let compressed = gzip(text.as_bytes());
            prop_assert_eq!(&Trace::read(&compressed[..], None).unwrap(), &trace);
            let trickle = BufReader::with_capacity(1, Trickle(&compressed));
            prop_assert_eq!(&Trace::read(trickle, None).unwrap(), &trace);
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), packed: bool) {
            let bytes = if packed { gzip(&bytes) } else { bytes };
            let _ = Trace::read(&bytes[..], None);
        }
    }
}
