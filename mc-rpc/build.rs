//! Generates the protocol's message types from the `.proto`, in Rust alone: no
//! `protoc` is needed where this crate is built. And where each request has the field
//! `client_id`, so that no call can be added without its being looked at.

use std::env;
use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::path::Path;

const PROTO: &str = "proto/mc/store/v1/master.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={PROTO}");
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).include_source_info(true).open_file(PROTO)?;
    let descriptors = compiler.file_descriptor_set();

    let out = env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?;
    if env::var_os("CARGO_FEATURE_GRPC").is_some() {
        let encoded = compiler.encode_file_descriptor_set();
        fs::write(Path::new(&out).join("descriptors.bin"), encoded)?;
    }

    let mut client_ids = String::from("match method {\n");
    for file in &descriptors.file {
        for rpc in file.service.iter().flat_map(|service| &service.method) {
            let is_request = |name: &str| rpc.input_type().rsplit('.').next() == Some(name);
            let request = file.message_type.iter().find(|message| is_request(message.name()));
            let mut fields = request.into_iter().flat_map(|message| &message.field);
            if let Some(field) = fields.find(|field| field.name() == "client_id") {
                writeln!(client_ids, "Method::{} => Some({}),", rpc.name(), field.number())?;
            }
        }
    }
    client_ids.push_str("_ => None,\n}\n");
    fs::write(Path::new(&out).join("client_ids.rs"), client_ids)?;

    prost_build::Config::new().compile_fds(descriptors)?;
    Ok(())
}
