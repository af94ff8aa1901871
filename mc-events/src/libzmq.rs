//! A publishing socket of libzmq.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::pin::Pin;

use parking_lot::Mutex;
use thiserror::Error;

use crate::error::SocketBusy;
use crate::socket::{EventSocket, SocketStats};
use crate::stream::Message;

/// How long [`close`](EventSocket::close) waits for what subscribers have not taken yet.
const LINGER_MS: c_int = 1_000;

// From zmq.h, of libzmq 4.1 and newer.
const PUB: c_int = 1;
const LINGER: c_int = 17;
const SNDHWM: c_int = 23;
const LAST_ENDPOINT: c_int = 32;
const CURVE_SERVER: c_int = 47;
const CURVE_SECRETKEY: c_int = 49;
const DONTWAIT: c_int = 1;
const SNDMORE: c_int = 2;
/// The system's error number.
const EINTR: c_int = 4;

#[link(name = "zmq")]
unsafe extern "C" {
    safe fn zmq_ctx_new() -> *mut c_void;
    fn zmq_ctx_term(context: *mut c_void) -> c_int;
    fn zmq_socket(context: *mut c_void, kind: c_int) -> *mut c_void;
    fn zmq_setsockopt(s: *mut c_void, option: c_int, value: *const c_void, len: usize) -> c_int;
    fn zmq_getsockopt(s: *mut c_void, option: c_int, value: *mut c_void, len: *mut usize) -> c_int;
    fn zmq_bind(socket: *mut c_void, endpoint: *const c_char) -> c_int;
    fn zmq_send(socket: *mut c_void, bytes: *const c_void, len: usize, flags: c_int) -> c_int;
    fn zmq_close(socket: *mut c_void) -> c_int;
    safe fn zmq_errno() -> c_int;
    safe fn zmq_strerror(errno: c_int) -> *const c_char;
}

/// A publishing socket of libzmq, for [`Parts::sockets`](crate::Parts::sockets): the messages are the
/// same, the transport is libzmq's, with its endpoints and CURVE.
///
/// A slow subscriber misses messages, as with the crate's own socket. Unlike that one libzmq bounds the
/// messages that wait for a subscriber but neither their bytes nor the connections, and tells nothing of
/// them: its [`stats`](EventSocket::stats) are zero. [`flush`](EventSocket::flush) does not wait;
/// [`close`](EventSocket::close) does, for a second at most. Replay endpoints are never libzmq's.
#[derive(Debug)]
pub struct LibzmqSocket {
    raw: Mutex<Option<Raw>>,
    endpoint: String,
}

/// libzmq does not open the socket.
#[derive(Debug, Error)]
#[error(
    "libzmq cannot {action} at {endpoint:?}: {problem}; check the endpoint, the key and libzmq"
)]
pub struct LibzmqError {
    action: &'static str,
    endpoint: String,
    problem: String,
}

impl LibzmqSocket {
    /// Binds an endpoint of libzmq, such as `tcp://10.0.0.1:19997`. At most `hwm` messages wait for
    /// one subscriber.
    ///
    /// With a `curve_secret_key`, in Z85, connections are encrypted and subscribers need its public
    /// key. Everyone who has that may subscribe: to tell subscribers apart takes a ZAP handler, which
    /// this socket has not.
    ///
    /// # Errors
    /// libzmq refuses the endpoint or the key, or was built without CURVE.
    pub fn bind(
        endpoint: &str,
        hwm: usize,
        curve_secret_key: Option<&str>,
    ) -> Result<Self, LibzmqError> {
        let failed = |action, problem| LibzmqError { action, endpoint: endpoint.into(), problem };
        let raw = Raw::new().ok_or_else(|| failed("make a socket", last_problem()))?;
        // To libzmq zero is no limit.
        let hwm = c_int::try_from(hwm.max(1)).unwrap_or(c_int::MAX);
        let mut options =
            vec![(SNDHWM, hwm.to_ne_bytes().to_vec()), (LINGER, 0_i32.to_ne_bytes().to_vec())];
        if let Some(key) = curve_secret_key {
            options.push((CURVE_SERVER, 1_i32.to_ne_bytes().to_vec()));
            options.push((CURVE_SECRETKEY, key.into()));
        }
        for (option, value) in options {
            if !raw.set(option, &value) {
                return Err(failed("set an option", last_problem()));
            }
        }
        let text = CString::new(endpoint).map_err(|error| failed("bind", error.to_string()))?;
        // SAFETY: the socket is open, and the text ends with a zero.
        if unsafe { zmq_bind(raw.socket, text.as_ptr()) } != 0 {
            return Err(failed("bind", last_problem()));
        }
        let endpoint = raw.endpoint().ok_or_else(|| failed("read the port", last_problem()))?;
        Ok(Self { raw: Mutex::new(Some(raw)), endpoint })
    }

    /// Where subscribers connect, with the port that was free.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }
}

impl EventSocket for LibzmqSocket {
    fn send(&self, message: &Message) -> Result<(), SocketBusy> {
        let raw = self.raw.lock();
        let raw = raw.as_ref().ok_or(SocketBusy)?;
        let number = message.number().to_be_bytes();
        let frames = [(&message.topic()[..], SNDMORE), (&number, SNDMORE), (message.payload(), 0)];
        // A publishing socket drops what a subscriber has no room for, and always the whole message.
        let sent = frames.into_iter().all(|(frame, flags)| raw.send(frame, flags));
        if sent { Ok(()) } else { Err(SocketBusy) }
    }

    fn flush(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::ready(()))
    }

    fn close(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        let raw = self.raw.lock().take();
        Box::pin(async {
            let closing = tokio::task::spawn_blocking(move || {
                if let Some(raw) = &raw {
                    raw.set(LINGER, &LINGER_MS.to_ne_bytes());
                }
            });
            let _ = closing.await;
        })
    }

    fn stats(&self) -> SocketStats {
        SocketStats::default()
    }
}

fn last_problem() -> String {
    // SAFETY: libzmq returns a text that ends with a zero and lives as long as the process.
    unsafe { CStr::from_ptr(zmq_strerror(zmq_errno())) }.to_string_lossy().into_owned()
}

/// A context with one socket, both open. Dropping it closes them, and waits as long as the socket
/// lingers: not at all, unless that was set.
#[derive(Debug)]
struct Raw {
    context: *mut c_void,
    socket: *mut c_void,
}

// SAFETY: libzmq lets a socket move between threads with a full fence in between, which the mutex
// around it is; a context may be used by all threads.
unsafe impl Send for Raw {}

impl Raw {
    fn new() -> Option<Self> {
        let context = zmq_ctx_new();
        // SAFETY: libzmq checks the context.
        let socket = unsafe { zmq_socket(context, PUB) };
        // Dropping it without a socket ends the context.
        let raw = Self { context, socket };
        (!socket.is_null()).then_some(raw)
    }

    fn set(&self, option: c_int, value: &[u8]) -> bool {
        // SAFETY: the socket is open, and libzmq reads as many bytes as the value has.
        unsafe { zmq_setsockopt(self.socket, option, value.as_ptr().cast(), value.len()) == 0 }
    }

    fn endpoint(&self) -> Option<String> {
        let mut text = [0_u8; 512];
        let mut len = text.len();
        let to = text.as_mut_ptr().cast();
        // SAFETY: the socket is open, and libzmq writes at most `len` bytes.
        let read = unsafe { zmq_getsockopt(self.socket, LAST_ENDPOINT, to, &raw mut len) } == 0;
        let text = CStr::from_bytes_until_nul(&text).ok().filter(|_| read)?;
        Some(text.to_string_lossy().into_owned())
    }

    fn send(&self, frame: &[u8], flags: c_int) -> bool {
        // SAFETY: the socket is open, and libzmq copies as many bytes as the frame has.
        let sent =
            unsafe { zmq_send(self.socket, frame.as_ptr().cast(), frame.len(), flags | DONTWAIT) };
        sent >= 0
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: libzmq checks the socket, which is not used any more.
        unsafe { zmq_close(self.socket) };
        // SAFETY: the context's only socket is closed. A signal may interrupt it.
        while unsafe { zmq_ctx_term(self.context) } != 0 && zmq_errno() == EINTR {}
    }
}
