//! The command line.

use std::time::Duration;

use mc_cli::{MemberArgs, parse_duration, parse_positive_size, parse_thread_count};
use mc_types::ByteSize;

/// The longest value: a gibibyte, which each thread holds once.
const MAX_VALUE: u64 = 1 << 30;

/// Stresses a KV-cache store as prefill and decode workers do, and checks every byte.
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "mc-stress", version)]
pub(crate) struct Args {
    /// The role of this process.
    #[arg(long, env = "ROLE", value_name = "ROLE", help_heading = "Work")]
    pub(crate) role: Role,
    /// Bytes of a value.
    #[arg(
        long = "value_length",
        value_name = "SIZE",
        default_value = "1MB",
        value_parser = parse_value_length,
        help_heading = "Work"
    )]
    value_length: ByteSize,
    /// Number of values.
    #[arg(
        long = "max_requests",
        value_name = "N",
        default_value_t = 1000,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000_000),
        help_heading = "Work"
    )]
    max_requests: u64,
    /// Values in progress at a time.
    #[arg(
        long = "threads",
        value_name = "N",
        default_value_t = 4,
        value_parser = parse_thread_count,
        help_heading = "Work"
    )]
    pub(crate) threads: usize,
    /// Seed of the values; prefill and decode must agree.
    #[arg(long = "seed", value_name = "N", default_value_t = 0, help_heading = "Work")]
    seed: u64,
    /// Time without progress after which to give up.
    #[arg(
        long = "wait",
        value_name = "TIME",
        default_value = "60s",
        value_parser = parse_duration,
        help_heading = "Work"
    )]
    wait: Duration,
    /// Do not remove correct values, so that another decode process can check them.
    #[arg(long = "keep", help_heading = "Work")]
    keep: bool,
    #[command(flatten)]
    pub(crate) member: MemberArgs,
}

/// A side of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Role {
    /// Puts values.
    Prefill,
    /// Waits for values, gets and checks them.
    Decode,
}

/// The parameters that both roles agree on, and those of this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Workload {
    pub(crate) value_len: usize,
    pub(crate) requests: u64,
    pub(crate) threads: usize,
    pub(crate) seed: u64,
    pub(crate) wait: Duration,
    pub(crate) keep: bool,
}

impl Args {
    pub(crate) fn workload(&self) -> Workload {
        Workload {
            value_len: usize::try_from(self.value_length.as_u64())
                .expect("a value has at most a gibibyte"),
            requests: self.max_requests,
            threads: self.threads,
            seed: self.seed,
            wait: self.wait,
            keep: self.keep,
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum BadValueLength {
    #[error("a value has at most {}; write less", ByteSize::bytes(MAX_VALUE))]
    TooLong,
    #[error(transparent)]
    Malformed(#[from] mc_cli::ParsePositiveSizeError),
}

fn parse_value_length(text: &str) -> Result<ByteSize, BadValueLength> {
    let size = parse_positive_size(text)?;
    if size.as_u64() > MAX_VALUE { Err(BadValueLength::TooLong) } else { Ok(size) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    fn parse(args: &[&str]) -> Result<Args, mc_cli::Refusal> {
        let args = std::iter::once("mc-stress").chain(args.iter().copied());
        mc_cli::parse_from(args.map(OsString::from))
    }

    #[test]
    fn defaults_are_the_reference_system_s() {
        let args = parse(&["--role=decode"]).unwrap();
        assert_eq!(args.role, Role::Decode);
        let workload = args.workload();
        assert_eq!((workload.value_len, workload.requests), (1 << 20, 1000));
        assert_eq!(workload.wait, Duration::from_secs(60));
        assert!(!workload.keep);
    }

    #[test]
    fn refusals_say_what_to_write() {
        for (args, advice) in [
            (&["--role=teacher"][..], "prefill"),
            (&["--role=decode", "--value_length=0"], "at least one byte"),
            (&["--role=decode", "--value_length=2GB"], "write less"),
            (&["--role=decode", "--max_requests=0"], "1..=1000000000"),
            (&["--role=decode", "--threads=5000"], "between 1 and"),
            (&["--role=decode", "--wait=soon"], "5s"),
        ] {
            let refusal = parse(args).unwrap_err().to_string();
            assert!(refusal.contains(advice) && !refusal.contains('\n'), "{refusal}");
        }
    }
}
