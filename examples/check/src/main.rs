//! `mc-check` as a program of its own.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    mc_check::main(std::env::args_os().collect())
}
