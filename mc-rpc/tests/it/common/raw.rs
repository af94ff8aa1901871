//! A client that writes whatever a test says.

use bytes::BytesMut;
use mc_rpc::frame::{
    self, ClientPreface, FrameHeader, HEADER_LEN, Hello, Kind, MAGIC, SERVER_PREFACE_LEN,
    ServerPreface,
};
use mc_rpc::{Refusal, ServerHandle};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::DEADLINE;

pub(crate) struct Raw<T = TcpStream> {
    pub(crate) stream: T,
    arrived: BytesMut,
}

impl Raw {
    /// Connected, and nothing said.
    pub(crate) async fn unshaken(server: &ServerHandle) -> Self {
        Self::over(TcpStream::connect(server.local_addr()).await.unwrap())
    }

    /// Connects without credentials.
    pub(crate) async fn connect(server: &ServerHandle) -> Self {
        Self::connect_as(server, &Hello::default()).await.unwrap()
    }

    /// Connects with these credentials, unless refused.
    pub(crate) async fn connect_as(server: &ServerHandle, hello: &Hello) -> Result<Self, Refusal> {
        let mut raw = Self::unshaken(server).await;
        raw.greet(hello).await?;
        Ok(raw)
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> Raw<T> {
    pub(crate) fn over(stream: T) -> Self {
        Self { stream, arrived: BytesMut::new() }
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// Shakes hands, unless refused.
    pub(crate) async fn greet(&mut self, hello: &Hello) -> Result<(), Refusal> {
        self.send(&ClientPreface::with(16 << 20, hello)).await;
        let (answer, words) = self.preface().await;
        answer.refusal(&words).map_or(Ok(()), Err)
    }

    /// Reads the server's preface, in any version, and the words behind it.
    pub(crate) async fn preface(&mut self) -> (ServerPreface, Vec<u8>) {
        let mut bytes = [0; SERVER_PREFACE_LEN];
        timeout(DEADLINE, self.stream.read_exact(&mut bytes)).await.unwrap().unwrap();
        assert_eq!(bytes[..8], MAGIC);
        let preface = ServerPreface {
            version: u16::from_le_bytes([bytes[8], bytes[9]]),
            message_len: u16::from_le_bytes([bytes[10], bytes[11]]),
            status: i32::from_le_bytes(bytes[12..16].try_into().unwrap()),
            max_payload: u32::from_le_bytes(bytes[16..20].try_into().unwrap()),
            max_in_flight: u32::from_le_bytes(bytes[20..24].try_into().unwrap()),
        };
        let mut words = vec![0; preface.message_len.into()];
        timeout(DEADLINE, self.stream.read_exact(&mut words)).await.unwrap().unwrap();
        (preface, words)
    }

    /// The next frame; `None` when the server has closed the connection.
    pub(crate) async fn frame(&mut self) -> Option<(FrameHeader, Vec<u8>)> {
        loop {
            let found = frame::first_frame(&self.arrived, u32::MAX).unwrap();
            if let Some((header, payload)) = found {
                let payload = payload.to_vec();
                let _ = self.arrived.split_to(HEADER_LEN + payload.len());
                return Some((header, payload));
            }
            let read = timeout(DEADLINE, self.stream.read_buf(&mut self.arrived)).await.unwrap();
            if matches!(read, Ok(0) | Err(_)) {
                return None;
            }
        }
    }

    /// The id and the payload of the next frame, which is a reply.
    pub(crate) async fn reply(&mut self) -> (u64, Vec<u8>) {
        let (header, payload) = self.frame().await.expect("an answer");
        assert_eq!(header.kind, Kind::Reply, "{:?}", frame::parse_refusal(&payload));
        (header.id, payload)
    }

    /// The id and the cause of the next frame, which is a refusal.
    pub(crate) async fn refusal(&mut self) -> (u64, Refusal) {
        let (header, payload) = self.frame().await.expect("a refusal comes first");
        assert_eq!(header.kind, Kind::Error);
        (header.id, frame::parse_refusal(&payload))
    }

    pub(crate) async fn assert_closed(&mut self) {
        assert_eq!(self.frame().await, None);
    }
}
