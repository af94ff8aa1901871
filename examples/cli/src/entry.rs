//! From the process's arguments to its exit code.

use std::error::Error;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::{ExitCode, Termination};

use crate::config::{Configured, Program};
use crate::flags::{Parsed, parse_compatible};
use crate::logging;
use crate::refusal::{Refusal, cause_chain};

/// Exit code of a failure at run time.
const FAILED: u8 = 1;
/// Exit code of a command line that was refused.
const USAGE: u8 = 2;

/// Parses the command line `args`, program name first, and calls `main` with it.
///
/// Prints `--help` and `--version` itself. When the command line is refused, one
/// line on standard error says why and the exit code is 2; when `main` fails, one
/// line `error: what: cause: …` is printed and the exit code is 1, or 2 if the
/// error is a [`UsageError`]. Otherwise the exit code is what `main` returned:
/// `()` for success, or an [`ExitCode`].
pub fn run<P, T, E>(args: Vec<OsString>, main: impl FnOnce(P) -> Result<T, E>) -> ExitCode
where
    P: clap::Parser,
    T: Termination,
    E: Into<Box<dyn Error>>,
{
    run_from(parse_compatible(args, &[]), &mut io::stdout(), &mut io::stderr(), main)
}

/// Does the same with the settings of a [`Program`] from its command line, variables and file. Each warning
/// is a line `warning: …` on standard error before `main` is called.
pub fn run_program<P, T, E>(
    program: &Program,
    args: Vec<OsString>,
    main: impl FnOnce(Configured<P>) -> Result<T, E>,
) -> ExitCode
where
    P: clap::Parser,
    T: Termination,
    E: Into<Box<dyn Error>>,
{
    run_from(program.read(args), &mut io::stdout(), &mut io::stderr(), main)
}

/// `run_program` with everything that it touches as an argument.
fn run_from<P, T, E>(
    parsed: Result<Parsed<P>, Refusal>,
    out: &mut impl Write,
    err: &mut impl Write,
    main: impl FnOnce(P) -> Result<T, E>,
) -> ExitCode
where
    T: Termination,
    E: Into<Box<dyn Error>>,
{
    // A reader that closed its end of the pipe wants no more of our text, so a
    // failure to print is no failure of the program.
    let Parsed { args, warnings } = match parsed {
        Ok(parsed) => parsed,
        Err(Refusal::Answered { text }) => {
            let _ = out.write_all(text.as_bytes());
            return ExitCode::SUCCESS;
        }
        Err(refused) => {
            let _ = writeln!(err, "error: {refused}");
            return ExitCode::from(USAGE);
        }
    };
    for warning in warnings {
        let _ = writeln!(err, "warning: {warning}");
    }
    let outcome = main(args);
    logging::end();
    match outcome {
        Ok(outcome) => outcome.report(),
        Err(error) => {
            let error = error.into();
            let _ = writeln!(err, "error: {}", cause_chain(&*error));
            ExitCode::from(if error.is::<UsageError>() { USAGE } else { FAILED })
        }
    }
}

/// A command line whose flags are right one by one but not together.
///
/// ```
/// let error = mc_cli::UsageError::new("--capacity is for a cluster of our own; leave it out with
/// --master"); assert!(error.to_string().starts_with("--capacity"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct UsageError {
    what: String,
}

impl UsageError {
    /// `what` names the flags and says what to write instead.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compat::GLOG_FLAGS;

    #[derive(clap::Parser)]
    #[command(version)]
    struct Args {
        /// Port to listen on.
        #[arg(long = "rpc_port", default_value_t = 1, help_heading = "Network")]
        rpc_port: u16,
    }

    #[derive(Debug, thiserror::Error)]
    enum Failure {
        #[error("cannot start")]
        Start { source: io::Error },
        #[error("cannot read x: {source}; name another")]
        Read { source: io::Error },
    }

    fn run_text<E: Into<Box<dyn Error>>>(
        args: &[&str],
        main: impl FnOnce(Args) -> Result<(), E>,
    ) -> (ExitCode, String, String) {
        let args = std::iter::once("prog").chain(args.iter().copied()).map(OsString::from);
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = run_from(parse_compatible(args, &[GLOG_FLAGS]), &mut out, &mut err, main);
        (code, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
    }

    fn fails(error: impl Into<Box<dyn Error>>) -> (ExitCode, String) {
        let (code, out, err) = run_text(&[], |_| Err(error));
        assert_eq!(out, "");
        (code, err)
    }

    #[test]
    fn success_prints_nothing() {
        let (code, out, err) = run_text(&["--rpc-port=7"], |args| {
            assert_eq!(args.rpc_port, 7);
            Ok::<_, Failure>(())
        });
        assert_eq!((code, out.as_str(), err.as_str()), (ExitCode::SUCCESS, "", ""));
    }

    #[test]
    fn warnings_come_first() {
        let (code, out, err) = run_text(&["--log_dir=/x"], |_| Ok::<_, Failure>(()));
        assert_eq!((code, out.as_str()), (ExitCode::SUCCESS, ""));
        assert!(err.starts_with("warning: --log_dir=/x: it has no effect"), "{err}");
        assert!(err.ends_with('\n') && err.lines().count() == 1, "{err}");
    }

    #[test]
    fn failures_are_one_line_with_their_causes() {
        let source = || io::Error::other("first\nsecond");
        assert_eq!(
            fails(Failure::Start { source: source() }),
            (ExitCode::from(1), "error: cannot start: first; second\n".into())
        );
        assert_eq!(
            fails(Failure::Read { source: source() }),
            (ExitCode::from(1), "error: cannot read x: first; second; name another\n".into())
        );
        assert_eq!(
            fails(UsageError::new("--a excludes --b")),
            (ExitCode::from(2), "error: --a excludes --b\n".into())
        );
    }

    #[test]
    fn help_and_version_are_answers() {
        for flag in ["--help", "-help", "-h"] {
            let (code, out, err) = run_text(&[flag], |_| Ok::<_, Failure>(()));
            assert_eq!((code, err.as_str()), (ExitCode::SUCCESS, ""), "{flag}");
            assert!(out.contains("Network:") && out.contains("--rpc_port"), "{out}");
        }
        let (_, out, _) = run_text(&["--version"], |_| Ok::<_, Failure>(()));
        assert!(out.contains(env!("CARGO_PKG_VERSION")), "{out}");
    }

    #[test]
    fn refusals_are_one_line_and_code_two() {
        let (code, out, err) = run_text(&["--rcp_port=7"], |_| Ok::<_, Failure>(()));
        assert_eq!((code, out.as_str()), (ExitCode::from(2), ""));
        assert_eq!(
            err,
            "error: unknown flag --rcp_port; did you mean --rpc_port? (--help lists all)\n"
        );
    }
}
