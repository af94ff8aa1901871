//! The programs that are in this one.

use std::ffi::OsString;
use std::process::ExitCode;

/// A program.
#[derive(Debug)]
pub(crate) struct Program {
    /// Its name without `mc-`.
    pub(crate) name: &'static str,
    /// The purpose of the program, for the list of all.
    pub(crate) about: &'static str,
    /// Does what a command line, program name first, asks for.
    pub(crate) main: fn(Vec<OsString>) -> ExitCode,
    /// The name that it once had, whole.
    pub(crate) former_name: Option<&'static str>,
}

impl Program {
    const fn new(
        name: &'static str,
        about: &'static str,
        main: fn(Vec<OsString>) -> ExitCode,
    ) -> Self {
        Self { name, about, main, former_name: None }
    }

    const fn formerly(self, name: &'static str) -> Self {
        Self { former_name: Some(name), ..self }
    }
}

/// All of them.
pub(crate) const PROGRAMS: &[Program] = &[
    Program::new("master", "keeps a cluster's metadata and serves it", mc_master::main),
    Program::new(
        "node",
        "contributes this host's memory, and serves its applications",
        mc_node::main,
    )
    .formerly("mc-client"),
    Program::new("ctl", "puts, gets, lists and removes objects of a running store", mc_ctl::main),
    Program::new(
        "check",
        "joins a store with memory and checks that everything works",
        mc_check::main,
    )
    .formerly("mc-provider"),
    Program::new(
        "index",
        "follows KV events and tells which node holds which object",
        mc_index::main,
    ),
    #[cfg(feature = "tools")]
    Program::new("replay", "replays a request trace and checks every byte", mc_replay::main),
    #[cfg(feature = "tools")]
    Program::new("stress", "puts as prefill or gets and checks as decode", mc_stress::main),
    #[cfg(feature = "tools")]
    Program::new("c2c", "converts, shows and judges the weights of C2C", mc_c2c_tool::main),
    #[cfg(feature = "bench")]
    Program::new("bench", "measures every figure in the project's documents", mc_bench::main),
];
