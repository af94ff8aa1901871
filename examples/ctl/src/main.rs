//! `mc-ctl` as a program of its own.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    mc_ctl::main(std::env::args_os().collect())
}
