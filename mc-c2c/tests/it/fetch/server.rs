//! A small HTTP server, which does what a test says.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

/// The most bytes of a request's head.
const MAX_HEAD: u64 = 64 << 10;

/// A client's request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) path: String,
    headers: Vec<(String, String)>,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name))?;
        Some(&found.1)
    }

    /// The first byte that is asked for, and the one behind the last.
    pub(crate) fn range(&self) -> Option<(u64, Option<u64>)> {
        let (start, last) = self.header("range")?.strip_prefix("bytes=")?.split_once('-')?;
        Some((start.parse().unwrap(), last.parse().ok().map(|last: u64| last + 1)))
    }

    fn read(reader: &mut impl BufRead) -> Option<Self> {
        let mut head = reader.take(MAX_HEAD);
        let mut line = || {
            let mut line = String::new();
            head.read_line(&mut line).ok().filter(|read| *read > 0)?;
            Some(line.trim_end().to_owned())
        };
        let path = line()?.split(' ').nth(1)?.to_owned();
        let mut headers = Vec::new();
        loop {
            let line = line()?;
            match line.split_once(": ") {
                Some((name, value)) => headers.push((name.to_owned(), value.to_owned())),
                None => return Some(Self { path, headers }),
            }
        }
    }
}

/// The way a response ends after its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The next request.
    Keep,
    /// The connection is closed.
    Close,
    /// Nothing, until the client closes the connection.
    Hang,
    /// The same, and nothing is sent before either.
    Silent,
}

/// An answer. Its length is announced unless `headers` have another.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<String>,
    pub(crate) body: Vec<u8>,
    pub(crate) end: End,
}

impl Reply {
    pub(crate) fn status(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new(), end: End::Keep }
    }

    pub(crate) fn ok(body: impl Into<Vec<u8>>) -> Self {
        Self { body: body.into(), ..Self::status(200) }
    }

    pub(crate) fn redirect(target: &str) -> Self {
        Self::status(302).header(&format!("Location: {target}"))
    }

    pub(crate) fn header(mut self, line: &str) -> Self {
        self.headers.push(line.to_owned());
        self
    }

    pub(crate) fn end(mut self, end: End) -> Self {
        self.end = end;
        self
    }

    /// Announces the whole body, sends the first bytes of it and ends so.
    pub(crate) fn cut(mut self, sent: usize, end: End) -> Self {
        self = self.announced();
        self.body.truncate(sent);
        self.end(end)
    }

    fn announced(mut self) -> Self {
        let has = |name: &str| {
            let begins = |line: &String| line.to_ascii_lowercase().starts_with(name);
            self.headers.iter().any(begins)
        };
        if !has("content-length") && !has("transfer-encoding") && self.end != End::Close {
            let length = self.body.len();
            self.headers.push(format!("Content-Length: {length}"));
        }
        self
    }

    fn write(self, stream: &mut impl Write) -> io::Result<End> {
        if self.end == End::Silent {
            return Ok(End::Silent);
        }
        let reply = self.announced();
        let mut head = format!("HTTP/1.1 {} x\r\n", reply.status);
        reply.headers.iter().for_each(|line| head += &format!("{line}\r\n"));
        stream.write_all(format!("{head}\r\n").as_bytes())?;
        stream.write_all(&reply.body)?;
        stream.flush()?;
        Ok(reply.end)
    }
}

/// A file as a server has it.
#[derive(Clone, Debug)]
pub(crate) struct Content {
    pub(crate) bytes: Arc<Vec<u8>>,
    /// Its validator, a header line, if it has one.
    pub(crate) validator: Option<String>,
    /// Whether parts of it are sent.
    pub(crate) ranges: bool,
}

impl Content {
    pub(crate) fn new(bytes: Vec<u8>, tag: &str) -> Self {
        let validator = Some(format!("ETag: \"{tag}\""));
        Self { bytes: Arc::new(bytes), validator, ranges: true }
    }

    /// The answer of a server that does everything right.
    pub(crate) fn reply(&self, request: &Request) -> Reply {
        let len = self.bytes.len() as u64;
        let current = self.validator.as_deref().and_then(|line| Some(line.split_once(": ")?.1));
        let is_current = request.header("if-range").is_none_or(|known| Some(known) == current);
        let reply = match request.range().filter(|_| self.ranges && is_current) {
            Some((start, _)) if start >= len => Reply::status(416),
            Some((start, end)) => {
                let end = end.unwrap_or(len).min(len);
                let part = self.bytes[start as usize..end as usize].to_vec();
                let range = format!("Content-Range: bytes {start}-{}/{len}", end - 1);
                Reply { status: 206, ..Reply::ok(part).header(&range) }
            }
            None => Reply::ok(self.bytes.to_vec()),
        };
        match &self.validator {
            Some(line) => reply.header(line),
            None => reply,
        }
    }
}

/// A server on a port of its own, until it is dropped.
pub(crate) struct Server {
    address: String,
    log: Arc<Mutex<Vec<Request>>>,
    stopped: Arc<AtomicBool>,
}

impl Server {
    /// Answers requests with what `reply` returns for them and their number, from 0 on.
    pub(crate) fn start(reply: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static) -> Self {
        Self::wrapped(reply, Ok)
    }

    /// The same, inside of what `wrap` makes of a connection.
    pub(crate) fn wrapped<S: Read + Write>(
        reply: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static,
        wrap: impl Fn(TcpStream) -> io::Result<S> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (log, stopped) = (Arc::<Mutex<Vec<_>>>::default(), Arc::<AtomicBool>::default());
        let server = Self { address, log: Arc::clone(&log), stopped: Arc::clone(&stopped) };
        let shared = Arc::new((reply, wrap));
        thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let (log, shared) = (Arc::clone(&log), Arc::clone(&shared));
                thread::spawn(move || {
                    // The client may go at any time.
                    let _ = shared.1(stream?).and_then(|stream| serve(stream, &log, &shared.0));
                    Ok::<_, io::Error>(())
                });
            }
        });
        server
    }

    /// Serves one file, whatever is asked for.
    pub(crate) fn of(content: Content) -> Self {
        Self::start(move |request, _| content.reply(request))
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn port(&self) -> &str {
        self.address.rsplit(':').next().unwrap()
    }

    /// The requests until now.
    pub(crate) fn log(&self) -> MutexGuard<'_, Vec<Request>> {
        self.log.lock().unwrap()
    }

    pub(crate) fn requests(&self) -> usize {
        self.log().len()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        drop(TcpStream::connect(&self.address));
    }
}

fn serve<S: Read + Write>(
    stream: S,
    log: &Mutex<Vec<Request>>,
    reply: &impl Fn(&Request, usize) -> Reply,
) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    while let Some(request) = Request::read(&mut stream) {
        let number = {
            let mut log = log.lock().unwrap();
            log.push(request.clone());
            log.len() - 1
        };
        match reply(&request, number).write(stream.get_mut())? {
            End::Keep => {}
            End::Close => return Ok(()),
            End::Hang | End::Silent => return io::copy(&mut stream, &mut io::sink()).map(drop),
        }
    }
    Ok(())
}
