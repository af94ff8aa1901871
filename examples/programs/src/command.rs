//! From a command line to the program that it is for.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::path::Path;

use crate::program::{PROGRAMS, Program};

/// A parsed command line.
#[derive(Debug)]
pub(crate) enum Command {
    /// One of the programs, with the command line for it.
    Run {
        program: &'static Program,
        args: Vec<OsString>,
        /// The name it was called by, if it is not its name any more.
        former_name: Option<&'static str>,
    },
    Help,
    Version,
    /// Nothing.
    Missing,
    /// The name belongs to none of the programs.
    Unknown {
        name: String,
        nearest: Option<&'static str>,
    },
}

impl Command {
    /// Reads `args`, program name first. Started by a link that is called as one of the programs,
    /// this is that program.
    pub(crate) fn of(mut args: Vec<OsString>) -> Self {
        let called = args.first().and_then(|it| Path::new(it).file_name());
        if let Some(whole) = called.and_then(OsStr::to_str) {
            let named = |it: &&Program| whole.strip_prefix("mc-") == Some(it.name);
            if let Some(program) = PROGRAMS.iter().find(named) {
                return Self::Run { program, args, former_name: None };
            }
            if let Some(program) = PROGRAMS.iter().find(|it| it.former_name == Some(whole)) {
                return Self::Run { program, args, former_name: program.former_name };
            }
        }
        if args.len() < 2 {
            return Self::Missing;
        }
        match args[1].to_str() {
            Some("-h" | "-help" | "--help") => Self::Help,
            Some("-V" | "-version" | "--version") => Self::Version,
            // As with git: `help ctl` is `ctl --help`.
            Some("help") if args.len() < 3 => Self::Help,
            Some("help") => Self::named(&args[2], vec!["--help".into()]),
            _ => {
                let rest = args.split_off(2);
                Self::named(&args[1], rest)
            }
        }
    }

    /// The program `name` with these arguments.
    fn named(name: &OsStr, rest: Vec<OsString>) -> Self {
        match PROGRAMS.iter().find(|it| it.name == name) {
            Some(program) => {
                // The name that its help has in the line of usage.
                let called = OsString::from(format!("mc-store {}", program.name));
                let args = std::iter::once(called).chain(rest).collect();
                Self::Run { program, args, former_name: None }
            }
            None => {
                let name = name.to_string_lossy().into_owned();
                let nearest = nearest(&name);
                Self::Unknown { name, nearest }
            }
        }
    }
}

/// The program that was probably meant.
fn nearest(name: &str) -> Option<&'static str> {
    let bare = name.trim_start_matches("mc-");
    let all = PROGRAMS.iter().map(|it| (strsim::damerau_levenshtein(bare, it.name), it.name));
    let (distance, nearest) = all.min()?;
    (distance <= 1.max(nearest.len() / 3)).then_some(nearest)
}

/// The list of the programs.
pub(crate) fn help() -> String {
    let mut text = String::from(
        "All programs of the KV-cache store mc-store in one.\n\n\
         Usage: mc-store PROGRAM [OPTIONS]\n\nPrograms:\n",
    );
    for Program { name, about, .. } in PROGRAMS {
        writeln!(text, "  {name:8}{about}").expect("a string takes it");
    }
    text + "\nOptions:\n  -h, --help     Print this; mc-store PROGRAM --help prints the options of one\n  \
            -V, --version  Print the version\n\n\
            A link to this program with a program's name, such as mc-ctl, is that program.\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(args: &[&str]) -> Command {
        Command::of(args.iter().map(OsString::from).collect())
    }

    /// The program that is run, its arguments, and its former name.
    fn run(args: &[&str]) -> (&'static str, Vec<OsString>, Option<&'static str>) {
        match of(args) {
            Command::Run { program, args, former_name } => (program.name, args, former_name),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_program_gets_its_arguments_as_they_are() {
        for program in PROGRAMS {
            let (name, args, former) = run(&["/bin/mc-store", program.name, "--help", "", "help"]);
            assert_eq!((name, former), (program.name, None));
            assert_eq!(args[0], *format!("mc-store {name}"));
            assert_eq!(args[1..], ["--help", "", "help"]);
        }
    }

    #[test]
    fn a_link_is_the_program_that_it_is_called_as() {
        for program in PROGRAMS {
            let link = format!("/bin/mc-{}", program.name);
            assert_eq!(
                run(&[&link, "ctl", "-x"]),
                (program.name, vec![link.clone().into(), "ctl".into(), "-x".into()], None)
            );
        }
        let args = |name: &str| vec![OsString::from(name)];
        assert_eq!(run(&["mc-client"]), ("node", args("mc-client"), Some("mc-client")));
        assert_eq!(run(&["./mc-provider"]), ("check", args("./mc-provider"), Some("mc-provider")));
    }

    #[test]
    fn names_are_whole() {
        for link in ["ctl", "mc-ct", "mc-ctl2", "mc-", ""] {
            assert_eq!(run(&[link, "node"]).0, "node", "{link}");
        }
    }

    #[test]
    fn help_is_for_all_or_for_one() {
        for args in [&["x", "--help"][..], &["x", "-h", "ctl"], &["x", "-help"], &["x", "help"]] {
            assert!(matches!(of(args), Command::Help), "{args:?}");
        }
        assert_eq!(run(&["x", "help", "ctl", "more"]).1, ["mc-store ctl", "--help"]);
        assert!(matches!(of(&["x", "-V"]), Command::Version));
        let text = help();
        for program in PROGRAMS {
            let line = text.lines().find(|it| it.trim_start().starts_with(program.name));
            assert!(line.is_some_and(|it| it.ends_with(program.about) && it.len() <= 80), "{text}");
        }
    }

    #[test]
    fn what_is_no_program_is_refused_with_what_was_meant() {
        let meant = |name| match of(&["x", name]) {
            Command::Unknown { nearest, .. } => nearest,
            other => panic!("{other:?}"),
        };
        assert_eq!(meant("mastre"), Some("master"));
        assert_eq!(meant("mc-ctl"), Some("ctl"));
        assert_eq!(meant("--rpc_port=1"), None);
        assert_eq!(meant(""), None);
        assert!(matches!(of(&["x"]), Command::Missing));
        assert!(matches!(of(&[]), Command::Missing));
        assert!(matches!(of(&["x", "help", "none"]), Command::Unknown { .. }));
    }

    #[test]
    fn a_name_that_is_no_text_is_refused() {
        use std::os::unix::ffi::OsStringExt as _;
        let odd = OsString::from_vec(vec![0xff]);
        assert!(matches!(Command::of(vec![odd.clone(), odd]), Command::Unknown { .. }));
    }
}
