//! Generates the protocol's message types from the `.proto`, in Rust alone: no
//! `protoc` is needed where this crate is built.

use std::error::Error;

const PROTO: &str = "proto/mc/store/v1/master.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={PROTO}");
    let descriptors = protox::compile([PROTO], ["proto"])?;
    prost_build::Config::new().compile_fds(descriptors)?;
    Ok(())
}
