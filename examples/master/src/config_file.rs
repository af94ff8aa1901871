//! The file of flags that `--config_path` names, in Mooncake's format: a flat map of names to values, as
//! YAML or JSON.
//!
//! The file becomes arguments that stand before those of the command line, so that both are read by
//! one parser and the command line wins.

mod json;
mod yaml;

use std::ffi::OsString;
use std::path::Path;

use mc_cli::{Parsed, Refusal, last_value, parse_compatible};

use crate::args::Args;
use crate::compat::TABLES;

const FLAG: &str = "config_path";
/// Longest file, in bytes.
const MAX_LEN: usize = 1 << 20;
/// Most settings of a file, which is many more than there are flags.
const MAX_SETTINGS: usize = 1000;

/// One line of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Setting {
    line: usize,
    name: String,
    value: String,
}

impl Setting {
    fn argument(&self) -> OsString {
        format!("--{}={}", self.name, self.value).into()
    }
}

/// A line that is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
struct BadLine {
    line: usize,
    text: String,
}

impl BadLine {
    fn new(line: usize, text: impl Into<String>) -> Self {
        Self { line, text: text.into() }
    }
}

/// Parses the command line, program name first, and the file that it names. Blocks.
pub(crate) fn parse(args: Vec<OsString>) -> Result<Parsed<Args>, Refusal> {
    let Some(path) = last_value::<Args>(args.iter().cloned(), TABLES, FLAG) else {
        return parse_compatible(args, TABLES);
    };
    // `--help` is answered whatever the file says.
    if let Err(answer @ Refusal::Answered { .. }) =
        parse_compatible::<Args>(args.iter().cloned(), TABLES)
    {
        return Err(answer);
    }
    let path = Path::new(&path);
    let settings = read(path)?;
    let mut args = args.into_iter();
    let mut all: Vec<OsString> = args.next().into_iter().collect();
    all.extend(settings.iter().map(Setting::argument));
    all.extend(args);
    parse_compatible(all, TABLES).map_err(|refusal| attribute(refusal, path, &settings))
}

/// Adds the file and the line to a refusal that a line of the file causes by itself.
fn attribute(refusal: Refusal, path: &Path, settings: &[Setting]) -> Refusal {
    let is_cause = |setting: &&Setting| {
        let alone = parse_compatible::<Args>(["mc-master".into(), setting.argument()], TABLES);
        alone.is_err_and(|alone| alone == refusal)
    };
    match settings.iter().find(is_cause) {
        Some(setting) => at(path, Some(setting.line), refusal.to_string()),
        None => refusal,
    }
}

fn at(path: &Path, line: Option<usize>, text: String) -> Refusal {
    let path = path.display();
    let place = line.map_or_else(|| path.to_string(), |line| format!("{path}:{line}"));
    Refusal::File { place, text }
}

fn read(path: &Path) -> Result<Vec<Setting>, Refusal> {
    let parse = match path.extension().and_then(|extension| extension.to_str()) {
        Some("yaml" | "yml") => yaml::parse,
        Some("json") => json::parse,
        _ => {
            let text = "a file for --config_path is named .yaml, .yml or .json, by its format";
            return Err(at(path, None, text.into()));
        }
    };
    let bytes = mc_tls::read_file(path, MAX_LEN).map_err(|error| {
        let text = mc_cli::cause_chain(&error);
        Refusal::File { place: format!("--{FLAG}"), text }
    })?;
    let text = str::from_utf8(&bytes)
        .map_err(|error| {
            let before = &bytes[..error.valid_up_to()];
            BadLine::new(line_of(before), "the line is not text in UTF-8")
        })
        .and_then(|text| parse(text.strip_prefix('\u{feff}').unwrap_or(text)));
    let settings = text.and_then(check).map_err(|bad| at(path, Some(bad.line), bad.text))?;
    Ok(settings)
}

/// Refuses names that are no flags' names, and a name that is there twice. Two names of one flag are no
/// mistake: a file for several releases of Mooncake may have both, and the later line counts.
fn check(settings: Vec<Setting>) -> Result<Vec<Setting>, BadLine> {
    let mut lines = std::collections::HashMap::new();
    for Setting { line, name, .. } in &settings {
        let is_name = name.starts_with(|first: char| first.is_ascii_alphabetic())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
        if !is_name {
            let text = format!("{name:?} is no name of a flag; write one such as rpc_port");
            return Err(BadLine::new(*line, text));
        }
        let name = name.replace('-', "_");
        if name == FLAG {
            return Err(BadLine::new(*line, "a file cannot name another one; leave this line out"));
        }
        if lines.len() == MAX_SETTINGS {
            let text = format!("the file has more than {MAX_SETTINGS} settings");
            return Err(BadLine::new(*line, text));
        }
        if let Some(first) = lines.insert(name.clone(), *line) {
            let text = format!("{name} has a value in line {first} already; leave one of them out");
            return Err(BadLine::new(*line, text));
        }
    }
    Ok(settings)
}

/// The number of the line that begins or continues after `before`.
fn line_of(before: &[u8]) -> usize {
    1 + before.iter().filter(|byte| **byte == b'\n').count()
}

fn without_value(name: &str) -> String {
    format!("{name} has no value; write one, such as \"\" for an empty text, or leave the line out")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, text: impl AsRef<[u8]>) -> (tempfile::TempDir, String) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        let path = path.display().to_string();
        (dir, path)
    }

    fn run(path: &str, args: &[&str]) -> Result<Parsed<Args>, String> {
        let path = format!("--config_path={path}");
        let args = ["mc-master", &path].into_iter().chain(args.iter().copied());
        parse(args.map(OsString::from).collect()).map_err(|refusal| refusal.to_string())
    }

    const YAML: &str = "# a master\nrpc_port: 7\neviction-ratio: 0.25 # much\nrpc_interface: \"\"\n\
                        client_live_ttl_sec: 60\nenable_ha: false\netcd_endpoints: 'http://a:2379'\n";

    #[test]
    fn the_command_line_wins() {
        let (_dir, path) = file("master.yaml", YAML);
        let args = run(&path, &[]).unwrap().args;
        assert_eq!(args.rpc_address().port(), 7);
        assert_eq!(args.master_config().eviction_ratio, 0.25);
        assert_eq!(args.master_config().client_ttl.as_secs(), 60);
        let args = run(&path, &["--client_ttl=5", "--port=8"]).unwrap().args;
        assert_eq!(args.rpc_address().port(), 8);
        assert_eq!(args.master_config().client_ttl.as_secs(), 5);
        assert_eq!(args.master_config().eviction_ratio, 0.25);
    }

    #[test]
    fn both_formats_mean_the_same() {
        let json = "{\"rpc_port\": 7,\n \"eviction-ratio\": 0.25, \"rpc_interface\": \"\",\n\
                    \"client_live_ttl_sec\": 60, \"enable_ha\": false,\n\
                    \"etcd_endpoints\": \"http://a:2379\"}";
        let ((_a, yaml), (_b, json)) = (file("a.yml", YAML), file("a.json", json));
        let of = |path: &str| run(path, &[]).unwrap().args.master_config();
        assert_eq!(of(&yaml), of(&json));
    }

    #[test]
    fn refusals_name_the_file_and_the_line() {
        for (name, text, line, says) in [
            ("a.yaml", "rpc_port: 1\nrpc_prot: 2\n", 2, "did you mean --rpc_port?"),
            ("a.yaml", "\nrpc_port: many\n", 2, "--rpc_port: 'many' is refused"),
            ("a.yaml", "rpc_port: 1\nenable_snapshot: true\n", 2, "--metadata_dir"),
            ("a.yaml", "rpc_port: 1\n\nrpc-port: 2\n", 3, "in line 1 already"),
            ("a.yaml", "config_path: b.yaml\n", 1, "cannot name another"),
            ("a.yaml", "9: 1\n", 1, "no name of a flag"),
            ("a.json", "{\"rpc_port\": 1,\n \"rpc_port\": 2}", 2, "in line 1 already"),
            ("a.json", "{\"rpc_port\": 1,\n \"client_ttl\": \"soon\"}", 2, "--client_ttl: 'soon'"),
            ("a.json", "{\"rpc_port\": 1,\n \"x\": {\"rpc_port\": 2}}", 2, "value of x"),
        ] {
            let (_dir, path) = file(name, text);
            let refusal = run(&path, &[]).unwrap_err();
            assert!(refusal.starts_with(&format!("{path}:{line}: ")), "{text}: {refusal}");
            assert!(refusal.contains(says) && !refusal.contains('\n'), "{refusal}");
        }
        // Not the file's fault.
        let (_dir, path) = file("a.yaml", "rpc_port: 1\n");
        let refusal = run(&path, &["--client_ttl=soon"]).unwrap_err();
        assert!(refusal.starts_with("--client_ttl: 'soon'"), "{refusal}");
    }

    #[test]
    fn flags_that_go_together_may_stand_in_both_places() {
        let (_dir, path) = file("a.yaml", "tls_cert: a.pem\nenable_snapshot: true\n");
        assert!(run(&path, &["--tls_key=a.key", "--noenable_snapshot"]).is_ok());
        assert!(run(&path, &["--noenable_snapshot"]).unwrap_err().contains("tls_key"));
        assert!(run(&path, &["--help"]).unwrap_err().contains("--config_path"));
    }

    #[test]
    fn files_that_are_none_are_refused() {
        let (dir, path) = file("a.toml", "");
        assert!(run(&path, &[]).unwrap_err().contains(".yaml, .yml or .json"));
        let missing = dir.path().join("b.yaml").display().to_string();
        assert!(run(&missing, &[]).unwrap_err().contains("b.yaml"));
        let (_dir, path) = file("a.yaml", vec![b'#'; MAX_LEN + 1]);
        assert!(run(&path, &[]).unwrap_err().starts_with("--config_path: "));
        let (_dir, path) = file("a.yaml", b"rpc_port: 1\n# \xff\n");
        assert!(run(&path, &[]).unwrap_err().ends_with(":2: the line is not text in UTF-8"));
        let many: String = (0..=MAX_SETTINGS).map(|number| format!("x{number}: 1\n")).collect();
        let (_dir, path) = file("a.yaml", many);
        assert!(run(&path, &[]).unwrap_err().contains("more than 1000 settings"));
        assert!(run("", &[]).is_ok());
    }
}
