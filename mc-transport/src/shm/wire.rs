//! The bytes on a control connection, as `docs/shm-wire.md` defines them.

use mc_memory::Access;
use mc_types::RemoteKey;

use crate::backend::proof::{Label, Nonce, Proof};

/// The label of the side that connects, in the proof that it knows a secret.
pub(super) const CLIENT: &Label = b"mc-shm/1 client\0";

/// The label of the side that owns memory.
pub(super) const OWNER: &Label = b"mc-shm/1 owner\0\0";

/// First bytes of both sides.
pub(super) const MAGIC: [u8; 4] = *b"MCS1";
/// Version of the protocol that this code speaks.
pub(super) const VERSION: u16 = 1;

pub(super) const HELLO_LEN: usize = 24;
pub(super) const GREETING_LEN: usize = 64;
pub(super) const PROOF_LEN: usize = 32;
pub(super) const ADMISSION_LEN: usize = 8;
pub(super) const REQUEST_LEN: usize = 24;
pub(super) const ANSWER_LEN: usize = 32;

/// A client's first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) version: u16,
    /// Both sides show that they know the owner's secret.
    pub(super) proven: bool,
    pub(super) nonce: Nonce,
}

impl Hello {
    pub(super) fn encode(self) -> [u8; HELLO_LEN] {
        let mut bytes = [0; HELLO_LEN];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&self.version.to_le_bytes());
        bytes[6] = u8::from(self.proven);
        bytes[8..24].copy_from_slice(&self.nonce);
        bytes
    }

    /// `None` when the sender is no peer of ours. Fields of other versions
    /// mean nothing here.
    pub(super) fn decode(bytes: &[u8; HELLO_LEN]) -> Option<Self> {
        let version = u16::from_le_bytes(field(bytes, 4));
        let flags = u16::from_le_bytes(field(bytes, 6));
        let path_cache = version != VERSION || flags <= 1;
        (field::<4, HELLO_LEN>(bytes, 0) == MAGIC && path_cache).then(|| Self {
            version,
            proven: flags & 1 == 1,
            nonce: field(bytes, 8),
        })
    }
}

/// An owner's verdict on a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Verdict {
    Welcome = 0,
    Busy = 1,
    UnknownVersion = 2,
    /// The client runs as a user who is not admitted.
    WrongUser = 3,
    /// The client does not know the secret, or did not offer to show that it does.
    NotProven = 4,
}

impl Verdict {
    fn decode(number: u16) -> Option<Self> {
        Some(match number {
            0 => Self::Welcome,
            1 => Self::Busy,
            2 => Self::UnknownVersion,
            3 => Self::WrongUser,
            4 => Self::NotProven,
            _ => return None,
        })
    }
}

/// An owner's first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    pub(super) version: u16,
    pub(super) verdict: Verdict,
    pub(super) nonce: Nonce,
    /// Zeros when the client did not ask for one.
    pub(super) proof: Proof,
    /// Bytes of the largest operation on a stream.
    pub(super) max_operation: u64,
}

impl Greeting {
    pub(super) fn encode(self) -> [u8; GREETING_LEN] {
        let mut bytes = [0; GREETING_LEN];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&self.version.to_le_bytes());
        bytes[6..8].copy_from_slice(&(self.verdict as u16).to_le_bytes());
        bytes[8..24].copy_from_slice(&self.nonce);
        bytes[24..56].copy_from_slice(&self.proof);
        bytes[56..64].copy_from_slice(&self.max_operation.to_le_bytes());
        bytes
    }

    /// `None` when the sender is no peer of ours.
    pub(super) fn decode(bytes: &[u8; GREETING_LEN]) -> Option<Self> {
        if field::<4, GREETING_LEN>(bytes, 0) != MAGIC {
            return None;
        }
        Some(Self {
            version: u16::from_le_bytes(field(bytes, 4)),
            verdict: Verdict::decode(u16::from_le_bytes(field(bytes, 6)))?,
            nonce: field(bytes, 8),
            proof: field(bytes, 24),
            max_operation: u64::from_le_bytes(field(bytes, 56)),
        })
    }
}

/// An owner's last word of the handshake. The descriptor of the control page comes
/// with a welcome.
pub(super) fn encode_admission(verdict: Verdict, slots: u32) -> [u8; ADMISSION_LEN] {
    let mut bytes = [0; ADMISSION_LEN];
    bytes[0..2].copy_from_slice(&(verdict as u16).to_le_bytes());
    bytes[4..8].copy_from_slice(&slots.to_le_bytes());
    bytes
}

/// The verdict, and how many slots the control page has.
pub(super) fn decode_admission(bytes: &[u8; ADMISSION_LEN]) -> Option<(Verdict, u32)> {
    let verdict = Verdict::decode(u16::from_le_bytes(field(bytes, 0)))?;
    (bytes[2..4] == [0; 2]).then(|| (verdict, u32::from_le_bytes(field(bytes, 4))))
}

/// A client's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestKind {
    /// The memory that a key opens.
    Region(RemoteKey),
    /// A stream for operations on memory that cannot be shared.
    Stream,
}

/// One question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) id: u32,
    pub(super) kind: RequestKind,
}

impl Request {
    pub(super) fn encode(self) -> [u8; REQUEST_LEN] {
        let mut bytes = [0; REQUEST_LEN];
        bytes[4..8].copy_from_slice(&self.id.to_le_bytes());
        match self.kind {
            RequestKind::Region(key) => {
                bytes[0] = 1;
                bytes[8..24].copy_from_slice(&key.to_bytes());
            }
            RequestKind::Stream => bytes[0] = 2,
        }
        bytes
    }

    /// # Errors
    /// The id, when the rest is not a request of this version.
    pub(super) fn decode(bytes: &[u8; REQUEST_LEN]) -> Result<Self, u32> {
        let id = u32::from_le_bytes(field(bytes, 4));
        let key: [u8; 16] = field(bytes, 8);
        let kind = match bytes[0..4] {
            [1, 0, 0, 0] => RequestKind::Region(RemoteKey::from_bytes(key)),
            [2, 0, 0, 0] if key == [0; 16] => RequestKind::Stream,
            _ => return Err(id),
        };
        Ok(Self { id, kind })
    }
}

/// The status of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Status {
    /// A descriptor comes with the answer.
    Granted = 0,
    KeyRefused = 1,
    /// The region exists, but only a stream reaches it.
    NotShareable = 2,
    /// The bytes are no request of this version; the connection ends.
    Malformed = 3,
    /// The owner cannot answer now; ask again.
    Busy = 4,
    /// Answers nothing: a region was withdrawn since the last answer.
    Withdrawn = 5,
}

/// One answer. All fields behind the id are zero unless a region was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: Status,
    pub(super) id: u32,
    pub(super) region: Option<GrantedRegion>,
}

/// Memory of the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GrantedRegion {
    pub(super) access: Access,
    /// Its bytes, from the first of the descriptor's.
    pub(super) len: u64,
    /// Where the control page says whether the region is open: while the word at
    /// `slot` is `generation`.
    pub(super) slot: u32,
    pub(super) generation: u64,
}

/// Why bytes are not an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadAnswer {
    Status(u8),
    Reserved,
}

impl Answer {
    /// An answer that grants no region.
    pub(super) fn bare(status: Status, id: u32) -> Self {
        Self { status, id, region: None }
    }

    pub(super) fn encode(self) -> [u8; ANSWER_LEN] {
        let mut bytes = [0; ANSWER_LEN];
        bytes[0] = self.status as u8;
        bytes[4..8].copy_from_slice(&self.id.to_le_bytes());
        if let Some(region) = self.region {
            bytes[1] = match region.access {
                Access::Read => 1,
                Access::Write => 2,
                Access::ReadWrite => 3,
            };
            bytes[8..16].copy_from_slice(&region.len.to_le_bytes());
            bytes[16..24].copy_from_slice(&region.generation.to_le_bytes());
            bytes[24..28].copy_from_slice(&region.slot.to_le_bytes());
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8; ANSWER_LEN]) -> Result<Self, BadAnswer> {
        let status = match bytes[0] {
            0 => Status::Granted,
            1 => Status::KeyRefused,
            2 => Status::NotShareable,
            3 => Status::Malformed,
            4 => Status::Busy,
            5 => Status::Withdrawn,
            other => return Err(BadAnswer::Status(other)),
        };
        let id = u32::from_le_bytes(field(bytes, 4));
        let access = match bytes[1] {
            0 if bytes[8..] == [0; ANSWER_LEN - 8] => None,
            1 => Some(Access::Read),
            2 => Some(Access::Write),
            3 => Some(Access::ReadWrite),
            _ => return Err(BadAnswer::Reserved),
        };
        let misplaced = access.is_some() && status != Status::Granted;
        if misplaced || bytes[2..4] != [0; 2] || bytes[28..] != [0; 4] {
            return Err(BadAnswer::Reserved);
        }
        let region = access.map(|access| GrantedRegion {
            access,
            len: u64::from_le_bytes(field(bytes, 8)),
            generation: u64::from_le_bytes(field(bytes, 16)),
            slot: u32::from_le_bytes(field(bytes, 24)),
        });
        Ok(Self { status, id, region })
    }
}

/// The `N` bytes at `at` of a message whose length the types fix.
fn field<const N: usize, const LEN: usize>(bytes: &[u8; LEN], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the slice was cut to N bytes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    // The golden bytes are those of the examples in docs/shm-wire.md.

    #[test]
    fn handshake_bytes() {
        let hello = Hello { version: 1, proven: true, nonce: *b"0123456789abcdef" };
        let mut bytes = *b"MCS1\x01\x00\x01\x000123456789abcdef";
        assert_eq!(hello.encode(), bytes);
        assert_eq!(Hello::decode(&bytes), Some(hello));
        bytes[6] = 2;
        assert_eq!(Hello::decode(&bytes), None);
        bytes[4] = 2;
        assert_eq!(Hello::decode(&bytes).map(|hello| hello.version), Some(2));
        bytes[0] = b'P';
        assert_eq!(Hello::decode(&bytes), None);

        let greeting = Greeting {
            version: 1,
            verdict: Verdict::Welcome,
            nonce: *b"fedcba9876543210",
            proof: [0x77; 32],
            max_operation: 1 << 30,
        };
        let mut bytes = [0x77; GREETING_LEN];
        bytes[..24].copy_from_slice(b"MCS1\x01\x00\x00\x00fedcba9876543210");
        bytes[56..].copy_from_slice(b"\x00\x00\x00\x40\x00\x00\x00\x00");
        assert_eq!(greeting.encode(), bytes);
        assert_eq!(Greeting::decode(&bytes), Some(greeting));
        bytes[6] = 5;
        assert_eq!(Greeting::decode(&bytes), None);

        let mut bytes = *b"\x00\x00\x00\x00\x00\x40\x00\x00";
        assert_eq!(encode_admission(Verdict::Welcome, 16_384), bytes);
        assert_eq!(decode_admission(&bytes), Some((Verdict::Welcome, 16_384)));
        bytes[2] = 1;
        assert_eq!(decode_admission(&bytes), None);
        let verdicts = [Verdict::Welcome, Verdict::Busy, Verdict::UnknownVersion];
        assert_eq!(verdicts.map(|verdict| verdict as u16), [0, 1, 2]);
        assert_eq!([Verdict::WrongUser as u16, Verdict::NotProven as u16], [3, 4]);
    }

    #[test]
    fn request_bytes() {
        let kind = RequestKind::Region(RemoteKey::from_bytes(*b"0123456789abcdef"));
        let request = Request { id: 7, kind };
        let mut bytes = *b"\x01\x00\x00\x00\x07\x00\x00\x000123456789abcdef";
        assert_eq!(request.encode(), bytes);
        assert_eq!(Request::decode(&bytes), Ok(request));
        for (at, value) in [(0, 0), (0, 2), (0, 3), (1, 1), (2, 1), (3, 1)] {
            let kept = std::mem::replace(&mut bytes[at], value);
            assert_eq!(Request::decode(&bytes), Err(7));
            bytes[at] = kept;
        }
        let stream = Request { id: 8, kind: RequestKind::Stream };
        assert_eq!(stream.encode()[..8], *b"\x02\x00\x00\x00\x08\x00\x00\x00");
        assert_eq!(Request::decode(&stream.encode()), Ok(stream));
    }

    #[test]
    fn answer_bytes() {
        let region =
            GrantedRegion { access: Access::ReadWrite, len: 1 << 20, slot: 5, generation: 9 };
        let answer = Answer { status: Status::Granted, id: 7, region: Some(region) };
        let mut bytes = *b"\x00\x03\x00\x00\x07\x00\x00\x00\x00\x00\x10\x00\x00\x00\x00\x00\
            \x09\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00";
        assert_eq!(answer.encode(), bytes);
        assert_eq!(Answer::decode(&bytes), Ok(answer));
        for (at, value) in [(1, 4), (1, 0), (2, 1), (3, 1), (28, 1), (31, 1), (0, 1), (0, 5)] {
            let kept = std::mem::replace(&mut bytes[at], value);
            assert_eq!(Answer::decode(&bytes), Err(BadAnswer::Reserved), "{at}");
            bytes[at] = kept;
        }
        bytes[0] = 6;
        assert_eq!(Answer::decode(&bytes), Err(BadAnswer::Status(6)));
        let withdrawn = Answer::bare(Status::Withdrawn, 0);
        assert_eq!(
            withdrawn.encode(),
            *b"\x05\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
        );
    }

    proptest! {
        #[test]
        fn what_decodes_encodes_to_the_same_bytes(
            mut request in any::<[u8; REQUEST_LEN]>(), op in 0u8..4,
            mut answer in any::<[u8; ANSWER_LEN]>(), status in 0u8..8, access in 0u8..5,
            plain in any::<bool>(),
        ) {
            request[0..4].copy_from_slice(&[op, 0, 0, 0]);
            if let Ok(decoded) = Request::decode(&request) {
                prop_assert_eq!(decoded.encode(), request);
            }
            answer[0..4].copy_from_slice(&[status, access, 0, 0]);
            answer[28..].fill(0);
            if plain {
                answer[8..].fill(0);
            }
            if let Ok(decoded) = Answer::decode(&answer) {
                prop_assert_eq!(decoded.encode(), answer);
            }
        }
    }
}
