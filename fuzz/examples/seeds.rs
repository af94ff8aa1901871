//! Writes the seeds of `rpc_frame`: what peers send first, and valid requests of every method.
//!
//! `cargo run --manifest-path fuzz/Cargo.toml --example seeds`, after a change of the protocol. The
//! seeds of the other targets are inputs that a run found and `cargo fuzz cmin` kept.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::{BufMut, BytesMut};
use mc_rpc::frame::{self, ClientPreface, DEFAULT_MAX_PAYLOAD, Hello, Kind};
use mc_rpc::{Method, Role};
use protox::prost_reflect::prost::Message;
use protox::prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, Value};
use protox::prost_reflect::{FieldDescriptor, Kind as Type};

/// Messages inside messages beyond this are empty.
const MAX_DEPTH: usize = 3;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let proto = concat!(env!("CARGO_MANIFEST_DIR"), "/../mc-rpc/proto");
    let files = protox::compile(["mc/store/v1/master.proto"], [proto])?;
    let pool = DescriptorPool::from_file_descriptor_set(files)?;
    let contract = pool.get_service_by_name("mc.store.v1.MasterService").ok_or("no service")?;

    let hello = Hello { session: 7, token: b"secret".as_slice().into(), ..Hello::default() };
    let mut seeds = BTreeMap::new();
    seeds.insert("preface", ClientPreface::with(DEFAULT_MAX_PAYLOAD, &hello));
    for (id, &method) in (1..).zip(Method::ALL) {
        let described = contract.methods().find(|described| described.name() == method.as_str());
        let request = described.ok_or("a method is not in the contract")?.input();
        let file = match method.role() {
            Role::Reader => "reads",
            Role::Writer => "writes",
            Role::Node => "nodes",
            _ => "administrators",
        };
        let out = seeds.entry(file).or_default();
        frame::append_frame(out, id, method.number(), Kind::Request, |out| {
            out.put_slice(&filled(&request, 0).encode_to_vec());
            Ok::<_, std::convert::Infallible>(())
        })?;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds/rpc_frame");
    std::fs::create_dir_all(&folder)?;
    for (name, bytes) in seeds {
        std::fs::write(folder.join(name), bytes)?;
    }
    Ok(())
}

/// A message with a value in each of its fields.
fn filled(kind: &MessageDescriptor, depth: usize) -> DynamicMessage {
    let mut message = DynamicMessage::new(kind.clone());
    for field in kind.fields() {
        let value = value(&field, depth);
        let value = if field.is_list() { Value::List(vec![value]) } else { value };
        message.set_field(&field, value);
    }
    message
}

fn value(field: &FieldDescriptor, depth: usize) -> Value {
    match (field.name(), field.kind()) {
        (_, Type::Message(kind)) if depth < MAX_DEPTH => Value::Message(filled(&kind, depth + 1)),
        (_, Type::Message(kind)) => Value::Message(DynamicMessage::new(kind)),
        (_, Type::Enum(_)) => Value::EnumNumber(1),
        // Ids have sixteen bytes.
        (_, Type::Bytes) => Value::Bytes(vec![1; 16].into()),
        ("endpoint", _) => Value::String("tcp://h:1".to_owned()),
        (_, Type::String) => Value::String("k".to_owned()),
        (_, Type::Bool) => Value::Bool(true),
        (_, Type::Double) => Value::F64(0.5),
        (_, Type::Float) => Value::F32(0.5),
        (_, Type::Int32 | Type::Sint32 | Type::Sfixed32) => Value::I32(1),
        (_, Type::Int64 | Type::Sint64 | Type::Sfixed64) => Value::I64(1),
        (_, Type::Uint32 | Type::Fixed32) => Value::U32(1),
        (_, Type::Uint64 | Type::Fixed64) => Value::U64(1),
    }
}
