//! Reading logs.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};

use super::{Answer, Call, FORMAT, LINE_LIMIT, Line, Told, VERSION};
use crate::{Moment, Operation, Outcome, Window};

/// The operations of several logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// All operations, log by log.
    pub operations: Vec<Operation>,
    /// Times in which the memory of nodes was lost.
    pub losses: Vec<Window>,
    /// Names of keys in the store, of those that have one.
    pub names: BTreeMap<u32, String>,
    /// Calls that change nothing and failed or did not end, which are no operations.
    pub failed_reads: u64,
    /// Logs whose last line is cut off, because their process was killed.
    pub cut_off: u64,
}

/// A log that cannot be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum LogError {
    /// The file cannot be opened.
    #[error("cannot open {path}", path = .path.display())]
    Open { path: PathBuf, source: io::Error },
    /// The file cannot be read on.
    #[error("cannot read {path} at line {line}", path = .path.display())]
    Read {
        path: PathBuf,
        /// The line's number, from 1.
        line: u64,
        source: io::Error,
    },
    /// A line is not as it must be.
    #[error("{path}:{line}", path = .path.display())]
    Line {
        path: PathBuf,
        /// The line's number, from 1.
        line: u64,
        source: LineFault,
    },
}

/// A line of a log that is not as it must be.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum LineFault {
    /// The first line is not the header of a log.
    #[error("this is no log of mc-history: its first line is not the header")]
    NoHeader,
    /// The log is of another version.
    #[error("the log has version {found}, this program reads version {VERSION}")]
    Version { found: u64 },
    /// The line is too long.
    #[error("the line is longer than {LINE_LIMIT} bytes")]
    TooLong,
    /// The line is not of the format.
    #[error("the line is not of the log's format")]
    Json(#[from] serde_json::Error),
    /// There is a second header.
    #[error("a second header; pass logs one by one, do not join them")]
    SecondHeader,
    /// A call begins with the id of another one that has not ended.
    #[error("call {id} begins twice")]
    BegunTwice { id: u64 },
    /// A call ends that has not begun.
    #[error("call {id} ends without having begun")]
    NotBegun { id: u64 },
    /// A call cannot have this answer.
    #[error("a call of {call:?} has the answer {answer:?}")]
    Contradiction { call: Call, answer: Answer },
    /// Something ends before it begins.
    #[error("the end is earlier than the begin")]
    EndsEarly,
    /// A key has two names.
    #[error("key {key} is {name:?} here and {other:?} before; pass logs of one workload")]
    TwoNames { key: u32, name: String, other: String },
}

/// A call that has not ended yet.
struct Begun {
    client: u32,
    key: u32,
    call: Call,
    begin: Moment,
}

impl History {
    /// Reads a log, and adds what it tells.
    ///
    /// A call without an end has an unknown outcome. A last line that is cut off is left out: it
    /// told a call that was not made yet, or the end of a call, whose outcome is unknown then.
    ///
    /// # Errors
    /// [`LogError`], with file and line.
    pub fn read(&mut self, path: &Path) -> Result<(), LogError> {
        let file =
            File::open(path).map_err(|source| LogError::Open { path: path.to_owned(), source })?;
        self.read_from(BufReader::with_capacity(1 << 20, file), path)
    }

    /// As [`read`](Self::read), of any reader; errors name `path`.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_from(&mut self, mut log: impl BufRead, path: &Path) -> Result<(), LogError> {
        let mut begun: HashMap<u64, Begun> = HashMap::new();
        let (mut line, mut number) = (Vec::new(), 0);
        loop {
            number += 1;
            line.clear();
            let limit = LINE_LIMIT as u64 + 1;
            log.by_ref()
                .take(limit)
                .read_until(b'\n', &mut line)
                .map_err(|source| LogError::Read { path: path.to_owned(), line: number, source })?;
            if line.is_empty() && number > 1 {
                break;
            }
            let is_cut = line.pop_if(|byte| *byte == b'\n').is_none();
            let taken = if line.len() > LINE_LIMIT {
                Err(LineFault::TooLong)
            } else if number == 1 {
                check_header(&line)
            } else {
                match serde_json::from_slice(&line) {
                    Err(_) if is_cut => {
                        self.cut_off += 1;
                        break;
                    }
                    parsed => parsed
                        .map_err(LineFault::Json)
                        .and_then(|parsed| self.take(parsed, &mut begun)),
                }
            };
            taken.map_err(|source| LogError::Line {
                path: path.to_owned(),
                line: number,
                source,
            })?;
        }
        let mut unended: Vec<(u64, Begun)> = begun.into_iter().collect();
        unended.sort_unstable_by_key(|(id, _)| *id);
        for (_, call) in unended {
            // Never a contradiction: each call may have an unknown outcome.
            let _ = self.note(&call, Answer::Unknown, Moment::NEVER);
        }
        Ok(())
    }

    fn take(&mut self, line: Line, begun: &mut HashMap<u64, Begun>) -> Result<(), LineFault> {
        match line {
            Line::Header { .. } => return Err(LineFault::SecondHeader),
            Line::Name { key, name } => {
                let known = self.names.entry(key).or_insert_with(|| name.clone());
                if *known != name {
                    return Err(LineFault::TwoNames { key, name, other: known.clone() });
                }
            }
            Line::Begin { id, client, key, call, at } => {
                let call = Begun { client, key, call, begin: Moment::from_nanos(at) };
                if begun.insert(id, call).is_some() {
                    return Err(LineFault::BegunTwice { id });
                }
            }
            Line::End { id, answer, at } => {
                let call = begun.remove(&id).ok_or(LineFault::NotBegun { id })?;
                self.note(&call, answer, Moment::from_nanos(at))?;
            }
            Line::Operation { client, key, call, answer, begin, end } => {
                let call = Begun { client, key, call, begin: Moment::from_nanos(begin) };
                self.note(&call, answer, end.map_or(Moment::NEVER, Moment::from_nanos))?;
            }
            Line::Loss { from, to } => {
                if to < from {
                    return Err(LineFault::EndsEarly);
                }
                let (from, to) = (Moment::from_nanos(from), Moment::from_nanos(to));
                self.losses.push(Window { from, to });
            }
        }
        Ok(())
    }

    fn note(&mut self, begun: &Begun, answer: Answer, end: Moment) -> Result<(), LineFault> {
        let Begun { client, key, call, begin } = *begun;
        if end < begin {
            return Err(LineFault::EndsEarly);
        }
        match call.told(answer) {
            Told::Operation(action, outcome) => {
                let is_over = end != Moment::NEVER || outcome == Outcome::Unknown;
                if !is_over {
                    return Err(LineFault::Contradiction { call, answer });
                }
                self.operations.push(Operation { client, key, action, outcome, begin, end });
            }
            Told::Nothing => self.failed_reads += 1,
            Told::Contradiction => return Err(LineFault::Contradiction { call, answer }),
        }
        Ok(())
    }
}

/// Checks the first line, of which other versions may have more.
fn check_header(line: &[u8]) -> Result<(), LineFault> {
    let header: serde_json::Value =
        serde_json::from_slice(line).map_err(|_| LineFault::NoHeader)?;
    if header["format"] != FORMAT {
        return Err(LineFault::NoHeader);
    }
    match header["version"].as_u64() {
        Some(version) if version == u64::from(VERSION) => Ok(()),
        Some(found) => Err(LineFault::Version { found }),
        None => Err(LineFault::NoHeader),
    }
}
