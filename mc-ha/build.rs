//! Generates etcd's messages from the `.proto` when the feature `etcd` is on, in Rust alone: no
//! `protoc` is needed where this crate is built.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    #[cfg(feature = "etcd")]
    {
        let mut compiler = protox::Compiler::new(["proto"])?;
        compiler.include_source_info(true).open_file("proto/etcd.proto")?;
        prost_build::Config::new().bytes(["."]).compile_fds(compiler.file_descriptor_set())?;
    }
    Ok(())
}
