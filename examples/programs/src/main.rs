#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod command;
mod program;

use std::io::{self, Write};
use std::process::ExitCode;

use crate::command::{Command, help};

/// Exit code of a command line that was refused, as in all programs.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    // A reader that closed its end of the pipe wants no more of the text.
    match Command::of(std::env::args_os().collect()) {
        Command::Run { program, args, former_name } => {
            if let Some(former) = former_name {
                eprintln!("{former} is now called mc-{}; please use the new name", program.name);
            }
            (program.main)(args)
        }
        Command::Help => {
            let _ = io::stdout().write_all(help().as_bytes());
            ExitCode::SUCCESS
        }
        Command::Version => {
            let _ = writeln!(io::stdout(), "mc-store {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        Command::Missing => {
            let _ = io::stderr().write_all(help().as_bytes());
            ExitCode::from(USAGE)
        }
        Command::Unknown { name, nearest } => {
            let hint = nearest.map_or_else(String::new, |it| format!("; did you mean {it}?"));
            let _ =
                writeln!(io::stderr(), "error: unknown program '{name}'{hint} (--help lists all)");
            ExitCode::from(USAGE)
        }
    }
}
