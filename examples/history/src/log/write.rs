//! Writing a log.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use super::{Answer, Call, FORMAT, Line, VERSION};
use crate::{Moment, Operation, Window};

/// Writes a log, each line in one call of the underlying writer.
///
/// Into a [`File`] without a buffer, so that a process which is killed leaves all lines behind that it
/// has written. What only writes whole operations may put a [`BufWriter`](io::BufWriter) between.
#[derive(Debug)]
pub struct LogWriter<W> {
    out: W,
    line: Vec<u8>,
    begun: u64,
}

impl LogWriter<File> {
    /// Creates a log, or replaces the file.
    ///
    /// # Errors
    /// Those of creating the file and writing to it.
    pub fn create(path: &Path) -> io::Result<Self> {
        Self::new(File::create(path)?)
    }
}

impl<W: Write> LogWriter<W> {
    /// Begins a log.
    ///
    /// # Errors
    /// Those of the writer, as of all functions below.
    pub fn new(out: W) -> io::Result<Self> {
        let mut log = Self { out, line: Vec::new(), begun: 0 };
        log.write(&Line::Header { format: FORMAT.to_owned(), version: VERSION })?;
        Ok(log)
    }

    /// Writes the name of a key in the store.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn name(&mut self, key: u32, name: &str) -> io::Result<()> {
        self.write(&Line::Name { key, name: name.to_owned() })
    }

    /// Writes that a call is about to be made. Returns the id with which it [ends](Self::end).
    ///
    /// # Errors
    /// Those of the writer. The call must not be made then.
    pub fn begin(&mut self, client: u32, key: u32, call: Call, at: Moment) -> io::Result<u64> {
        let id = self.begun;
        self.write(&Line::Begin { id, client, key, call, at: at.as_nanos() })?;
        self.begun += 1;
        Ok(id)
    }

    /// Writes the end of a call.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn end(&mut self, id: u64, answer: Answer, at: Moment) -> io::Result<()> {
        self.write(&Line::End { id, answer, at: at.as_nanos() })
    }

    /// Writes an operation in one line.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn operation(&mut self, operation: &Operation) -> io::Result<()> {
        let (call, answer) = Call::of(operation.action, operation.outcome);
        let end = (operation.end != Moment::NEVER).then(|| operation.end.as_nanos());
        self.write(&Line::Operation {
            client: operation.client,
            key: operation.key,
            call,
            answer,
            begin: operation.begin.as_nanos(),
            end,
        })
    }

    /// Writes that the memory of a node was lost within this time.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn loss(&mut self, time: Window) -> io::Result<()> {
        self.write(&Line::Loss { from: time.from.as_nanos(), to: time.to.as_nanos() })
    }

    /// Returns the writer.
    pub fn into_inner(self) -> W {
        self.out
    }

    fn write(&mut self, line: &Line) -> io::Result<()> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, line)?;
        self.line.push(b'\n');
        self.out.write_all(&self.line)
    }
}
