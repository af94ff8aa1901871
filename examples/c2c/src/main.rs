//! `mc-c2c` as a program of its own.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    mc_c2c_tool::main(std::env::args_os().collect())
}
