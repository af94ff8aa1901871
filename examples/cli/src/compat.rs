//! Flags of Mooncake's programs that have no function of their own in ours, by table.

use std::collections::BTreeMap;
use std::ffi::OsString;

use clap::builder::{BoolishValueParser, TypedValueParser as _};
use clap::{Arg, Command};

use crate::refusal::{Refusal, one_line};

/// A flag of Mooncake's program that the program of ours with the same purpose understands without a
/// function of its own for it. It is not in `--help`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompatFlag {
    name: &'static str,
    is_switch: bool,
    harmless: &'static [&'static str],
    otherwise: Otherwise,
}

/// The consequence of a value of a [`CompatFlag`] that is not one of the harmless ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Otherwise {
    /// Nothing: no value changes what the program does.
    Ignore,
    /// The program starts, and warns with this reason.
    Warn(&'static str),
    /// The program does not start. The text says why, and what to use instead.
    Refuse(&'static str),
    /// The program's own flag of this name takes the value.
    Rename(&'static str),
}

/// A flag with a value: `--name=value` or `--name value`.
#[must_use]
pub const fn value(
    name: &'static str,
    harmless: &'static [&'static str],
    otherwise: Otherwise,
) -> CompatFlag {
    CompatFlag { name, is_switch: false, harmless, otherwise }
}

/// A flag that is on or off, in the spellings of all booleans. Its harmless values are `"true"` and
/// `"false"`.
#[must_use]
pub const fn switch(
    name: &'static str,
    harmless: &'static [&'static str],
    otherwise: Otherwise,
) -> CompatFlag {
    CompatFlag { name, is_switch: true, harmless, otherwise }
}

impl CompatFlag {
    /// Its name, with underscores.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns whether its value may be the next argument.
    pub(crate) fn takes_next(&self) -> bool {
        !self.is_switch
    }

    /// The value that counts, of the one that is written, if any.
    fn read(&self, written: Option<String>) -> Result<String, Refusal> {
        if !self.is_switch {
            let text = || format!("--{} needs a value", self.name);
            return written.ok_or_else(|| Refusal::Other { text: text() });
        }
        let Some(written) = written else { return Ok("true".into()) };
        let flag = Arg::new(self.name);
        let is_on = BoolishValueParser::new().parse_ref(
            &Command::new(self.name),
            Some(&flag),
            written.as_ref(),
        );
        is_on.map(|is_on| is_on.to_string()).map_err(|_| Refusal::BadValue {
            flag: format!("--{}", self.name),
            value: one_line(&written),
            why: "expected true or false".into(),
        })
    }
}

/// Logging flags of Mooncake's programs, which use glog.
pub const GLOG_FLAGS: &[CompatFlag] = {
    use Otherwise::{Ignore, Warn};
    const LEVEL: &str = "it has no effect: the variable MC_LOG sets the log level, such as debug";
    const FILES: &str = "it has no effect: logs go to standard error; redirect that to a file where files are wanted";
    &[
        value("v", &["0"], Warn(LEVEL)),
        value("vmodule", &[""], Warn(LEVEL)),
        value("minloglevel", &["0"], Warn(LEVEL)),
        value("stderrthreshold", &[], Ignore),
        switch("logtostderr", &[], Ignore),
        switch("alsologtostderr", &[], Ignore),
        switch("colorlogtostderr", &[], Ignore),
        switch("log_prefix", &[], Ignore),
        value("log_dir", &[""], Warn(FILES)),
        value("log_link", &[""], Warn(FILES)),
        value("logbufsecs", &[], Ignore),
        value("logbuflevel", &[], Ignore),
        value("max_log_size", &[], Ignore),
        switch("stop_logging_if_full_disk", &[], Ignore),
    ]
};

/// Finds flags by name; `-` and `_` are the same.
#[derive(Clone, Copy)]
pub(crate) struct Compat<'a>(pub(crate) &'a [&'a [CompatFlag]]);

impl<'a> Compat<'a> {
    /// The flag that `name` spells, and whether it is negated.
    pub(crate) fn find(self, name: &str) -> Option<(&'a CompatFlag, bool)> {
        let name = name.replace('-', "_");
        let find = |name: &str| self.0.iter().copied().flatten().find(|flag| flag.name == name);
        if let Some(flag) = find(&name) {
            return Some((flag, false));
        }
        let flag = find(name.strip_prefix("no")?)?;
        flag.is_switch.then_some((flag, true))
    }
}

/// The flags of a command line that are in the table. Of several values the last one counts.
#[derive(Default)]
pub(crate) struct Given<'a>(BTreeMap<&'static str, (&'a CompatFlag, String)>);

impl<'a> Given<'a> {
    /// Notes a flag, or returns the program's own flag that takes its value.
    pub(crate) fn add(
        &mut self,
        flag: &'a CompatFlag,
        written: Option<String>,
    ) -> Result<Option<OsString>, Refusal> {
        let value = flag.read(written)?;
        let is_harmless = flag.harmless.contains(&value.trim());
        if let (false, Otherwise::Rename(own)) = (is_harmless, flag.otherwise) {
            return Ok(Some(format!("--{own}={value}").into()));
        }
        self.0.insert(flag.name, (flag, value));
        Ok(None)
    }

    /// The warnings, a line each.
    pub(crate) fn judge(self) -> Result<Vec<String>, Refusal> {
        let mut warnings = Vec::new();
        for (flag, value) in self.0.into_values() {
            if flag.harmless.contains(&value.trim()) {
                continue;
            }
            let shown = format!("--{}={}", flag.name, one_line(&value));
            match flag.otherwise {
                Otherwise::Ignore | Otherwise::Rename(_) => {}
                Otherwise::Warn(why) => warnings.push(format!("{shown}: {why}")),
                Otherwise::Refuse(why) => {
                    return Err(Refusal::Unsupported { flag: shown, why: why.into() });
                }
            }
        }
        Ok(warnings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse_compatible;
    use proptest::prelude::*;

    #[derive(clap::Parser, Debug, PartialEq)]
    struct Args {
        #[arg(long = "idle", default_value_t = 7)]
        idle: u64,
    }

    const TABLE: &[CompatFlag] = &[
        switch("enable_tape", &["false"], Otherwise::Refuse("use a disk")),
        value("tape_length", &[], Otherwise::Ignore),
        value("silence", &["0"], Otherwise::Rename("idle")),
    ];

    fn parse(args: &[&str]) -> Result<(u64, Vec<String>), String> {
        let args = std::iter::once("prog").chain(args.iter().copied()).map(OsString::from);
        let parsed = parse_compatible::<Args>(args, &[TABLE, GLOG_FLAGS]);
        parsed.map(|parsed| (parsed.args.idle, parsed.warnings)).map_err(|no| no.to_string())
    }

    #[test]
    fn harmless_values_are_taken_in_every_spelling() {
        for args in [
            &["--enable_tape=false"][..],
            &["-enable-tape=off"],
            &["--noenable_tape"],
            &["--enable_tape", "--enable_tape=false"],
            &["--tape_length=9"],
            &["--tape-length", "9"],
            &["--tape_length", "-9"],
            &["--silence=0"],
            &["--v=0", "--logtostderr", "--nolog_prefix", "-stderrthreshold=2", "--log_dir="],
        ] {
            assert_eq!(parse(args), Ok((7, Vec::new())), "{args:?}");
        }
        assert_eq!(parse(&["--silence=0", "--idle=5"]), Ok((5, Vec::new())));
    }

    #[test]
    fn a_renamed_flag_is_the_other_one() {
        assert_eq!(parse(&["--silence", "3"]), Ok((3, Vec::new())));
        assert_eq!(parse(&["--silence=3", "--idle=5"]), Ok((5, Vec::new())));
        assert_eq!(parse(&["--idle=5", "--silence=3"]), Ok((3, Vec::new())));
        for args in [
            &["--silence=3", "--silence=0"][..],
            &["--silence=3", "--silence=4", "--log_dir=", "--silence=0"],
            &["--silence=0", "--silence=3", "--idle=7"],
            &["--idle=7", "--silence=3", "--silence=0"],
        ] {
            assert_eq!(parse(args), Ok((7, Vec::new())), "{args:?}");
        }
        assert_eq!(parse(&["--silence=3", "--silence=0", "--silence=4"]), Ok((4, Vec::new())));
        assert_eq!(
            parse(&["--silence=x"]),
            Err("--idle: 'x' is refused: expected a whole number".into())
        );
    }

    #[test]
    fn what_could_mislead_is_warned_of() {
        let (_, warnings) = parse(&["--v=2", "--log_dir=/var/log", "--v=1"]).unwrap();
        assert_eq!(warnings.len(), 2);
        assert!(warnings[0].starts_with("--log_dir=/var/log: it has no effect"), "{warnings:?}");
        assert!(warnings[1].starts_with("--v=1: "), "{warnings:?}");
        for args in [&["-v", "1"][..], &["-v=1"], &["--v", "1"]] {
            let (_, warnings) = parse(args).unwrap();
            assert!(warnings.len() == 1 && warnings[0].starts_with("--v=1: "), "{warnings:?}");
        }
        assert_eq!(parse(&["-v"]), Err("--v needs a value (--help lists all flags)".into()));
        assert!(parse(&["-w", "1"]).unwrap_err().starts_with("unknown flag -w"));
    }

    #[test]
    fn names_of_the_tables_are_found_before_short_flags() {
        // `-h` is a short flag, and no part of this name.
        let host = [value("host_of_tapes", &[], Otherwise::Ignore)];
        for args in [&["-host_of_tapes=a"][..], &["-host_of_tapes", "a"], &["-host-of-tapes=a"]] {
            let args = std::iter::once("prog").chain(args.iter().copied()).map(OsString::from);
            let parsed = parse_compatible::<Args>(args, &[&host]).unwrap();
            assert_eq!((parsed.args.idle, parsed.warnings), (7, Vec::new()));
        }
    }

    #[test]
    fn what_is_lacking_is_refused() {
        for args in
            [&["--enable_tape"][..], &["--enable-tape=1"], &["--noenable_tape", "-enable_tape"]]
        {
            assert_eq!(parse(args), Err("--enable_tape=true is not supported: use a disk".into()));
        }
        assert_eq!(
            parse(&["--enable_tape=perhaps"]),
            Err("--enable_tape: 'perhaps' is refused: expected true or false".into())
        );
        assert_eq!(
            parse(&["--tape_length"]),
            Err("--tape_length needs a value (--help lists all flags)".into())
        );
        assert_eq!(
            parse(&["--tape_length", "--enable_tape"]),
            Err("--tape_length needs a value (--help lists all flags)".into())
        );
        assert!(parse(&["--enable_tap"]).unwrap_err().starts_with("unknown flag --enable_tap"));
        assert!(parse(&["--notape_length=1"]).unwrap_err().starts_with("unknown flag"));
        assert!(parse(&["--enable_tape", "false"]).unwrap_err().contains("'false'"));
    }

    proptest! {
        #[test]
        fn no_arguments_panic(args in prop::collection::vec("-{0,2}(no)?(enable_tape|tape_length|silence|v)?[=a-z_]{0,4}", 0..6)) {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            if let Err(text) = parse(&args) {
                prop_assert!(!text.contains('\n') || text.contains("Usage"), "{text}");
            }
        }
    }
}
