//! Libraries that a program loads before libc, for media that no test could mount.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Compiles C source into a library for `LD_PRELOAD`, with the compiler that links Rust programs.
///
/// # Panics
/// When it is not C, or there is no compiler.
pub fn preload(library: &Path, source: &str) {
    let file = library.with_extension("c");
    fs::write(&file, source).expect("room for a file");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-shared", "-fPIC", "-o"]).arg(library).arg(&file).arg("-ldl");
    assert!(compiler.status().expect("a C compiler").success());
}
