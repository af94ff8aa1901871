//! A cluster of real programs.

use std::ffi::OsString;
use std::process::Command;

use mc_testkit::{Finished, Input, Program, binary};

use super::{DEADLINE, run};

/// A running `mc-master`.
pub(crate) struct Master {
    pub(crate) program: Program,
    /// `127.0.0.1:PORT`
    pub(crate) address: String,
    /// `http://127.0.0.1:PORT`
    pub(crate) metrics: String,
}

impl Master {
    /// Starts one on the loopback address and waits until it answers.
    pub(crate) fn start(port: u16, flags: &[&str]) -> Self {
        Self::start_in(port, flags, &[])
    }

    /// Starts one as [`start`](Self::start) does, in this environment. The last of two flags counts.
    pub(crate) fn start_in(port: u16, flags: &[&str], environment: &[(&str, OsString)]) -> Self {
        let port = format!("--rpc_port={port}");
        let mut args =
            vec!["--rpc_address=127.0.0.1", "--metrics_host=127.0.0.1", "--metrics_port=0", &port];
        args.extend(flags);
        let mut command = Command::new(binary("mc-master"));
        command.args(args).envs(environment.iter().cloned());
        let program = Program::start(DEADLINE, &mut command, Input::None);
        let listening = "Master service listening on ";
        let address = program.wait_out(|line| line.strip_prefix(listening).map(str::to_owned));
        let metrics = program.wait_err(|line| {
            let url = &line[line.find("http://")?..];
            url.strip_suffix("/metrics").map(str::to_owned)
        });
        Self { program, address, metrics }
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.rsplit_once(':').expect("host:port").1.parse().expect("a port")
    }
}

/// A running `mc-node`.
pub(crate) struct Node {
    pub(crate) program: Program,
    /// `127.0.0.1:PORT`, where peers reach its memory.
    pub(crate) address: String,
    /// `127.0.0.1:PORT`, where thin clients find it.
    pub(crate) dummies: String,
}

impl Node {
    /// Starts one on the loopback address and waits until its segment is
    /// mounted.
    pub(crate) fn start(master: &str, name: &str, port: u16, size: &str) -> Self {
        Self::start_with(master, name, port, size, &[])
    }

    /// Starts one as [`start`](Self::start) does, with more flags.
    pub(crate) fn start_with(
        master: &str,
        name: &str,
        port: u16,
        size: &str,
        flags: &[&str],
    ) -> Self {
        Self::start_in(master, name, port, size, flags, &[])
    }

    /// Starts one as [`start_with`](Self::start_with) does, in this environment.
    pub(crate) fn start_in(
        master: &str,
        name: &str,
        port: u16,
        size: &str,
        flags: &[&str],
        environment: &[(&str, OsString)],
    ) -> Self {
        let common = [
            "--host=127.0.0.1",
            "--port=0",
            &format!("--data_port={port}"),
            &format!("--master_server_address={master}"),
            &format!("--segment_name={name}"),
            &format!("--global_segment_size={size}"),
        ];
        let mut command = Command::new(binary("mc-node"));
        command.args([&common[..], flags].concat()).envs(environment.iter().cloned());
        let program = Program::start(DEADLINE, &mut command, Input::None);
        let (address, dummies) = program.wait_out(|line| {
            assert!(
                line.starts_with(&format!(
                    "Mooncake client ready: segment {}, ",
                    name.escape_debug()
                )),
                "{line}"
            );
            let at = |label: &str| {
                let address = &line[line.find(label)? + label.len()..];
                Some(address.split(',').next()?.to_owned())
            };
            Some((at("tcp://")?, at("thin clients at ")?))
        });
        Self { program, address, dummies }
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.rsplit_once(':').expect("host:port").1.parse().expect("a port")
    }
}

/// Runs `mc-ctl` to its end.
pub(crate) fn ctl(master: &str, args: &[&str]) -> Finished {
    let master = format!("--master_server_address={master}");
    run("mc-ctl", &[&[&*master], args].concat())
}

/// Runs `mc-ctl` to its end with something on its standard input.
pub(crate) fn ctl_with_input(master: &str, args: &[&str], input: &[u8]) -> Finished {
    let master = format!("--master_server_address={master}");
    let mut command = Command::new(binary("mc-ctl"));
    command.arg(master).args(args);
    Program::start(DEADLINE, &mut command, Input::Bytes(input)).finish()
}
