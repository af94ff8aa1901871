//! A master that does what a test wants, on a thread of its own.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};

use bytes::BytesMut;
use mc_rpc::Refusal;
use mc_rpc::frame::{
    self, ClientPreface, FrameHeader, HEADER_LEN, Hello, Kind, PREFACE_LEN, ServerPreface, Welcome,
};
use mc_types::ErrorCode;
use socket2::SockRef;

use super::DEADLINE;

/// A listener and its address.
pub(crate) fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // Accepting is bounded as well.
    SockRef::from(&listener).set_read_timeout(Some(DEADLINE)).unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    (listener, addr)
}

/// Where a fake master listens.
pub(crate) trait Listen {
    type Stream: Read + Write;
    fn next(&self) -> Self::Stream;
}

impl Listen for TcpListener {
    type Stream = TcpStream;
    fn next(&self) -> TcpStream {
        let (stream, _) = self.accept().unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }
}

impl Listen for UnixListener {
    type Stream = UnixStream;
    fn next(&self) -> UnixStream {
        let (stream, _) = self.accept().unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream
    }
}

/// A connection of a fake master.
pub(crate) struct Fake<S> {
    pub(crate) stream: S,
    pub(crate) hello: Hello,
}

/// A request as it came.
pub(crate) struct Request {
    pub(crate) header: FrameHeader,
    pub(crate) token: Option<u64>,
    pub(crate) message: Vec<u8>,
}

/// Takes a connection and shakes hands.
pub(crate) fn accept<L: Listen>(listener: &L) -> Fake<L::Stream> {
    let mut fake = greet(listener);
    let answer = ServerPreface {
        version: frame::VERSION,
        message_len: 0,
        status: 0,
        max_payload: 1 << 20,
        max_in_flight: 16,
    };
    fake.stream.write_all(&answer.encode()).unwrap();
    fake
}

/// Takes a connection whose requests say when they were sent.
pub(crate) fn accept_timed<L: Listen>(listener: &L) -> Fake<L::Stream> {
    let mut fake = greet(listener);
    assert!(fake.hello.send_times);
    let answer = ServerPreface {
        version: frame::VERSION,
        message_len: 0,
        status: 0,
        max_payload: 1 << 20,
        max_in_flight: 16,
    };
    let welcome = Welcome { send_times: true, ..Welcome::default() };
    fake.stream.write_all(&answer.welcoming(&welcome)).unwrap();
    fake
}

/// Takes a connection and refuses it.
pub(crate) fn refuse<L: Listen>(listener: &L, refusal: &Refusal) -> Hello {
    let mut fake = greet(listener);
    fake.stream.write_all(&ServerPreface::refusing(refusal)).unwrap();
    fake.hello
}

/// Takes a connection and hears who it is.
pub(crate) fn greet<L: Listen>(listener: &L) -> Fake<L::Stream> {
    let mut stream = listener.next();
    let mut preface = [0; PREFACE_LEN];
    stream.read_exact(&mut preface).unwrap();
    let preface = ClientPreface::parse(&preface).unwrap();
    assert_eq!(preface.version, frame::VERSION);
    let mut hello = vec![0; preface.hello_len.into()];
    stream.read_exact(&mut hello).unwrap();
    Fake { stream, hello: Hello::parse(&hello).unwrap() }
}

impl<S: Read + Write> Fake<S> {
    /// The next frame, whatever its kind.
    pub(crate) fn frame(&mut self) -> Request {
        self.frame_or_end().expect("a frame comes before the end")
    }

    /// The next frame; `None` when the client has closed the connection.
    pub(crate) fn frame_or_end(&mut self) -> Option<Request> {
        let mut header = [0; HEADER_LEN];
        match self.stream.read_exact(&mut header) {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return None,
            read => read.unwrap(),
        }
        let header = FrameHeader::parse(&header, 1 << 20).unwrap();
        let mut payload = vec![0; header.payload_len as usize];
        self.stream.read_exact(&mut payload).unwrap();
        let (token, message) = frame::token_of(header, &payload);
        Some(Request { header, token, message: message.to_vec() })
    }

    /// Sends a frame.
    pub(crate) fn send(&mut self, id: u64, method: u16, kind: Kind, payload: &[u8]) {
        let mut out = BytesMut::new();
        frame::append_frame::<(), ()>(&mut out, id, method, kind, |out| {
            out.extend_from_slice(payload);
            Ok(())
        })
        .unwrap();
        self.stream.write_all(&out).unwrap();
    }

    /// Refuses the next call because its time is over.
    pub(crate) fn refuse_late(&mut self) -> Request {
        let request = self.frame();
        let mut out = BytesMut::new();
        let refusal = Refusal::new(ErrorCode::RpcTimeout, "too late");
        frame::append_refusal(&mut out, request.header.id, request.header.method, &refusal);
        self.stream.write_all(&out).unwrap();
        request
    }

    /// Answers the next call with this message.
    pub(crate) fn answer(&mut self, message: &[u8]) -> Request {
        let request = self.frame();
        self.send(request.header.id, request.header.method, Kind::Reply, message);
        request
    }

    /// Waits until the client has closed the connection.
    pub(crate) fn closed(&mut self) {
        let mut rest = Vec::new();
        // A reset is an end as well.
        if self.stream.read_to_end(&mut rest).is_ok() {
            assert!(rest.is_empty(), "{} bytes before the end", rest.len());
        }
    }
}
