//! The settings of a program from its file, its variables and its command line, one over the other.
//!
//! A setting of the file or of a variable becomes an argument that stands before those of the command
//! line, so that one parser reads all of them and the last one counts. Settings of a client that may have
//! no flag are given to the client's reader.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::Command;
use mc_store::{ClientConfig, ConfigError, ConfigSource};

use super::effective::{Effective, Origin, as_json, as_table};
use super::entry::Entry;
use super::file::{self, at};
use super::known::{self, FILE, Known, QUESTIONS};
use super::program::Program;
use crate::compat::Compat;
use crate::flags::{GivenFlags, Parsed, built, flags_of, parse_given};
use crate::refusal::Refusal;

/// The settings of a program.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Configured<P> {
    /// The flags: those of the command line, over the variables and the file.
    pub args: P,
    /// The settings of the client of variables and the file, without those of the command line. Empty
    /// for a program that is no client.
    pub client: ClientConfig,
    /// Every setting, with where its value comes from.
    pub settings: Vec<Effective>,
}

/// A value for a setting, on its way to the parser or the client.
struct Said {
    /// Its place among the settings.
    setting: Option<usize>,
    /// The name that it is given by.
    name: String,
    value: OsString,
    origin: Origin,
}

impl Said {
    fn argument(&self) -> OsString {
        let mut argument = OsString::from(format!("--{}=", self.name));
        argument.push(&self.value);
        argument
    }

    /// A refusal of it.
    fn refused(&self, text: String) -> Refusal {
        let place = match &self.origin {
            Origin::File(place) => place.clone(),
            Origin::Variable(name) => format!("the variable {name}"),
            Origin::Default | Origin::Flag => "the command line".into(),
        };
        Refusal::Source { place, text }
    }
}

impl Program {
    /// Reads the command line, program name first, the variables of the environment, and the file that
    /// either names. Blocks. A flag overrides a variable, which overrides the file.
    ///
    /// # Errors
    /// [`Refusal`], which names the flag, the variable, or the file and the line. The answer to
    /// `--print_config` is one, as that to `--help` is.
    pub fn read<P: clap::Parser>(
        &self,
        args: Vec<OsString>,
    ) -> Result<Parsed<Configured<P>>, Refusal> {
        self.read_with(args, |name| std::env::var_os(name))
    }

    pub(super) fn read_with<P: clap::Parser>(
        &self,
        args: Vec<OsString>,
        lookup: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Parsed<Configured<P>>, Refusal> {
        // `--help` is answered whatever the file says.
        let alone = parse_given::<P>(args.iter().cloned(), self.tables);
        if let Err(answer @ Refusal::Answered { .. }) = alone {
            return Err(answer);
        }
        let command = built::<P>();
        let known = known::settings(self, &command);
        let mut said = Vec::new();
        if let Some(path) = self.file::<P>(&args, &known, &lookup) {
            for entry in file::read(&path)? {
                said.push(self.of_file(&path, entry, &known, &command)?);
            }
            refuse_contradictions(&said)?;
        }
        said.extend(of_variables(&known, &lookup));
        let (of_client, of_flags): (Vec<_>, Vec<_>) = said
            .into_iter()
            .partition(|said| said.setting.is_some_and(|at| known[at].key.is_some()));
        let client = client(&of_client, &known)?;
        let mut all: Vec<OsString> = args.iter().take(1).cloned().collect();
        all.extend(of_flags.iter().map(Said::argument));
        all.extend(args.into_iter().skip(1));
        let (parsed, given) = parse_given::<P>(all, self.tables)
            .map_err(|refusal| self.attribute::<P>(refusal, &of_flags))?;
        let settings = effective(&known, &of_client, &of_flags, &given);
        if is_on(&given, "print_config") {
            let print = if is_on(&given, "json") { as_json } else { as_table };
            return Err(Refusal::Answered { text: print(&settings) });
        }
        let Parsed { args, warnings } = parsed;
        Ok(Parsed { args: Configured { args, client, settings }, warnings })
    }

    /// The file that the command line names, or else a variable.
    fn file<P: clap::Parser>(
        &self,
        args: &[OsString],
        known: &[Known],
        lookup: &impl Fn(&str) -> Option<OsString>,
    ) -> Option<PathBuf> {
        let mut flags = flags_of::<P>(args.iter().cloned(), self.tables);
        // One without a path is the parser's to refuse.
        let path = flags.remove(FILE).map(|(_, path)| path.unwrap_or_default()).or_else(|| {
            let variables = &known::find(known, FILE)?.variables;
            variables.iter().find_map(|name| lookup(name))
        });
        path.filter(|path| !path.is_empty()).map(PathBuf::from)
    }

    /// A line of the file.
    fn of_file(
        &self,
        path: &Path,
        entry: Entry,
        known: &[Known],
        command: &Command,
    ) -> Result<Said, Refusal> {
        let Entry { line, name, value } = entry;
        let refused = |text: String| Err(at(path, Some(line), text));
        let plain = name.replace('-', "_");
        if plain == FILE || known::find(known, &plain).is_some_and(|known| known.name == FILE) {
            return refused("a file cannot name another one; leave this line out".into());
        }
        if QUESTIONS.contains(&&*plain) {
            return refused(format!("{plain} is for the command line only; leave this line out"));
        }
        let setting = known.iter().position(|known| known.names.contains(&plain));
        let is_compat = Compat(self.tables).find(&plain).is_some_and(|(_, negated)| !negated);
        if setting.is_none() && !is_compat {
            let hint = known::nearest(known, &plain)
                .map(|near| format!("; did you mean {near}?"))
                .unwrap_or_default();
            let program = command.get_name();
            return refused(format!("{program} has no setting {name}{hint}"));
        }
        let origin = Origin::File(file::place(path, Some(line)));
        Ok(Said { setting, name, value: value.into(), origin })
    }

    /// Adds the source to a refusal that one of its values causes by itself.
    fn attribute<P: clap::Parser>(&self, refusal: Refusal, said: &[Said]) -> Refusal {
        let is_cause = |said: &&Said| {
            let alone = parse_given::<P>(["program".into(), said.argument()], self.tables);
            alone.is_err_and(|alone| alone == refusal)
        };
        match said.iter().find(is_cause) {
            Some(said) => said.refused(refusal.to_string()),
            None => refusal,
        }
    }
}

/// Refuses two names of one setting with different values. With the same one they are no mistake: a file
/// for several releases of Mooncake may have both.
fn refuse_contradictions(said: &[Said]) -> Result<(), Refusal> {
    let mut first: HashMap<usize, &Said> = HashMap::new();
    for said in said {
        let Some(setting) = said.setting else { continue };
        if let Some(earlier) = first.insert(setting, said)
            && earlier.value != said.value
        {
            return Err(said.refused(format!(
                "{} and {} are one setting, and have the values {} and {}; leave one of them out",
                earlier.name,
                said.name,
                earlier.value.display(),
                said.value.display(),
            )));
        }
    }
    Ok(())
}

/// The variables that are set, and are not empty.
fn of_variables(known: &[Known], lookup: &impl Fn(&str) -> Option<OsString>) -> Vec<Said> {
    let set = |name: &String| {
        let value = lookup(name).filter(|value| !is_blank(value))?;
        Some((name.clone(), value))
    };
    let all = known.iter().enumerate();
    all.filter_map(|(at, known)| {
        let (variable, value) = known.variables.iter().find_map(set)?;
        let origin = Origin::Variable(variable);
        Some(Said { setting: Some(at), name: known.name.clone(), value, origin })
    })
    .collect()
}

fn is_blank(value: &OsStr) -> bool {
    value.to_str().is_some_and(|value| value.trim().is_empty())
}

/// The client's settings, the later ones over the earlier.
fn client(said: &[Said], known: &[Known]) -> Result<ClientConfig, Refusal> {
    let mut client = ClientConfig::default();
    for said in said {
        let Some(key) = said.setting.and_then(|at| known[at].key) else { continue };
        // Bytes that are no text are replaced by characters that nothing contains.
        let text = said.value.to_string_lossy();
        let text = match said.origin {
            Origin::Variable(_) => text.trim(),
            _ => &*text,
        };
        client.set_text(key, text, &ConfigSource::Text).map_err(|error| {
            said.refused(match error {
                ConfigError::BadValue { value, expected, .. } => {
                    format!("{} = {value} is refused: it must be {expected}", said.name)
                }
                error => error.to_string(),
            })
        })?;
    }
    Ok(client)
}

/// Every setting with the value that counts: the last one that was said.
fn effective(
    known: &[Known],
    of_client: &[Said],
    of_flags: &[Said],
    given: &GivenFlags,
) -> Vec<Effective> {
    let all = known.iter().enumerate().map(|(at, known)| {
        let flag = given.get(&known.name).filter(|_| known.is_flag);
        // The first argument is the program's name.
        let flag = flag.map(|(place, value)| {
            let origin = of_flags.get(place - 1).map_or(Origin::Flag, |said| said.origin.clone());
            // Of the flags of these programs only switches have no value.
            (value.as_deref().unwrap_or(OsStr::new("true")), origin)
        });
        let of_client = of_client.iter().rev().find(|said| said.setting == Some(at));
        let said = flag.or(of_client.map(|said| (&*said.value, said.origin.clone())));
        let (value, origin) = match said {
            Some((value, origin)) => (value.to_string_lossy().into_owned(), origin),
            None => (known.default.clone(), Origin::Default),
        };
        Effective { name: known.name.clone(), value, origin }
    });
    all.collect()
}

/// Whether a switch is on, in a spelling that the parser has accepted.
fn is_on(given: &GivenFlags, flag: &str) -> bool {
    let off = ["false", "0", "no", "off", "n", "f"];
    given.get(flag).is_some_and(|(_, value)| {
        let value = value.as_deref().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
        !off.contains(&&*value)
    })
}
