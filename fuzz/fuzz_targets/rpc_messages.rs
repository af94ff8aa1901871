//! Requests of every method, made of fields that the contract has and of fields that it
//! does not have, one after the other through a master's service: what a peer can say.
//!
//! Every answer must be the message that the contract promises, every refusal must say
//! why, and a second master must answer the same calls with the same bytes.

#![no_main]

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arbitrary::Arbitrary;
use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use mc_meta::{
    LocalDiskConfig, LocalDiskSpec, Master, MasterConfig, PromotionConfig, PutEnd, PutStart,
    ReplicateConfig, SegmentSpec, SharedTierConfig, TenantId,
};
use mc_rpc::{
    Call, Caller, Clock, MAX_MESSAGE_LEN, MasterService, Method, Role, Service, StorageSettings,
};
use mc_ticket::{ClockEpoch, GrantSecret, TicketKey};
use mc_types::{
    ClientId, Endpoint, JobId, KeyRef, LocalDiskId, RemoteKey, SegmentId, TaskId, Time,
};
use protox::prost_reflect::{DescriptorPool, DynamicMessage, FieldDescriptor, Kind};
use protox::prost_reflect::{MessageDescriptor, ServiceDescriptor};

const NODE: ClientId = ClientId::from_u128(1);
const WRITER: ClientId = ClientId::from_u128(2);

/// From which the master derives what ends a put.
const SECRET: GrantSecret = GrantSecret::from_bytes([3; 16]);

/// The request that names what is read in one of two ways.
const BATCH_GET: &str = "BatchGetReplicaListRequest";

/// Messages inside messages beyond this are empty.
const MAX_DEPTH: usize = 6;

/// A message that is longer gets no more fields.
const MAX_LEN: usize = 64 << 10;

/// Texts that mean something to the master.
const WORDS: [&str; 16] = [
    "k",
    "k2",
    "new",
    "node-1",
    "node-2",
    "node-3",
    "default",
    "blue",
    "red",
    "tcp://h:1",
    ".*",
    "^k",
    "(a|a)*$",
    "a b",
    "\0blue\0k",
    "",
];

#[derive(Arbitrary, Debug)]
struct Ask {
    method: u8,
    who: Who,
    /// Whether the answer must be short.
    short: bool,
    /// Milliseconds since the call before.
    later: u16,
    /// Whether every field comes once first, with a value that makes sense, and which.
    filled: Option<u8>,
    parts: Vec<Part>,
    /// Bytes after the last field, of which some are cut off.
    torn: Option<Vec<u8>>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Who {
    Anybody,
    Reader,
    Writer,
    BlueWriter,
    Node,
    OtherNode,
    Admin,
}

#[derive(Arbitrary, Debug)]
enum Part {
    /// One of the message's own fields, of the type that the contract says.
    Own { place: u8, times: u8, value: Value },
    /// Any field of any type.
    Any { number: u8, times: u8, wire: Wire },
}

#[derive(Arbitrary, Debug)]
struct Value {
    number: Number,
    text: Text,
    parts: Vec<Part>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Number {
    Small(u8),
    Any(u64),
    Max,
}

#[derive(Arbitrary, Debug)]
enum Text {
    Word(u8),
    Id(u8),
    Bytes(Vec<u8>),
    Long(u16),
}

#[derive(Arbitrary, Debug)]
enum Wire {
    Varint(u64),
    /// A number of more bytes than it can have.
    LongVarint,
    Fixed64(u64),
    Fixed32(u32),
    Text(Text),
    /// A length that the message does not have.
    Beyond(u32),
    Message(Vec<Part>),
    /// A type that the format has no more, or never had.
    Unknown(u8),
}

fn contract() -> &'static ServiceDescriptor {
    static CONTRACT: OnceLock<ServiceDescriptor> = OnceLock::new();
    CONTRACT.get_or_init(|| {
        let proto = concat!(env!("CARGO_MANIFEST_DIR"), "/../mc-rpc/proto");
        let files = protox::compile(["mc/store/v1/master.proto"], [proto]).expect("it compiles");
        let pool = DescriptorPool::from_file_descriptor_set(files).expect("it is sound");
        pool.get_service_by_name("mc.store.v1.MasterService").expect("it is there")
    })
}

/// The ids that requests use: those that the master knows, by their place.
struct Ids([[u8; 16]; 8]);

impl Ids {
    fn text<'t>(&'t self, text: &'t Text) -> Cow<'t, [u8]> {
        match text {
            Text::Word(at) => WORDS[usize::from(*at) % WORDS.len()].as_bytes().into(),
            Text::Id(at) => self.0[usize::from(*at) % self.0.len()].as_slice().into(),
            Text::Bytes(bytes) => bytes.as_slice().into(),
            Text::Long(len) => vec![b'x'; usize::from(*len)].into(),
        }
    }

    /// Every field of a message once, each with a value that may be what is asked for.
    fn filled(&self, kind: &MessageDescriptor, vary: u8, depth: usize) -> Vec<u8> {
        let (mut out, pick) = (Vec::new(), usize::from(vary));
        for field in kind.fields() {
            let at = u64::from(field.number());
            match (field.name(), field.kind()) {
                ("after", _) if vary & 4 == 0 => {}
                // What a call names when it means a certain put or copy.
                ("put_token" | "transfer_token", _) => {
                    put_varint(&mut out, at << 3 | 1);
                    let token = SECRET.token(small(vary)).as_u64();
                    out.extend_from_slice(&token.to_le_bytes());
                }
                ("ranges", _) => {
                    for number in [small(vary), 64] {
                        put_varint(&mut out, at << 3);
                        put_varint(&mut out, number);
                    }
                }
                // One of the two that say what is read.
                ("keys", _) if vary & 4 != 0 && kind.name() == BATCH_GET => {}
                ("reads", _) if vary & 4 == 0 && kind.name() == BATCH_GET => {}
                (_, Kind::Message(kind)) if depth < MAX_DEPTH => {
                    put_bytes(&mut out, at, &self.filled(&kind, vary, depth + 1));
                }
                ("client_id" | "client_ids", _) => put_bytes(&mut out, at, &self.0[pick % 2]),
                ("task_id", _) => put_bytes(&mut out, at, &self.0[6]),
                ("job_id", _) => put_bytes(&mut out, at, &self.0[7]),
                (_, Kind::Bytes) => put_bytes(&mut out, at, &self.0[3 + pick % 3]),
                ("tenant_id", _) => {
                    put_bytes(&mut out, at, ["", "default", "blue"][pick % 3].as_bytes());
                }
                ("endpoint", _) => put_bytes(&mut out, at, b"tcp://h:1"),
                ("source", _) => put_bytes(&mut out, at, b"node-1"),
                ("target" | "targets", _) => put_bytes(&mut out, at, b"node-2"),
                ("key_regex", _) => put_bytes(&mut out, at, b"^k"),
                ("segment_name" | "segments", _) => {
                    put_bytes(&mut out, at, ["node-1", "node-2", "node-3"][pick % 3].as_bytes());
                }
                (_, Kind::String) => {
                    put_bytes(&mut out, at, ["k", "k2", "new"][pick / 3 % 3].as_bytes());
                }
                // Those of the slices, which have their own way to be wrong.
                (_, Kind::Fixed32 | Kind::Message(_)) => {}
                (_, _) => {
                    put_varint(&mut out, at << 3);
                    put_varint(&mut out, small(vary));
                }
            }
        }
        out
    }

    fn message(&self, kind: Option<&MessageDescriptor>, parts: &[Part], depth: usize) -> Vec<u8> {
        let mut out = Vec::new();
        for part in parts {
            if depth < MAX_DEPTH && out.len() < MAX_LEN {
                self.part(kind, part, depth, &mut out);
            }
        }
        out
    }

    fn part(&self, kind: Option<&MessageDescriptor>, part: &Part, depth: usize, out: &mut Vec<u8>) {
        let before = out.len();
        let times = match part {
            Part::Own { place, times, value } => {
                let fields: Vec<FieldDescriptor> =
                    kind.map(|kind| kind.fields().collect()).unwrap_or_default();
                if !fields.is_empty() {
                    self.own(&fields[usize::from(*place) % fields.len()], value, depth, out);
                }
                times
            }
            Part::Any { number, times, wire } => {
                self.any(u64::from(number % 40 + 1), wire, depth, out);
                times
            }
        };
        // Most fields come once, some as often as limits are for.
        let field = out[before..].to_vec();
        for _ in 0..times.saturating_sub(200) {
            if out.len() < MAX_LEN {
                out.extend_from_slice(&field);
            }
        }
    }

    fn own(&self, field: &FieldDescriptor, value: &Value, depth: usize, out: &mut Vec<u8>) {
        let number = match value.number {
            Number::Small(number) => number.into(),
            Number::Any(number) => number,
            Number::Max => u64::MAX,
        };
        let at = u64::from(field.number());
        match field.kind() {
            Kind::Message(kind) => {
                put_bytes(out, at, &self.message(Some(&kind), &value.parts, depth + 1));
            }
            Kind::String | Kind::Bytes => put_bytes(out, at, &self.text(&value.text)),
            Kind::Fixed32 | Kind::Sfixed32 | Kind::Float => {
                put_varint(out, at << 3 | 5);
                out.extend_from_slice(&(number as u32).to_le_bytes());
            }
            Kind::Fixed64 | Kind::Sfixed64 | Kind::Double => {
                put_varint(out, at << 3 | 1);
                out.extend_from_slice(&number.to_le_bytes());
            }
            _ => {
                put_varint(out, at << 3);
                put_varint(out, number);
            }
        }
    }

    fn any(&self, at: u64, wire: &Wire, depth: usize, out: &mut Vec<u8>) {
        match wire {
            Wire::Varint(number) => {
                put_varint(out, at << 3);
                put_varint(out, *number);
            }
            Wire::LongVarint => {
                put_varint(out, at << 3);
                out.extend_from_slice(&[0xff; 11]);
            }
            Wire::Fixed64(number) => {
                put_varint(out, at << 3 | 1);
                out.extend_from_slice(&number.to_le_bytes());
            }
            Wire::Fixed32(number) => {
                put_varint(out, at << 3 | 5);
                out.extend_from_slice(&number.to_le_bytes());
            }
            Wire::Text(text) => put_bytes(out, at, &self.text(text)),
            Wire::Beyond(len) => {
                put_varint(out, at << 3 | 2);
                put_varint(out, (*len).into());
            }
            Wire::Message(parts) => put_bytes(out, at, &self.message(None, parts, depth + 1)),
            Wire::Unknown(kind) => put_varint(out, at << 3 | [3, 4, 6, 7][usize::from(kind % 4)]),
        }
    }
}

/// A number that may be that of a put or a length.
fn small(vary: u8) -> u64 {
    [0, 1, 3, 64][usize::from(vary >> 4) % 4]
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_bytes(out: &mut Vec<u8>, number: u64, bytes: &[u8]) {
    put_varint(out, number << 3 | 2);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Moves with the calls.
struct Hand(AtomicU64);

impl Clock for Hand {
    fn now(&self) -> Time {
        Time::from_millis(self.0.load(Ordering::Relaxed))
    }
}

fn segment(number: u8) -> SegmentSpec {
    SegmentSpec {
        id: SegmentId::from_u128(number.into()),
        name: format!("node-{number}").into(),
        base: 4096,
        size: 1 << 20,
        endpoint: Endpoint::new("tcp", "h:1").expect("a fixed good endpoint"),
        remote_key: RemoteKey::from_bytes([number; 16]),
        // Tickets open the first one, its key alone the others.
        ticket_key: (number == 1).then(|| TicketKey::from_bytes([9; 16])),
        medium: mc_types::MediaType::Dram,
    }
}

fn key(text: &str) -> KeyRef<'_> {
    KeyRef::new(text).expect("a fixed good key")
}

/// A master with two tenants, two segments, a disk, four objects, a task, and a drain job.
fn master(now: Time) -> (Master, TaskId, JobId) {
    let mut config = MasterConfig::default();
    config.multi_tenant = true;
    config.shared_tier = Some(SharedTierConfig::with_capacity(1 << 20));
    config.local_disk = Some(LocalDiskConfig::default());
    config.promotion = Some(PromotionConfig::default());
    let master = Master::new(config, 7).expect("the settings make sense").with_secret(SECRET);
    let blue = TenantId::new("blue").expect("a fixed good name");
    for number in 1..=2 {
        master.mount_segment(now, NODE, segment(number)).expect("nothing like it is mounted");
    }
    let disk = LocalDiskSpec {
        id: LocalDiskId::from_bytes(NODE.to_bytes()),
        endpoint: segment(1).endpoint,
        remote_key: RemoteKey::from_bytes([4; 16]),
        ticket_key: Some(TicketKey::from_bytes([9; 16])),
    };
    master.mount_local_disk(now, NODE, disk, true).expect("there are disks");
    for tenant in [&TenantId::DEFAULT, &blue] {
        master.set_tenant_quota(now, tenant, 1 << 19).expect("there are tenants");
        for text in ["k", "k2"] {
            let key = master.scoped(tenant, key(text)).expect("the key is short");
            let config = ReplicateConfig::default().prefer("node-1");
            let start = PutStart { key: key.as_ref(), slice_lengths: &[64], config: &config };
            let grant = master.put_start(now, WRITER, &start).expect("there is room");
            let end = PutEnd::new(key.as_ref(), grant.handle);
            master.put_end(now, WRITER, &end).expect("the put is open");
        }
    }
    let task = master.create_copy_task(now, key("k2"), &["node-2"]).expect("there is room");
    let job = master.create_drain_job(now, &["node-2"], &[], 1).expect("there is a target");
    (master, task, job)
}

fn caller(who: Who) -> Caller {
    let blue = TenantId::new("blue").expect("a fixed good name");
    match who {
        Who::Anybody => Caller::ANYBODY,
        Who::Reader => Caller::new("reader", Role::Reader),
        Who::Writer => Caller::new("writer", Role::Writer),
        Who::BlueWriter => Caller::new("blue", Role::Writer).of_tenant(blue),
        Who::Node => Caller::new("node", Role::Node),
        Who::OtherNode => Caller::new("other", Role::Node).of_tenant(blue),
        Who::Admin => Caller::new("root", Role::Admin),
    }
}

/// Makes the calls, and says what was answered.
fn run(asks: &[Ask]) -> Vec<u8> {
    let clock = Arc::new(Hand(AtomicU64::new(1000)));
    let (master, task, job) = master(clock.now());
    let ids = Ids([
        NODE.to_bytes(),
        WRITER.to_bytes(),
        ClientId::from_u128(3).to_bytes(),
        segment(1).id.to_bytes(),
        segment(2).id.to_bytes(),
        segment(3).id.to_bytes(),
        task.to_bytes(),
        job.to_bytes(),
    ]);
    let service = MasterService::new(Arc::new(master), Arc::clone(&clock));
    let service = service.with_clock_epoch(ClockEpoch::new(5));
    let service = service.with_storage(StorageSettings::in_directory("/files"));
    let (mut told, mut out) = (Vec::new(), BytesMut::new());
    for ask in asks {
        clock.0.fetch_add(ask.later.into(), Ordering::Relaxed);
        if ask.later > 0 {
            service.master().tick(clock.now());
        }
        let method = Method::ALL[usize::from(ask.method) % Method::ALL.len()];
        let rpc = contract().methods().find(|rpc| rpc.name() == method.as_str());
        let rpc = rpc.expect("every method is in the contract");
        let mut payload = Vec::new();
        if let Some(vary) = ask.filled {
            payload.extend_from_slice(&ids.filled(&rpc.input(), vary, 0));
        }
        payload.extend_from_slice(&ids.message(Some(&rpc.input()), &ask.parts, 0));
        payload.extend_from_slice(ask.torn.as_deref().unwrap_or_default());
        let max_reply = if ask.short { 64 << 10 } else { 1 << 20 };
        let caller = caller(ask.who);
        out.clear();
        out.extend_from_slice(b"before");
        match service.call(Call::new(method, &payload, max_reply, &caller), &mut out) {
            Ok(_) => {
                assert_eq!(&out[..6], b"before");
                let answer = DynamicMessage::decode(rpc.output(), &out[6..])
                    .unwrap_or_else(|error| panic!("{method}: {error}"));
                assert!(answer.unknown_fields().next().is_none(), "{method}: {answer:?}");
                let code = answer.get_field_by_name("status_code").expect("every answer has one");
                assert_eq!(code.as_i32(), Some(0), "{method}: {answer:?}");
                told.extend_from_slice(&out[6..]);
            }
            Err(refusal) => {
                assert!(refusal.code.code() < 0, "{method}: {refusal:?}");
                let len = refusal.message.len();
                assert!((1..=MAX_MESSAGE_LEN).contains(&len), "{method}: {refusal:?}");
                told.extend_from_slice(&refusal.code.code().to_le_bytes());
                told.extend_from_slice(refusal.message.as_bytes());
            }
        }
    }
    told
}

fuzz_target!(|asks: Vec<Ask>| {
    let told = run(&asks);
    assert!(told == run(&asks), "a second master answers otherwise");
});
