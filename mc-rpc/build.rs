//! Generates the protocol's message types from the `.proto`, in Rust alone: no
//! `protoc` is needed where this crate is built. Beside them what the code asks of the
//! descriptors: which messages have items, and where each request has the field
//! `client_id`, so that no call can be added without its being looked at.

use std::env;
use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FileDescriptorProto};

const PROTO: &str = "proto/mc/store/v1/master.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={PROTO}");
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).include_source_info(true).open_file(PROTO)?;
    let descriptors = compiler.file_descriptor_set();

    let out = env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?;
    fs::write(Path::new(&out).join("descriptors.bin"), compiler.encode_file_descriptor_set())?;

    let (mut client_ids, mut shapes) = (String::from("match method {\n"), String::new());
    for file in &descriptors.file {
        write_client_ids(&mut client_ids, file)?;
        write_requests(&mut shapes, file)?;
        for message in &file.message_type {
            // What opens a connection is read before any call.
            if matches!(message.name(), "Hello" | "Welcome") {
                continue;
            }
            write_shape(&mut shapes, &format!(".{}", file.package()), message)?;
            let name = message.name();
            // Only these are read by themselves.
            if !name.ends_with("Request") && !name.ends_with("Response") {
                continue;
            }
            let shape = shape_of(&format!(".{}.{name}", file.package()));
            writeln!(shapes, "impl Shaped for crate::proto::{name} {{")?;
            writeln!(shapes, "    const SHAPE: &'static Shape = &{shape};\n}}")?;
        }
    }
    client_ids.push_str("_ => None,\n}\n");
    fs::write(Path::new(&out).join("client_ids.rs"), client_ids)?;
    fs::write(Path::new(&out).join("shapes.rs"), shapes)?;

    // The same answer is the same bytes: a hash map would write its entries in another order.
    prost_build::Config::new().btree_map(["."]).compile_fds(descriptors)?;
    Ok(())
}

fn write_client_ids(out: &mut String, file: &FileDescriptorProto) -> Result<(), Box<dyn Error>> {
    for rpc in file.service.iter().flat_map(|service| &service.method) {
        let is_request = |name: &str| rpc.input_type().rsplit('.').next() == Some(name);
        let request = file.message_type.iter().find(|message| is_request(message.name()));
        let mut fields = request.into_iter().flat_map(|message| &message.field);
        if let Some(field) = fields.find(|field| field.name() == "client_id") {
            writeln!(out, "Method::{} => Some({}),", rpc.name(), field.number())?;
        }
    }
    Ok(())
}

/// Writes which call each request makes, and its answer.
fn write_requests(out: &mut String, file: &FileDescriptorProto) -> Result<(), Box<dyn Error>> {
    for rpc in file.service.iter().flat_map(|service| &service.method) {
        let of = |name: &str| {
            format!("crate::proto{}", name.replace(&format!(".{}.", file.package()), "::"))
        };
        writeln!(out, "impl RequestMessage for {} {{", of(rpc.input_type()))?;
        writeln!(out, "    const METHOD: Method = Method::{};", rpc.name())?;
        writeln!(out, "    type Answer = {};\n}}", of(rpc.output_type()))?;
    }
    Ok(())
}

/// Writes which fields of the message, and of those declared in it, are repeated or messages.
fn write_shape(
    out: &mut String,
    scope: &str,
    message: &DescriptorProto,
) -> Result<(), Box<dyn Error>> {
    let name = format!("{scope}.{}", message.name());
    writeln!(out, "static {}: Shape = Shape(&[", shape_of(&name))?;
    for field in &message.field {
        let repeat = match (field.label(), field.r#type()) {
            (Label::Repeated, Type::Message | Type::String | Type::Bytes) => "Items",
            (Label::Repeated, _) => "Packed",
            (_, Type::Message) => "Once",
            _ => continue,
        };
        let shape = match field.r#type() {
            Type::Message => format!("Some(&{})", shape_of(field.type_name())),
            _ => "None".into(),
        };
        let (number, name) = (field.number(), field.name());
        writeln!(
            out,
            "    Part {{ number: {number}, name: {name:?}, repeat: FieldRepeat::{repeat}, \
             message: {shape} }},"
        )?;
    }
    writeln!(out, "]);")?;
    message.nested_type.iter().try_for_each(|nested| write_shape(out, &name, nested))
}

/// The name of the constant for the message of this full name.
fn shape_of(name: &str) -> String {
    format!("SHAPE{}", name.replace('.', "_").to_uppercase())
}
