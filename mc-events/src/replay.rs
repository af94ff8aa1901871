//! Requests to the replay socket.

/// The number in the message that ends a replay.
pub const END_OF_REPLAY: u64 = u64::MAX;
/// The request for [`ReplayRequest::Info`], and the first frame of its answer.
pub const INFO: &[u8] = b"INFO";
/// The beginning of a request for [`ReplayRequest::Snapshot`], and the first frame of its answer.
pub const SNAPSHOT: &[u8] = b"SNAPSHOT:";
/// Length limit of a [`SnapshotPage`](crate::SnapshotPage)'s cursor.
pub const MAX_CURSOR: usize = 255;

/// A request to the replay socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplayRequest<'a> {
    /// Send the messages with this number and newer ones again.
    From(u64),
    /// Send those of these numbers again, the last one excluded. Only where the answer to
    /// [`Info`](Self::Info) has `ranges`.
    Between(u64, u64),
    /// Send the incarnation and the numbers at hand.
    Info,
    /// Send a page of the live objects, after those that the cursor stands for.
    Snapshot {
        /// The cursor in the answer for the page before; empty for the first page.
        cursor: &'a [u8],
    },
}

impl ReplayRequest<'_> {
    /// The body of the request, without an empty frame before it.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::From(number) => number.to_be_bytes().into(),
            Self::Between(start, end) => [start.to_be_bytes(), end.to_be_bytes()].concat(),
            Self::Info => INFO.into(),
            Self::Snapshot { cursor } => [SNAPSHOT, cursor].concat(),
        }
    }
}

/// A request and the form of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParsedRequest<'a> {
    /// The request.
    pub request: ReplayRequest<'a>,
    /// Whether an empty frame precedes it, as REQ sockets send it, and has to precede the answer.
    pub delimiter: bool,
}

impl<'a> ParsedRequest<'a> {
    /// Parses the frames of a request, without the peer's identity: the body, or an empty frame and
    /// the body. Returns nothing for anything else.
    #[must_use]
    pub fn parse<F: AsRef<[u8]>>(frames: &'a [F]) -> Option<Self> {
        let (body, delimiter) = match frames {
            [body] => (body.as_ref(), false),
            [empty, body] if empty.as_ref().is_empty() => (body.as_ref(), true),
            _ => return None,
        };
        let request = if let Ok(number) = <[u8; 8]>::try_from(body) {
            ReplayRequest::From(u64::from_be_bytes(number))
        } else if let Some((start, end)) = two_numbers(body) {
            ReplayRequest::Between(start, end)
        } else if body == INFO {
            ReplayRequest::Info
        } else {
            let cursor = body.strip_prefix(SNAPSHOT).filter(|cursor| cursor.len() <= MAX_CURSOR)?;
            ReplayRequest::Snapshot { cursor }
        };
        Some(Self { request, delimiter })
    }
}

/// The numbers of a body of 16 bytes. A cursor's is never taken for one: `SNAPSHOT:` is no number that is
/// ever reached.
fn two_numbers(body: &[u8]) -> Option<(u64, u64)> {
    let (start, end) = body.split_first_chunk::<8>()?;
    let numbers = (u64::from_be_bytes(*start), u64::from_be_bytes(end.try_into().ok()?));
    (!body.starts_with(SNAPSHOT)).then_some(numbers)
}
