//! Messages at the Unix socket: frames of a length (u32, little-endian) and as many bytes
//! in the encoding of [postcard](https://postcard.jamesmunns.com/wire-format).
//!
//! Every list has a limit that decoding enforces while it goes, so that no message makes
//! its reader allocate more than a small multiple of the message's own length, which is
//! limited, too.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use mc_meta::{MAX_NAMED_SEGMENTS, ReplicateConfig, SoftPinAction};
use mc_rpc::Refusal;
use mc_transport::backend::{Label, Nonce, Proof};
use mc_types::{ErrorCode, MAX_KEY_LEN, MAX_TOKEN_IDS, MediaType, ObjectKey, StoreEventInfo};
use serde::de::{DeserializeOwned, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::described::{Described, Reported};

/// The version of the protocol; both sides must have the same.
pub(super) const VERSION: u16 = 7;

/// The first bytes of a hello.
pub(super) const MAGIC: [u8; 8] = *b"MCDUMMY\0";

/// The labels by which the two sides prove who they are, with the secret that crosses the TCP port
/// and never the Unix socket.
pub(super) const DUMMY: &Label = b"mc-real/1 dummy\0";
pub(super) const SERVER: &Label = b"mc-real/1 server";

/// Longest frame, without its length. Holds as many of the longest keys as a call may name.
pub(super) const MAX_FRAME: usize = 2 << 20;

/// Longest frame before a peer is admitted.
pub(super) const MAX_FRAME_OF_STRANGER: usize = 256;

/// Most objects that one call names.
pub(super) const MAX_OBJECTS: usize = 1024;

/// Most pieces of memory that one object is in.
pub(super) const MAX_PIECES: usize = 1024;

/// Most pieces of memory that one call names.
pub(super) const MAX_PIECES_OF_CALL: usize = 4096;

/// Bytes of event infos in one call, unless a single one has more.
pub(super) const INFO_BYTES_OF_CALL: usize = 512 << 10;

/// Most bytes of a failure's text that travel.
const MAX_MESSAGE: usize = 512;

/// The thin client's first frame. The first two fields never change.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) magic: [u8; 8],
    pub(super) version: u16,
    pub(super) nonce: Nonce,
    /// The session that this one continues: its calls may still touch memory that will be
    /// registered again, so they are waited for.
    pub(super) previous: Option<u64>,
}

/// The verdict on a peer that says hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Verdict {
    Welcome,
    UnknownVersion,
    WrongUser,
    NotProven,
    /// As many thin clients as may be.
    Busy,
    /// Calls of the previous session are still running.
    Unsettled,
}

/// The server's answer to a hello.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Welcome {
    pub(super) verdict: Verdict,
    pub(super) version: u16,
    pub(super) nonce: Nonce,
    pub(super) proof: Proof,
    /// Calls that the thin client may leave open.
    pub(super) max_calls: u32,
    /// The session to continue later.
    pub(super) session: u64,
}

/// The thin client's second frame.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Admission {
    pub(super) proof: Proof,
}

/// The server's last frame of the handshake.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Admitted {
    pub(super) verdict: Verdict,
}

/// A call, and the number that its answer will have.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Request<'a> {
    pub(super) id: u64,
    pub(super) call: Call<'a>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Call<'a> {
    /// Comes with a descriptor. Replaces what had this number.
    Register {
        memory: u32,
        len: u64,
    },
    Unregister {
        memory: u32,
    },
    Put(PutCall<'a>),
    Get {
        #[serde(deserialize_with = "at_most::<_, _, MAX_OBJECTS>")]
        gets: Vec<Wanted<'a>>,
    },
    Exist(Keys<'a>),
    LongestPrefix(Keys<'a>),
    Remove {
        keys: Keys<'a>,
        force: bool,
    },
    RemoveAll {
        force: bool,
    },
    Stat(Keys<'a>),
    /// A page of the keys that match; the cursor is that of the page before.
    Find {
        pattern: Cow<'a, str>,
        cursor: u64,
        limit: u32,
    },
    RemoveByRegex {
        pattern: Cow<'a, str>,
        force: bool,
    },
    Describe {
        key: Cow<'a, str>,
    },
    Copy {
        key: Cow<'a, str>,
        #[serde(deserialize_with = "at_most::<_, _, MAX_NAMED_SEGMENTS>")]
        targets: Vec<Cow<'a, str>>,
    },
    Move {
        key: Cow<'a, str>,
        source: Cow<'a, str>,
        target: Cow<'a, str>,
    },
    Task {
        id: [u8; 16],
    },
    Probe(Keys<'a>),
    /// The puts of the keys, in their order.
    RemoveGenerations {
        keys: Keys<'a>,
        #[serde(deserialize_with = "at_most::<_, _, MAX_OBJECTS>")]
        generations: Vec<u64>,
    },
}

impl Call<'_> {
    /// More bytes than the answer has.
    pub(super) fn answer_len(&self) -> usize {
        /// A failure's text, and its other fields.
        const FAILURE: usize = MAX_MESSAGE + 32;
        /// Replicas, tasks and what happened to a key.
        const REPORT: usize = 64 << 10;
        /// The bytes of a key's header.
        const KEY_HEAD: usize = 8;
        match self {
            Call::Put(call) => FAILURE * call.puts.len().max(1),
            Call::Get { gets } => FAILURE * gets.len().max(1),
            Call::Remove { keys, .. } | Call::RemoveGenerations { keys, .. } | Call::Stat(keys) => {
                FAILURE * keys.0.len().max(1)
            }
            Call::Exist(keys) | Call::Probe(keys) => FAILURE + keys.0.len(),
            Call::Find { limit, .. } => {
                FAILURE + (*limit as usize).min(MAX_OBJECTS) * (MAX_KEY_LEN + KEY_HEAD)
            }
            Call::Describe { .. } | Call::Task { .. } => REPORT,
            Call::Register { .. }
            | Call::Unregister { .. }
            | Call::LongestPrefix(_)
            | Call::RemoveAll { .. }
            | Call::RemoveByRegex { .. }
            | Call::Copy { .. }
            | Call::Move { .. } => FAILURE,
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PutCall<'a> {
    #[serde(deserialize_with = "at_most::<_, _, MAX_OBJECTS>")]
    pub(super) puts: Vec<NewObject<'a>>,
    pub(super) config: Config<'a>,
    /// Whether values that are there are replaced.
    pub(super) upsert: bool,
}

/// Keys of objects.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Keys<'a>(
    #[serde(deserialize_with = "at_most::<_, _, MAX_OBJECTS>")] pub(super) Vec<Cow<'a, str>>,
);

impl<'a> Keys<'a> {
    pub(super) fn borrowed(keys: &[&'a str]) -> Self {
        Self(keys.iter().map(|key| Cow::Borrowed(*key)).collect())
    }

    pub(super) fn as_strs(&self) -> Vec<&str> {
        self.0.iter().map(|key| &**key).collect()
    }
}

/// An object and where its bytes are, or go.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Object<'a> {
    pub(super) key: Cow<'a, str>,
    #[serde(deserialize_with = "at_most::<_, _, MAX_PIECES>")]
    pub(super) pieces: Vec<Span>,
}

/// An object to store.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct NewObject<'a> {
    pub(super) object: Object<'a>,
    /// The checksums at the thin client's call of those pieces that the application can change.
    #[serde(deserialize_with = "at_most::<_, _, MAX_PIECES>")]
    pub(super) checksums: Vec<Option<u32>>,
    pub(super) event_info: Option<EventInfo<'a>>,
}

/// A [`StoreEventInfo`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct EventInfo<'a> {
    model_name: Cow<'a, str>,
    block_size: u32,
    block_hash: Cow<'a, str>,
    parent_block_hash: Cow<'a, str>,
    #[serde(deserialize_with = "token_ids")]
    token_ids: Cow<'a, [u32]>,
}

fn token_ids<'de, 'a, D: Deserializer<'de>>(tokens: D) -> Result<Cow<'a, [u32]>, D::Error> {
    at_most::<_, _, MAX_TOKEN_IDS>(tokens).map(Cow::Owned)
}

impl EventInfo<'_> {
    /// At least the bytes of its encoding.
    pub(super) fn max_len(&self) -> usize {
        let names = [&self.model_name, &self.block_hash, &self.parent_block_hash];
        let names: usize = names.map(|name| name.len()).iter().sum();
        names + 5 * self.token_ids.len() + 32
    }
}

impl<'a> From<&'a StoreEventInfo> for EventInfo<'a> {
    fn from(info: &'a StoreEventInfo) -> Self {
        Self {
            model_name: Cow::Borrowed(&info.model_name),
            block_size: info.block_size,
            block_hash: Cow::Borrowed(&info.block_hash),
            parent_block_hash: Cow::Borrowed(&info.parent_block_hash),
            token_ids: Cow::Borrowed(&info.token_ids),
        }
    }
}

impl From<EventInfo<'_>> for StoreEventInfo {
    fn from(info: EventInfo<'_>) -> Self {
        Self {
            model_name: info.model_name.into_owned(),
            block_size: info.block_size,
            block_hash: info.block_hash.into_owned(),
            parent_block_hash: info.parent_block_hash.into_owned(),
            token_ids: info.token_ids.into_owned(),
        }
    }
}

/// An object to read, or the bytes of it from the first number to the second.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Wanted<'a> {
    pub(super) object: Object<'a>,
    pub(super) range: Option<(u64, u64)>,
    /// The only put that it may be of.
    pub(super) generation: Option<u64>,
}

/// Bytes of registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Span {
    pub(super) memory: u32,
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// A [`SoftPinAction`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum SoftPin {
    Preserve,
    Enable(Option<Duration>),
    Disable,
}

impl From<SoftPinAction> for SoftPin {
    fn from(action: SoftPinAction) -> Self {
        match action {
            SoftPinAction::Preserve => Self::Preserve,
            SoftPinAction::Enable { ttl } => Self::Enable(ttl),
            SoftPinAction::Disable => Self::Disable,
        }
    }
}

impl From<SoftPin> for SoftPinAction {
    fn from(pin: SoftPin) -> Self {
        match pin {
            SoftPin::Preserve => Self::Preserve,
            SoftPin::Enable(ttl) => Self::Enable { ttl },
            SoftPin::Disable => Self::Disable,
        }
    }
}

/// A [`ReplicateConfig`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Config<'a> {
    replica_num: u32,
    soft_pin: SoftPin,
    with_hard_pin: bool,
    group: Option<Cow<'a, str>>,
    parent: Option<Cow<'a, str>>,
    #[serde(deserialize_with = "at_most::<_, _, MAX_NAMED_SEGMENTS>")]
    preferred_segments: Vec<Cow<'a, str>>,
    #[serde(deserialize_with = "at_most::<_, _, MAX_NAMED_SEGMENTS>")]
    excluded_segments: Vec<Cow<'a, str>>,
    medium: Option<u8>,
}

impl<'a> From<&'a ReplicateConfig> for Config<'a> {
    fn from(config: &'a ReplicateConfig) -> Self {
        fn names(names: &[Box<str>]) -> Vec<Cow<'_, str>> {
            names.iter().map(|name| Cow::Borrowed(&**name)).collect()
        }
        Self {
            replica_num: config.replica_num,
            soft_pin: config.soft_pin.into(),
            with_hard_pin: config.with_hard_pin,
            group: config.group.as_deref().map(Cow::Borrowed),
            parent: config.parent.as_ref().map(|key| Cow::Borrowed(key.as_str())),
            preferred_segments: names(&config.preferred_segments),
            excluded_segments: names(&config.excluded_segments),
            medium: config.medium.map(MediaType::number),
        }
    }
}

fn decoded_medium(number: u8) -> Result<MediaType, Failure> {
    let unknown = || Failure::new(ErrorCode::InvalidParams, "medium is unknown", false);
    MediaType::from_number(number).ok_or_else(unknown)
}

impl Config<'_> {
    pub(super) fn decoded(&self) -> Result<ReplicateConfig, Failure> {
        let names = |names: &[Cow<'_, str>]| names.iter().map(|name| (&**name).into()).collect();
        let parent = self.parent.as_deref().map(ObjectKey::new).transpose();
        let parent = parent.map_err(|error| Failure::new(ErrorCode::InvalidKey, error, false))?;
        let mut config = ReplicateConfig::default();
        config.replica_num = self.replica_num;
        config.soft_pin = self.soft_pin.into();
        config.with_hard_pin = self.with_hard_pin;
        config.group = self.group.as_deref().map(Into::into);
        config.parent = parent;
        config.preferred_segments = names(&self.preferred_segments);
        config.excluded_segments = names(&self.excluded_segments);
        config.medium = self.medium.map(decoded_medium).transpose()?;
        Ok(config)
    }
}

/// The answer to the call with this number.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Response {
    pub(super) id: u64,
    pub(super) outcome: Result<Reply, Failure>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    Done,
    Put(#[serde(deserialize_with = "at_most::<_, _, MAX_OBJECTS>")] Vec<Result<Outcome, Failure>>),
    Lengths(#[serde(deserialize_with = "at_most::<_, _, MAX_OBJECTS>")] Vec<Result<u64, Failure>>),
    /// Lengths and generations.
    Stats(
        #[serde(deserialize_with = "at_most::<_, _, MAX_OBJECTS>")]
        Vec<Result<(u64, u64), Failure>>,
    ),
    Flags(#[serde(deserialize_with = "at_most::<_, _, MAX_OBJECTS>")] Vec<bool>),
    Each(#[serde(deserialize_with = "at_most::<_, _, MAX_OBJECTS>")] Vec<Result<(), Failure>>),
    Count(u64),
    /// Keys, and the cursor of the next page.
    Keys {
        #[serde(deserialize_with = "at_most::<_, _, MAX_OBJECTS>")]
        keys: Vec<String>,
        next: Option<u64>,
    },
    Described(Box<Described>),
    Task([u8; 16]),
    Reported(Box<Reported>),
}

/// A [`PutOutcome`](mc_store::PutOutcome).
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Outcome {
    Stored,
    Existing,
    Pending,
}

/// Why something failed, in the node agent's words.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Failure {
    /// An [`ErrorCode`].
    pub(super) code: i32,
    pub(super) retryable: bool,
    /// Bytes of the object for which the target is too small.
    pub(super) needed: Option<u64>,
    pub(super) message: String,
}

impl Failure {
    pub(super) fn new(code: ErrorCode, error: impl fmt::Display, retryable: bool) -> Self {
        let mut message = error.to_string();
        if message.len() > MAX_MESSAGE {
            let cut = (0..=MAX_MESSAGE).rev().find(|&at| message.is_char_boundary(at));
            message.truncate(cut.unwrap_or(0));
        }
        Self { code: code.code(), retryable, needed: None, message }
    }

    pub(super) fn invalid(error: impl fmt::Display) -> Self {
        Self::new(ErrorCode::InvalidParams, error, false)
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::new(refusal.code, &refusal.message, refusal.is_retryable())
    }
}

/// A frame with `message` in it.
///
/// # Errors
/// When the message is longer than a frame may be.
pub(super) fn encode(message: &impl Serialize) -> Result<Vec<u8>, TooLong> {
    let frame = postcard::to_extend(message, vec![0; 4])
        .expect("every message has an encoding, and a vector takes it");
    let len = frame.len() - 4;
    if len > MAX_FRAME {
        return Err(TooLong { len });
    }
    let mut frame = frame;
    frame[..4].copy_from_slice(&(len as u32).to_le_bytes()); // at most MAX_FRAME
    Ok(frame)
}

/// A message is longer than a frame may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLong {
    pub(super) len: usize,
}

/// The message in the bytes of a frame; `None` when they are none, or more.
pub(super) fn decode<T: DeserializeOwned>(frame: &[u8]) -> Option<T> {
    match postcard::take_from_bytes(frame) {
        Ok((message, [])) => Some(message),
        _ => None,
    }
}

/// A list with at most `MAX` elements, refused before there is memory for more.
pub(super) fn at_most<'de, D, T, const MAX: usize>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Bounded<T, const MAX: usize>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Bounded<T, MAX> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {MAX} elements")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<T>, A::Error> {
            let announced = elements.size_hint().unwrap_or(0);
            if announced > MAX {
                return Err(A::Error::invalid_length(announced, &self));
            }
            let mut list = Vec::with_capacity(announced);
            while let Some(element) = elements.next_element()? {
                if list.len() == MAX {
                    return Err(A::Error::invalid_length(MAX + 1, &self));
                }
                list.push(element);
            }
            Ok(list)
        }
    }

    deserializer.deserialize_seq(Bounded::<T, MAX>(PhantomData))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(objects: usize, pieces: usize) -> Request<'static> {
        let pieces = vec![Span { memory: 1, offset: 2, len: 3 }; pieces];
        let object = |_| Wanted {
            object: Object { key: Cow::Borrowed("k"), pieces: pieces.clone() },
            range: None,
            generation: None,
        };
        Request { id: 7, call: Call::Get { gets: (0..objects).map(object).collect() } }
    }

    fn decoded(request: &Request<'_>) -> Option<Request<'static>> {
        decode(&encode(request).unwrap()[4..])
    }

    #[test]
    fn lists_have_limits() {
        assert!(decoded(&request(MAX_OBJECTS, 1)).is_some());
        assert!(decoded(&request(MAX_OBJECTS + 1, 0)).is_none());
        assert!(decoded(&request(1, MAX_PIECES)).is_some());
        assert!(decoded(&request(1, MAX_PIECES + 1)).is_none());
        // A list that announces more than there can be.
        assert!(decode::<Request<'_>>(&[7, 3, 0xff, 0xff, 0xff, 0xff, 0x0f]).is_none());
    }

    #[test]
    fn the_longest_batch_fits_in_a_frame() {
        let key = "k".repeat(MAX_KEY_LEN);
        let worst = Span { memory: u32::MAX, offset: u64::MAX, len: u64::MAX };
        let info = StoreEventInfo {
            token_ids: vec![u32::MAX; INFO_BYTES_OF_CALL / MAX_OBJECTS / 5],
            ..StoreEventInfo::default()
        };
        let object = |_| NewObject {
            object: Object {
                key: Cow::Borrowed(&*key),
                pieces: vec![worst; MAX_PIECES_OF_CALL / MAX_OBJECTS],
            },
            checksums: vec![Some(u32::MAX); MAX_PIECES_OF_CALL / MAX_OBJECTS],
            event_info: Some((&info).into()),
        };
        let config = ReplicateConfig::default();
        let puts = (0..MAX_OBJECTS).map(object).collect();
        let call = Call::Put(PutCall { puts, config: (&config).into(), upsert: false });
        assert!(encode(&Request { id: u64::MAX, call }).is_ok());
        let failure = Failure::new(ErrorCode::Internal, "x".repeat(5000), true);
        let reply = Reply::Lengths(vec![Err(failure); MAX_OBJECTS]);
        assert!(encode(&Response { id: u64::MAX, outcome: Ok(reply) }).is_ok());
        let keys = vec![Cow::Owned("k".repeat(MAX_FRAME / 1000)); MAX_OBJECTS];
        let request = Request { id: 0, call: Call::Exist(Keys(keys)) };
        assert!(encode(&request).is_err());
    }

    #[test]
    fn event_infos_have_limits() {
        let longest = |text: &str, tokens| StoreEventInfo {
            model_name: text.into(),
            block_size: u32::MAX,
            block_hash: text.into(),
            parent_block_hash: text.into(),
            token_ids: vec![u32::MAX; tokens],
        };
        let text = "ü".repeat(mc_types::MAX_MODEL_NAME / 2);
        for info in [longest(&text, MAX_TOKEN_IDS), StoreEventInfo::default()] {
            let wire = EventInfo::from(&info);
            let bytes = encode(&wire).unwrap();
            assert!(bytes.len() <= wire.max_len());
            let read: EventInfo<'_> = decode(&bytes[4..]).unwrap();
            assert_eq!(StoreEventInfo::from(read), info);
        }
        let bytes = encode(&EventInfo::from(&longest("", MAX_TOKEN_IDS + 1))).unwrap();
        assert!(decode::<EventInfo<'_>>(&bytes[4..]).is_none());
    }

    #[test]
    fn what_is_cut_or_has_a_tail_is_no_message() {
        let bytes = encode(&request(3, 2)).unwrap();
        for len in 0..bytes.len() - 4 {
            assert!(decode::<Request<'_>>(&bytes[4..4 + len]).is_none(), "{len}");
        }
        let mut tail = bytes.clone();
        tail.push(0);
        assert!(decode::<Request<'_>>(&tail[4..]).is_none());
    }

    #[test]
    fn a_config_travels_whole() {
        let config = ReplicateConfig::default()
            .replicas(3)
            .soft_pin()
            .hard_pin()
            .group("g")
            .parent(ObjectKey::new("p").unwrap())
            .prefer("a")
            .exclude("b");
        let bytes = encode(&Config::from(&config)).unwrap();
        let read: Config<'_> = decode(&bytes[4..]).unwrap();
        assert_eq!(read.decoded().unwrap(), config);
    }
}
