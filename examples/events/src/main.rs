//! `mc-index` as a program of its own.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    mc_index::main(std::env::args_os().collect())
}
