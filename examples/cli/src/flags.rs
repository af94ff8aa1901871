//! Flags spelt as in Mooncake: names are brought into clap's spelling
//! before clap sees them, values are left alone.

use std::any::TypeId;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

use clap::builder::BoolishValueParser;
use clap::{Arg, ArgAction, Command};

use crate::compat::{Compat, CompatFlag, Given};
use crate::refusal::Refusal;

/// Parses `args`, program name first, by the conventions of this crate.
///
/// ```
/// #[derive(clap::Parser)]
/// struct Args {
///     #[arg(long = "eviction_ratio", default_value_t = 0.05)]
///     ratio: f64,
///     #[arg(long = "enable_ha")]
///     ha: bool,
/// }
/// let args = ["prog", "-eviction-ratio", "0.1", "--enable-ha"].map(Into::into);
/// let args: Args = mc_cli::parse_from(args)?;
/// assert!(args.ratio == 0.1 && args.ha);
/// # Ok::<(), mc_cli::Refusal>(())
/// ```
///
/// # Errors
/// [`Refusal`]: one line that says what to write instead, or the text that
/// `--help` or `--version` asked for.
pub fn parse_from<P: clap::Parser>(args: impl IntoIterator<Item = OsString>) -> Result<P, Refusal> {
    parse_compatible(args, &[]).map(|parsed| parsed.args)
}

/// A command line that was understood.
#[derive(Clone, Debug)]
pub struct Parsed<P> {
    /// The program's own flags.
    pub args: P,
    /// Warnings about the flags without effect, a line each.
    pub warnings: Vec<String>,
}

/// Parses `args` as [`parse_from`] does, and the flags of these tables.
///
/// # Errors
/// [`Refusal`]
pub fn parse_compatible<P: clap::Parser>(
    args: impl IntoIterator<Item = OsString>,
    tables: &[&[CompatFlag]],
) -> Result<Parsed<P>, Refusal> {
    parse_given(args, tables).map(|(parsed, _)| parsed)
}

/// The flags that a command line gives, by their long names: for each the argument that counts, with
/// its place among the arguments, and `None` for one without a value.
pub(crate) type GivenFlags = BTreeMap<String, (usize, Option<OsString>)>;

/// Parses `args` as [`parse_compatible`] does, and returns the flags among them, too.
pub(crate) fn parse_given<P: clap::Parser>(
    args: impl IntoIterator<Item = OsString>,
    tables: &[&[CompatFlag]],
) -> Result<(Parsed<P>, GivenFlags), Refusal> {
    let mut command = built::<P>();
    let (spelt, compat) = spell(&command, Compat(tables), args)?;
    let flags = given_flags(&spelt);
    let mut matches = command.try_get_matches_from_mut(spelt.into_iter().map(|(_, arg)| arg))?;
    let args = P::from_arg_matches_mut(&mut matches)?;
    Ok((Parsed { args, warnings: compat.judge()? }, flags))
}

/// The flags among `args`, program name first, whatever else they say.
pub(crate) fn flags_of<P: clap::Parser>(
    args: impl IntoIterator<Item = OsString>,
    tables: &[&[CompatFlag]],
) -> GivenFlags {
    let spelt = spell(&built::<P>(), Compat(tables), args);
    spelt.map(|(spelt, _)| given_flags(&spelt)).unwrap_or_default()
}

fn given_flags(spelt: &[(usize, OsString)]) -> GivenFlags {
    let flags = spelt.iter().take_while(|(_, arg)| *arg != "--");
    let flags = flags.filter_map(|(at, arg)| {
        let flag = arg.as_bytes().strip_prefix(b"--")?;
        let (name, value) = match flag.iter().position(|byte| *byte == b'=') {
            Some(end) => (&flag[..end], Some(&flag[end + 1..])),
            None => (flag, None),
        };
        let name = str::from_utf8(name).ok()?.to_owned();
        Some((name, (*at, value.map(|value| OsStr::from_bytes(value).to_owned()))))
    });
    flags.collect()
}

/// The command with this crate's conventions, and with `--help`, `--version` and the flags that
/// subcommands inherit, which spelling must know too.
pub(crate) fn built<P: clap::Parser>() -> Command {
    let mut command = with_conventions(P::command());
    command.build();
    command
}

/// Lets the last of several values win and gives every boolean its spellings.
fn with_conventions(command: Command) -> Command {
    command
        .args_override_self(true)
        .mut_args(|arg| {
            if !is_boolean(&arg) || arg.is_positional() {
                return arg;
            }
            let off_by_default = matches!(arg.get_action(), ArgAction::SetTrue);
            let arg = arg
                .action(ArgAction::Set)
                .value_parser(BoolishValueParser::new())
                .value_name("BOOL")
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true")
                .hide_possible_values(true);
            if off_by_default { arg.default_value("false").hide_default_value(true) } else { arg }
        })
        .mut_subcommands(with_conventions)
}

/// Returns whether the argument is a flag that can be negated.
fn is_boolean(arg: &Arg) -> bool {
    match arg.get_action() {
        ArgAction::SetTrue => true,
        ArgAction::Set => arg.get_value_parser().type_id() == TypeId::of::<bool>(),
        _ => false,
    }
}

/// Rewrites the names among `args` to those that `command` declares, and takes out those that only
/// the tables know. Returns each argument with its place among `args`.
fn spell<'a>(
    command: &Command,
    compat: Compat<'a>,
    args: impl IntoIterator<Item = OsString>,
) -> Result<(Vec<(usize, OsString)>, Given<'a>), Refusal> {
    let mut given = Given::default();
    let mut args = args.into_iter().enumerate().peekable();
    let mut spelt: Vec<Option<(usize, OsString)>> = vec![args.next()];
    // Where the value of a flag with another name here stands among `spelt`.
    let mut renamed = BTreeMap::new();
    let mut command = command;
    while let Some((at, arg)) = args.next() {
        // A flag's name is text; whatever is not can only be a value.
        let Some(text) = arg.to_str() else {
            spelt.push(Some((at, arg)));
            continue;
        };
        if text == "--" {
            spelt.push(Some((at, arg)));
            spelt.extend(args.map(Some));
            break;
        }
        let Some((name, value)) = split_flag(command, compat, text) else {
            if let Some(subcommand) = command.find_subcommand(text) {
                command = subcommand;
            }
            spelt.push(Some((at, arg)));
            continue;
        };
        let Some(flag) = find(command, name) else {
            let Some((flag, is_negated)) = compat.find(name).filter(|it| !it.1 || value.is_none())
            else {
                spelt.push(Some((at, spell_unknown(command, name, value))));
                continue;
            };
            let written = if is_negated { Some("false".to_owned()) } else { value.map(Into::into) };
            let written = written.or_else(|| {
                let is_value = |next: &OsString| !is_known_flag(command, compat, next);
                let (_, next) = args.next_if(|(_, next)| flag.takes_next() && is_value(next))?;
                Some(next.to_string_lossy().into_owned())
            });
            // The last value counts, also when it changes nothing.
            if let Some(earlier) = renamed.remove(flag.name()) {
                spelt[earlier] = None;
            }
            if let Some(own) = given.add(flag, written)? {
                renamed.insert(flag.name(), spelt.len());
                spelt.push(Some((at, own)));
            }
            continue;
        };
        let mut whole = OsString::from(format!("--{}", long(flag)));
        let value = value.map(OsString::from).or_else(|| {
            let takes_next = takes_one_value(flag)
                && args.peek().is_some_and(|(_, next)| !is_known_flag(command, compat, next));
            takes_next.then(|| args.next()).flatten().map(|(_, next)| next)
        });
        if let Some(value) = value {
            whole.push("=");
            whole.push(value);
        }
        spelt.push(Some((at, whole)));
    }
    Ok((spelt.into_iter().flatten().collect(), given))
}

/// Name and value of what looks like a long flag; `None` for everything else:
/// words, `-`, negative numbers and short flags.
fn split_flag<'a>(
    command: &Command,
    compat: Compat<'_>,
    text: &'a str,
) -> Option<(&'a str, Option<&'a str>)> {
    let name = match text.strip_prefix("--") {
        Some(name) => name,
        None => {
            let name = text.strip_prefix('-')?;
            let first = name.chars().next()?;
            let is_word =
                first.is_ascii_alphabetic() && (name.len() > 1 || compat.find(name).is_some());
            let whole = name.split('=').next().unwrap_or(name);
            let is_cluster = command.get_arguments().any(|arg| arg.get_short() == Some(first))
                && find(command, whole).is_none()
                && compat.find(whole).is_none();
            if !is_word || is_cluster {
                return None;
            }
            name
        }
    };
    Some(match name.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (name, None),
    })
}

/// The flag that `name` spells.
fn find<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    let is_spelt = |declared: &str| {
        declared.len() == name.len()
            && declared.bytes().zip(name.bytes()).all(|(a, b)| dashed(a) == dashed(b))
    };
    command.get_arguments().find(|arg| {
        arg.get_long().is_some_and(is_spelt)
            || arg.get_all_aliases().is_some_and(|names| names.into_iter().any(is_spelt))
    })
}

fn dashed(byte: u8) -> u8 {
    if byte == b'_' { b'-' } else { byte }
}

fn long(flag: &Arg) -> &str {
    flag.get_long().expect("`find` only returns flags with a long name")
}

/// `--nox` as `--x=false`; otherwise the flag as it is, for clap to refuse.
fn spell_unknown(command: &Command, name: &str, value: Option<&str>) -> OsString {
    if let Some(flag) = name.strip_prefix("no").and_then(|name| find(command, name))
        && is_boolean(flag)
        && value.is_none()
    {
        return format!("--{}=false", long(flag)).into();
    }
    match value {
        Some(value) => format!("--{name}={value}").into(),
        None => format!("--{name}").into(),
    }
}

/// Returns whether the flag takes exactly one value, which may be the next argument.
fn takes_one_value(flag: &Arg) -> bool {
    let one = flag.get_num_args().is_none_or(|n| n.min_values() == 1 && n.max_values() == 1);
    flag.get_action().takes_values() && one && !flag.is_require_equals_set()
}

/// Returns whether `arg` is a flag, so that the flag before it was left without a value.
fn is_known_flag(command: &Command, compat: Compat<'_>, arg: &OsStr) -> bool {
    let Some(flag) = arg.to_str().and_then(|text| text.strip_prefix("--")) else { return false };
    let name = flag.split('=').next().unwrap_or(flag);
    find(command, name).is_some() || compat.find(name).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use mc_types::ByteSize;
    use proptest::prelude::*;
    use std::os::unix::ffi::OsStringExt;

    #[derive(Parser, Debug, PartialEq)]
    struct Args {
        #[arg(long = "rpc_port", alias = "port", default_value_t = 50051)]
        rpc_port: u16,
        #[arg(long = "eviction_ratio", default_value_t = 0.05)]
        ratio: f64,
        #[arg(long = "segment_size", default_value = "1GB")]
        size: ByteSize,
        #[arg(long = "enable_ha")]
        ha: bool,
        #[arg(long, short = 'v')]
        verbose: bool,
        #[arg(long = "enable_metrics", default_value_t = true, action = ArgAction::Set)]
        metrics: bool,
        #[arg(long)]
        name: Option<OsString>,
        #[arg(long = "memory-allocator", default_value = "offset", value_parser = ["offset", "slab"])]
        allocator: String,
        #[command(subcommand)]
        verb: Option<Verb>,
    }

    #[derive(clap::Subcommand, Debug, PartialEq)]
    enum Verb {
        Put {
            #[arg(long = "replica_num", default_value_t = 1)]
            replicas: u32,
            key: String,
        },
    }

    fn parse(args: &[&str]) -> Result<Args, Refusal> {
        parse_from(std::iter::once("prog").chain(args.iter().copied()).map(OsString::from))
    }

    fn refused(args: &[&str]) -> String {
        let text = parse(args).expect_err("refused").to_string();
        assert!(!text.contains('\n'), "{text}");
        text
    }

    #[test]
    fn dashes_and_underscores_are_one() {
        for args in [
            &["--rpc_port=7"][..],
            &["--rpc-port", "7"],
            &["-rpc_port", "7"],
            &["-rpc-port=7"],
            &["--port=7"],
            &["--rpc_port=9", "--rpc-port=7"],
        ] {
            assert_eq!(parse(args).unwrap().rpc_port, 7, "{args:?}");
        }
        assert_eq!(parse(&["--memory_allocator=slab"]).unwrap().allocator, "slab");
        assert_eq!(parse(&["-eviction_ratio=0.1"]).unwrap().ratio, 0.1);
        assert_eq!(parse(&["--segment-size", "4 GB"]).unwrap().size, ByteSize::gib(4));
    }

    #[test]
    fn booleans_have_four_spellings() {
        for (args, expected) in [
            (&[][..], false),
            (&["--enable_ha"], true),
            (&["-enable-ha"], true),
            (&["--enable-ha=true"], true),
            (&["--enable-ha=false"], false),
            (&["--enable-ha", "--noenable-ha"], false),
            (&["--noenable_ha", "--enable-ha=1"], true),
        ] {
            assert_eq!(parse(args).unwrap().ha, expected, "{args:?}");
        }
        assert!(parse(&[]).unwrap().metrics);
        assert!(!parse(&["--noenable_metrics"]).unwrap().metrics);
        assert!(!parse(&["--enable-metrics=false"]).unwrap().metrics);
        assert!(parse(&["-v"]).unwrap().verbose);
    }

    #[test]
    fn values_are_never_rewritten() {
        for value in ["a-b_c", "-5", "--not-a-flag", "x=y-z", ""] {
            let args = parse(&["--name", value]).unwrap();
            assert_eq!(args.name.as_deref(), Some(OsStr::new(value)));
            let args = parse(&[&format!("--name={value}")]).unwrap();
            assert_eq!(args.name.as_deref(), Some(OsStr::new(value)));
        }
        let bytes = OsString::from_vec(vec![0xff, b'-', b'_']);
        let args: Args = parse_from(["p".into(), "-name".into(), bytes.clone()]).unwrap();
        assert_eq!(args.name, Some(bytes));
    }

    #[test]
    fn subcommands_spell_their_own_flags() {
        let expected = Verb::Put { replicas: 2, key: "a-b".into() };
        let args = parse(&["--rpc-port=7", "put", "--replica-num=2", "a-b"]).unwrap();
        assert_eq!((args.rpc_port, args.verb), (7, Some(expected)));
        let key = Some(Verb::Put { replicas: 1, key: "--replica-num".into() });
        assert_eq!(parse(&["put", "--", "--replica-num"]).unwrap().verb, key);
    }

    #[test]
    fn refusals_say_what_to_do() {
        assert_eq!(
            refused(&["--evction-ratio=1"]),
            "unknown flag --evction-ratio; did you mean --eviction_ratio? (--help lists all)"
        );
        assert_eq!(refused(&["-zzz=1"]), "unknown flag --zzz (--help lists all)");
        assert_eq!(
            refused(&["--segment_size=4XB"]),
            "--segment_size: '4XB' is refused: unknown unit; use B, KB, MB, GB or TB"
        );
        assert_eq!(
            refused(&["--memory-allocator=x"]),
            "--memory-allocator: 'x' is refused: it must be one of offset, slab"
        );
        let refusal = refused(&["--enable_ha=perhaps"]);
        assert_eq!(refusal, "--enable_ha: 'perhaps' is refused: expected true or false");
        assert_eq!(
            refused(&["put", "--replica_num=few", "key"]),
            "--replica_num: 'few' is refused: expected a whole number"
        );
        assert_eq!(
            refused(&["--name", "--verbose"]),
            "--name needs a value (--help lists all flags)"
        );
        assert_eq!(refused(&["--name"]), "--name needs a value (--help lists all flags)");
        assert!(refused(&["stray"]).contains("'stray'"));
        assert!(refused(&["put"]).contains("<KEY>"));
    }

    #[test]
    fn no_means_no_only_before_a_boolean() {
        assert!(refused(&["--norpc_port"]).starts_with("unknown flag --norpc_port"));
        assert!(refused(&["--noenable_ha=true"]).starts_with("unknown flag --noenable_ha"));
    }

    proptest! {
        #[test]
        fn no_arguments_panic(args in prop::collection::vec("[-=a-z_]{0,12}", 0..6)) {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            if let Err(Refusal::Answered { .. }) = parse(&args) {
                return Ok(());
            }
            if let Err(refusal) = parse(&args) {
                prop_assert!(!refusal.to_string().contains('\n'));
            }
        }

        #[test]
        fn any_spelling_finds_the_flag(dashes in prop::collection::vec(any::<bool>(), 2), port: u16) {
            let dash = |dash| if dash { '-' } else { '_' };
            let flag = format!("--segment{}size={port}", dash(dashes[0]));
            let other = format!("-rpc{}port={port}", dash(dashes[1]));
            let args = parse(&[&flag, &other]).unwrap();
            prop_assert_eq!((args.size.as_u64(), args.rpc_port), (u64::from(port), port));
        }
    }
}
