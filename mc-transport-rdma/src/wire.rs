//! The messages by which two nodes set up queue pairs; `docs/rdma-wire.md` defines them.

use mc_transport::backend::{Label, Nonce, Proof};
use mc_transport::{Access, LinkId};
use mc_types::RemoteKey;

use super::ports::{MAX_GIDS, MAX_PORTS};

/// The scheme of endpoints: `rdma://host:port`.
pub const SCHEME: &str = "rdma";

/// The label of the side that connects, in the proof that it knows a secret.
pub(super) const CLIENT: &Label = b"mc-rdma/1 client";

/// The label of the side that owns memory.
pub(super) const OWNER: &Label = b"mc-rdma/1 owner\0";

/// The version of the protocol.
pub(super) const VERSION: u16 = 1;

const MAGIC: &[u8; 8] = b"MC-RDMA\0";

pub(super) const HELLO_LEN: usize = 32;
pub(super) const GREETING_LEN: usize = 88;
pub(super) const PROOF_LEN: usize = 32;

/// Bytes of the longest frame that a server takes: a request for queue pairs.
pub(super) const MAX_REQUEST: usize = 16 << 10;

/// Bytes of the longest frame that a client takes: the keys of a region.
pub(super) const MAX_ANSWER: usize = 8 << 20;

/// Queue pairs that one connection may have.
pub(super) const MAX_LANES: usize = 128;

/// Bytes of the longest message of a port, at least: otherwise a peer could have operations
/// divided into millions of requests.
const LEAST_MESSAGE: u32 = 64 << 10;

/// Chunks that a region may have.
pub(super) const MAX_CHUNKS: usize = 64 << 10;

/// The first message of the side that connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) version: u16,
    /// Both sides are to prove that they know a secret.
    pub(super) proven: bool,
    pub(super) nonce: Nonce,
}

/// The answer to [`Hello`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    pub(super) version: u16,
    pub(super) verdict: Verdict,
    pub(super) nonce: Nonce,
    pub(super) proof: Proof,
    pub(super) link: LinkId,
    pub(super) max_operation: u64,
}

/// Whether a peer is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Welcome,
    Busy,
    UnknownVersion,
    NotProven,
}

/// A port of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PortOffer {
    /// The number by which queue pairs are asked for.
    pub(super) index: u8,
    /// Ports of one device share the keys of regions.
    pub(super) device: u8,
    pub(super) is_infiniband: bool,
    pub(super) mtu: u8,
    pub(super) lid: u16,
    pub(super) reads_in: u8,
    pub(super) reads_out: u8,
    /// Bytes of the longest message.
    pub(super) message: u32,
    /// The best first.
    pub(super) gids: Vec<[u8; 16]>,
}

/// A queue pair that the client has made, and what the server is to make of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LaneOffer {
    /// The lane. The queue pair that the server had for it is destroyed first.
    pub(super) lane: u16,
    /// The server's port.
    pub(super) port: u8,
    /// The server's GID, counted in its offer.
    pub(super) gid: u8,
    /// The client's port.
    pub(super) address: [u8; 16],
    pub(super) lid: u16,
    pub(super) mtu: u8,
    pub(super) reads_in: u8,
    pub(super) reads_out: u8,
    pub(super) number: u32,
    /// Number of the client's first packet.
    pub(super) first: u32,
}

/// The server's queue pair of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LaneAnswer {
    Made {
        number: u32,
        /// Number of the server's first packet.
        first: u32,
        /// The smaller MTU of both sides.
        mtu: u8,
    },
    /// Why there is none.
    Failed(String),
}

/// A message of the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Queue pairs for lanes.
    Lanes(Vec<LaneOffer>),
    /// The keys of a region.
    Region(RemoteKey),
    /// The end of another link.
    Fence(LinkId),
}

/// A message of the server. All but [`Withdrawn`](Self::Withdrawn) and [`Ports`](Self::Ports)
/// answer a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The client is admitted; the server's ports.
    Ports(Vec<PortOffer>),
    /// The client is not admitted.
    Refused(Verdict),
    Lanes(Vec<LaneAnswer>),
    Region(RegionAnswer),
    Fenced,
    /// A region was withdrawn; its keys open nothing any more.
    Withdrawn(RemoteKey),
}

/// How a region is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RegionAnswer {
    Open(RegionKeys),
    /// No region has the key.
    Refused,
    /// The region is being registered; ask again.
    Preparing,
    /// The region cannot be registered, and is reached over another transport.
    Unavailable,
}

/// The keys of a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RegionKeys {
    pub(super) access: Access,
    /// The address of its first byte in the owner's process.
    pub(super) base: u64,
    pub(super) len: u64,
    /// Bytes of each chunk but the last.
    pub(super) chunk: u64,
    /// For each device of the owner, the key of each chunk.
    pub(super) keys: Vec<Vec<u32>>,
}

impl Hello {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HELLO_LEN);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&[u8::from(self.proven), 0, 0, 0, 0, 0]);
        out.extend_from_slice(&self.nonce);
        out
    }

    pub(super) fn decode(bytes: &[u8; HELLO_LEN]) -> Option<Self> {
        let mut input = Input(bytes);
        (input.array::<8>()? == *MAGIC).then_some(())?;
        let (version, proven) = (input.u16()?, input.u8()? == 1);
        input.array::<5>()?;
        Some(Self { version, proven, nonce: input.array()? })
    }
}

impl Greeting {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(GREETING_LEN);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&[self.verdict as u8, 0, 0, 0, 0, 0]);
        out.extend_from_slice(&self.nonce);
        out.extend_from_slice(&self.proof);
        out.extend_from_slice(&self.link.to_bytes());
        out.extend_from_slice(&self.max_operation.to_le_bytes());
        out
    }

    pub(super) fn decode(bytes: &[u8; GREETING_LEN]) -> Option<Self> {
        let mut input = Input(bytes);
        (input.array::<8>()? == *MAGIC).then_some(())?;
        let (version, verdict) = (input.u16()?, Verdict::of(input.u8()?)?);
        input.array::<5>()?;
        Some(Self {
            version,
            verdict,
            nonce: input.array()?,
            proof: input.array()?,
            link: LinkId::from_bytes(input.array()?),
            max_operation: input.u64()?,
        })
    }
}

impl Verdict {
    fn of(byte: u8) -> Option<Self> {
        [Self::Welcome, Self::Busy, Self::UnknownVersion, Self::NotProven]
            .into_iter()
            .find(|verdict| *verdict as u8 == byte)
    }
}

/// Puts the length before a frame: everything behind the length field.
fn framed(kind: u8, id: u32, body: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = vec![0; 4];
    out.push(kind);
    out.extend_from_slice(&id.to_le_bytes());
    body(&mut out);
    let len = u32::try_from(out.len() - 4).expect("frames are short");
    out[..4].copy_from_slice(&len.to_le_bytes());
    out
}

impl Request {
    pub(super) fn encode(&self, id: u32) -> Vec<u8> {
        match self {
            Self::Lanes(lanes) => framed(1, id, |out| {
                out.extend_from_slice(&(lanes.len() as u16).to_le_bytes());
                lanes.iter().for_each(|lane| lane.encode(out));
            }),
            Self::Region(key) => framed(2, id, |out| out.extend_from_slice(&key.to_bytes())),
            Self::Fence(link) => framed(3, id, |out| out.extend_from_slice(&link.to_bytes())),
        }
    }

    /// Decodes a frame without its length; `None` when it is malformed.
    pub(super) fn decode(frame: &[u8]) -> Option<(u32, Self)> {
        let mut input = Input(frame);
        let (kind, id) = (input.u8()?, input.u32()?);
        let request = match kind {
            1 => {
                let count = usize::from(input.u16()?);
                (count <= MAX_LANES).then_some(())?;
                Self::Lanes(
                    (0..count).map(|_| LaneOffer::decode(&mut input)).collect::<Option<_>>()?,
                )
            }
            2 => Self::Region(RemoteKey::from_bytes(input.array()?)),
            3 => Self::Fence(LinkId::from_bytes(input.array()?)),
            _ => return None,
        };
        input.is_empty().then_some((id, request))
    }
}

impl LaneOffer {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.lane.to_le_bytes());
        out.extend_from_slice(&[self.port, self.gid, self.mtu, self.reads_in, self.reads_out]);
        out.extend_from_slice(&self.lid.to_le_bytes());
        out.extend_from_slice(&self.address);
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.first.to_le_bytes());
    }

    fn decode(input: &mut Input<'_>) -> Option<Self> {
        let lane = input.u16()?;
        let [port, gid, mtu, reads_in, reads_out] = input.array()?;
        let (lid, address) = (input.u16()?, input.array()?);
        let (number, first) = (input.u32()?, input.u32()?);
        let is_sound = usize::from(lane) < MAX_LANES && (1..=5).contains(&mtu);
        is_sound.then_some(Self {
            lane,
            port,
            gid,
            address,
            lid,
            mtu,
            reads_in,
            reads_out,
            number,
            first,
        })
    }
}

impl Answer {
    pub(super) fn encode(&self, id: u32) -> Vec<u8> {
        match self {
            Self::Ports(ports) => framed(16, id, |out| {
                out.push(ports.len() as u8);
                ports.iter().for_each(|port| port.encode(out));
            }),
            Self::Refused(verdict) => framed(17, id, |out| out.push(*verdict as u8)),
            Self::Lanes(lanes) => framed(18, id, |out| {
                out.extend_from_slice(&(lanes.len() as u16).to_le_bytes());
                for lane in lanes {
                    match lane {
                        LaneAnswer::Made { number, first, mtu } => {
                            out.extend_from_slice(&[0, *mtu]);
                            out.extend_from_slice(&number.to_le_bytes());
                            out.extend_from_slice(&first.to_le_bytes());
                        }
                        LaneAnswer::Failed(reason) => {
                            let reason = &reason.as_bytes()[..reason.len().min(200)];
                            out.extend_from_slice(&[1, reason.len() as u8]);
                            out.extend_from_slice(reason);
                        }
                    }
                }
            }),
            Self::Region(region) => framed(19, id, |out| region.encode(out)),
            Self::Fenced => framed(20, id, |_| {}),
            Self::Withdrawn(key) => framed(21, id, |out| out.extend_from_slice(&key.to_bytes())),
        }
    }

    /// Decodes a frame without its length; `None` when it is malformed.
    pub(super) fn decode(frame: &[u8]) -> Option<(u32, Self)> {
        let mut input = Input(frame);
        let (kind, id) = (input.u8()?, input.u32()?);
        let answer = match kind {
            16 => {
                let count = usize::from(input.u8()?);
                (count <= MAX_PORTS).then_some(())?;
                Self::Ports(
                    (0..count).map(|_| PortOffer::decode(&mut input)).collect::<Option<_>>()?,
                )
            }
            17 => Self::Refused(Verdict::of(input.u8()?)?),
            18 => {
                let count = usize::from(input.u16()?);
                (count <= MAX_LANES).then_some(())?;
                let lane = |input: &mut Input<'_>| match input.u8()? {
                    0 => {
                        let mtu = input.u8().filter(|mtu| (1..=5).contains(mtu))?;
                        let (number, first) = (input.u32()?, input.u32()?);
                        Some(LaneAnswer::Made { number, first, mtu })
                    }
                    1 => {
                        let len = usize::from(input.u8()?);
                        let reason = String::from_utf8_lossy(input.take(len)?).into_owned();
                        Some(LaneAnswer::Failed(reason))
                    }
                    _ => None,
                };
                Self::Lanes((0..count).map(|_| lane(&mut input)).collect::<Option<_>>()?)
            }
            19 => Self::Region(RegionAnswer::decode(&mut input)?),
            20 => Self::Fenced,
            21 => Self::Withdrawn(RemoteKey::from_bytes(input.array()?)),
            _ => return None,
        };
        input.is_empty().then_some((id, answer))
    }
}

impl PortOffer {
    fn encode(&self, out: &mut Vec<u8>) {
        let is_infiniband = u8::from(self.is_infiniband);
        out.extend_from_slice(&[self.index, self.device, is_infiniband, self.mtu]);
        out.extend_from_slice(&[self.reads_in, self.reads_out]);
        out.extend_from_slice(&self.lid.to_le_bytes());
        out.extend_from_slice(&self.message.to_le_bytes());
        out.push(self.gids.len() as u8);
        self.gids.iter().for_each(|gid| out.extend_from_slice(gid));
    }

    fn decode(input: &mut Input<'_>) -> Option<Self> {
        let [index, device, is_infiniband, mtu, reads_in, reads_out] = input.array()?;
        let (lid, message, count) = (input.u16()?, input.u32()?, usize::from(input.u8()?));
        let is_sound = count <= MAX_GIDS
            && usize::from(device) < MAX_PORTS
            && (1..=5).contains(&mtu)
            && message >= LEAST_MESSAGE;
        is_sound.then_some(())?;
        let gids = (0..count).map(|_| input.array()).collect::<Option<_>>()?;
        let is_infiniband = is_infiniband == 1;
        Some(Self { index, device, is_infiniband, mtu, lid, reads_in, reads_out, message, gids })
    }
}

impl RegionAnswer {
    fn encode(&self, out: &mut Vec<u8>) {
        let region = match self {
            Self::Open(region) => region,
            Self::Refused => return out.push(1),
            Self::Preparing => return out.push(2),
            Self::Unavailable => return out.push(3),
        };
        let access = match region.access {
            Access::Read => 0,
            Access::Write => 1,
            Access::ReadWrite => 2,
        };
        out.extend_from_slice(&[0, access]);
        for number in [region.base, region.len, region.chunk] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.push(region.keys.len() as u8);
        for keys in &region.keys {
            keys.iter().for_each(|key| out.extend_from_slice(&key.to_le_bytes()));
        }
    }

    fn decode(input: &mut Input<'_>) -> Option<Self> {
        match input.u8()? {
            0 => {}
            1 => return Some(Self::Refused),
            2 => return Some(Self::Preparing),
            3 => return Some(Self::Unavailable),
            _ => return None,
        }
        let access = match input.u8()? {
            0 => Access::Read,
            1 => Access::Write,
            2 => Access::ReadWrite,
            _ => return None,
        };
        let (base, len, chunk) = (input.u64()?, input.u64()?, input.u64()?);
        base.checked_add(len).filter(|_| chunk > 0)?;
        let chunks = usize::try_from(len.div_ceil(chunk)).ok().filter(|&it| it <= MAX_CHUNKS)?;
        let devices = usize::from(input.u8()?);
        (devices <= MAX_PORTS).then_some(())?;
        let mut keys = Vec::with_capacity(devices);
        for _ in 0..devices {
            let bytes = input.take(chunks * 4)?.chunks_exact(4);
            keys.push(
                bytes.map(|key| u32::from_le_bytes([key[0], key[1], key[2], key[3]])).collect(),
            );
        }
        Some(Self::Open(RegionKeys { access, base, len, chunk, keys }))
    }
}

/// Bytes that are taken from the front.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lane() -> LaneOffer {
        LaneOffer {
            lane: 3,
            port: 1,
            gid: 2,
            address: [7; 16],
            lid: 9,
            mtu: 5,
            reads_in: 16,
            reads_out: 8,
            number: 0x0012_3456,
            first: 0x00ab_cdef,
        }
    }

    fn port() -> PortOffer {
        PortOffer {
            index: 1,
            device: 2,
            is_infiniband: false,
            mtu: 5,
            lid: 0,
            reads_in: 16,
            reads_out: 16,
            message: 1 << 30,
            gids: vec![[1; 16], [2; 16]],
        }
    }

    #[test]
    fn messages_come_back() {
        let hello = Hello { version: VERSION, proven: true, nonce: [3; 16] };
        assert_eq!(Hello::decode(&hello.encode().try_into().unwrap()), Some(hello));
        let greeting = Greeting {
            version: VERSION,
            verdict: Verdict::Busy,
            nonce: [4; 16],
            proof: [5; 32],
            link: LinkId::from_bytes([6; 16]),
            max_operation: 1 << 30,
        };
        assert_eq!(Greeting::decode(&greeting.encode().try_into().unwrap()), Some(greeting));
        let key = RemoteKey::from_bytes([8; 16]);
        for request in [
            Request::Lanes(vec![lane(), lane()]),
            Request::Region(key),
            Request::Fence(LinkId::from_bytes([6; 16])),
        ] {
            assert_eq!(Request::decode(&request.encode(77)[4..]), Some((77, request)));
        }
        let keys = vec![vec![1, 2, 3], vec![4, 5, 6]];
        let open = RegionKeys { access: Access::Write, base: 99, len: 250, chunk: 100, keys };
        for answer in [
            Answer::Ports(vec![port()]),
            Answer::Refused(Verdict::NotProven),
            Answer::Lanes(vec![
                LaneAnswer::Made { number: 5, first: 6, mtu: 4 },
                LaneAnswer::Failed("no room".to_owned()),
            ]),
            Answer::Region(RegionAnswer::Open(open)),
            Answer::Region(RegionAnswer::Refused),
            Answer::Region(RegionAnswer::Preparing),
            Answer::Region(RegionAnswer::Unavailable),
            Answer::Fenced,
            Answer::Withdrawn(key),
        ] {
            assert_eq!(Answer::decode(&answer.encode(78)[4..]), Some((78, answer)));
        }
    }

    #[test]
    fn regions_that_cannot_be_are_refused() {
        let encode = |base, len, chunk| {
            let keys = vec![vec![1]];
            let open = RegionKeys { access: Access::Read, base, len, chunk, keys };
            Answer::Region(RegionAnswer::Open(open)).encode(1)
        };
        assert!(Answer::decode(&encode(1, 100, 100)[4..]).is_some());
        for (base, len, chunk) in
            [(u64::MAX, 2, 2), (1, 100, 0), (1, u64::MAX / 2, 1), (1, 100, 99)]
        {
            assert_eq!(
                Answer::decode(&encode(base, len, chunk)[4..]),
                None,
                "{base} {len} {chunk}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_bytes_break_the_decoders(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (Request::decode(&bytes), Answer::decode(&bytes));
        }

        #[test]
        fn messages_that_are_cut_are_refused(cut in 1_usize..60) {
            for frame in [Request::Lanes(vec![lane()]).encode(1), Answer::Ports(vec![port()]).encode(1)] {
                let cut = cut.min(frame.len() - 4);
                prop_assert_eq!(Request::decode(&frame[4..frame.len() - cut]), None);
                prop_assert_eq!(Answer::decode(&frame[4..frame.len() - cut]), None);
            }
        }
    }
}
