//! The settings that a program has: from its flags, and from those of a client.

use clap::{Arg, Command};
use mc_store::{ClientConfig, nearest_name};

use super::program::Program;

/// Flags that ask for an answer, and are no settings.
pub(super) const QUESTIONS: [&str; 3] = ["print_config", "check_config", "json"];
/// The flag that names the file.
pub(super) const FILE: &str = "config_path";
/// Variables of the flags that all servers have, the one that counts first.
const SHARED_VARIABLES: [(&str, &[&str]); 2] =
    [("log_level", &["MC_LOG", "MC_YLT_LOG_LEVEL"]), ("log_format", &["MC_LOG_FORMAT"])];

/// A setting.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// The name by which it is shown: the flag's, or else the client's key.
    pub(super) name: String,
    /// Every name that it has in files, with underscores.
    pub(super) names: Vec<String>,
    /// Its variables, the one that counts first.
    pub(super) variables: Vec<String>,
    /// The default as text, or words where it depends.
    pub(super) default: String,
    /// The client's key, where the setting is one of the client's.
    pub(super) key: Option<&'static str>,
    /// Whether there is a flag, which then has the name.
    pub(super) is_flag: bool,
}

/// The settings of a program with these flags, in the order of `--help`, then the client's.
pub(super) fn settings(program: &Program, command: &Command) -> Vec<Known> {
    let of_client: &[mc_store::Setting] =
        if program.client.is_some() { ClientConfig::settings() } else { &[] };
    let mut known: Vec<Known> = command
        .get_arguments()
        .filter(|arg| is_setting(arg))
        .map(|arg| of_flag(program, arg, of_client))
        .collect();
    for setting in of_client {
        if known.iter().any(|known| known.key == Some(setting.key())) {
            continue;
        }
        known.push(Known {
            name: setting.key().into(),
            names: setting.names().map(str::to_owned).collect(),
            variables: vec![setting.variable().into()],
            default: setting.default().into(),
            key: Some(setting.key()),
            is_flag: false,
        });
    }
    known
}

fn is_setting(arg: &Arg) -> bool {
    arg.get_long()
        .is_some_and(|long| !QUESTIONS.contains(&long) && !["help", "version"].contains(&long))
}

fn of_flag(program: &Program, arg: &Arg, of_client: &'static [mc_store::Setting]) -> Known {
    let long = arg.get_long().expect("a setting has a long name");
    let aliases = arg.get_all_aliases().unwrap_or_default();
    let mut names: Vec<String> =
        std::iter::once(long).chain(aliases).map(|name| name.replace('-', "_")).collect();
    let name = names[0].clone();
    let other = program.client.and_then(|client| {
        client.flags.iter().find(|(flag, _)| *flag == name).map(|(_, key)| *key)
    });
    let setting = of_client.iter().find(|setting| {
        setting.names().any(|key| other == Some(key) || names.iter().any(|name| name == key))
    });
    for more in setting.into_iter().flat_map(mc_store::Setting::names) {
        if !names.iter().any(|name| name == more) {
            names.push(more.into());
        }
    }
    let shared = SHARED_VARIABLES.iter().find(|(flag, _)| *flag == name);
    let variables = match (setting, shared, program.variable(&name), arg.get_env()) {
        (Some(setting), ..) => vec![setting.variable().into()],
        (_, Some((_, variables)), ..) => variables.iter().map(|name| (*name).into()).collect(),
        (.., Some(variable), _) => vec![variable.into()],
        (.., Some(variable)) => vec![variable.to_string_lossy().into_owned()],
        _ => vec![format!("{}{}", program.prefix, name.to_ascii_uppercase())],
    };
    let default = program.client.and_then(|client| {
        client.defaults.iter().find(|(flag, _)| *flag == name).map(|(_, value)| *value)
    });
    let default = default.or(setting.map(mc_store::Setting::default)).map(str::to_owned);
    Known {
        default: default.unwrap_or_else(|| default_of(arg)),
        variables,
        names,
        name,
        key: setting.map(mc_store::Setting::key),
        is_flag: true,
    }
}

/// The default of a flag, or what its help says in `[default: …]` of one that depends.
fn default_of(arg: &Arg) -> String {
    let values: Vec<_> =
        arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if !values.is_empty() {
        return values.join(",");
    }
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let words = help.split_once("[default: ").and_then(|(_, rest)| rest.split_once(']'));
    words.map(|(words, _)| words.to_owned()).unwrap_or_default()
}

/// The setting with this name in a file.
pub(super) fn find<'a>(known: &'a [Known], name: &str) -> Option<&'a Known> {
    let name = name.replace('-', "_");
    known.iter().find(|known| known.names.contains(&name))
}

/// The name that was probably meant.
pub(super) fn nearest<'a>(known: &'a [Known], name: &str) -> Option<&'a str> {
    let name = name.replace('-', "_");
    nearest_name(&name, known.iter().flat_map(|known| &known.names).map(String::as_str))
}
