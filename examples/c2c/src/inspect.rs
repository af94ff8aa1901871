//! `inspect`: what weights are for, and what they take.

use std::error::Error;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use mc_c2c::fetch::Sha256Sum;
use mc_c2c::{Identity, LayerMap, Part, Projector};
use mc_types::ByteSize;
use serde_json::json;

use crate::args::Inspect;
use crate::error::ToolError;
use crate::{files, text};

pub(crate) fn inspect(args: &Inspect) -> Result<(), Box<dyn Error>> {
    let (projector, identity) = files::load(&args.weights, &args.models)?;
    let report = Report {
        path: &args.weights,
        files: files_of(&args.weights)?,
        map: text::map(&projector, identity.as_ref()),
        projector,
        identity,
    };
    Ok(text::print(&if args.json { report.json() } else { report.text() })?)
}

struct Report<'a> {
    path: &'a Path,
    files: Vec<Checked>,
    projector: Projector,
    identity: Option<Identity>,
    map: Vec<LayerMap>,
}

/// A file and its checksum.
struct Checked {
    name: String,
    bytes: u64,
    sha256: String,
}

impl Report<'_> {
    fn open(&self, part: Part) -> usize {
        self.map.iter().filter(|map| self.projector.is_open(map.module, part)).count()
    }

    /// GFLOP for the keys and the values of a token.
    fn work(&self) -> f64 {
        Part::ALL.map(|part| self.projector.flop_per_token(part)).iter().sum::<u64>() as f64 / 1e9
    }

    fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    fn text(&self) -> String {
        let [source, hidden, target] = self.projector.shape();
        let mapped = self.map.len();
        let mut lines = vec![
            ("file", self.path.display().to_string()),
            ("variant", text::variant(&self.projector).to_owned()),
        ];
        match &self.identity {
            Some(of) => {
                let name = |name: &str| match name {
                    "" => "unnamed".to_owned(),
                    name => mc_cli::visible(name),
                };
                let pair = format!("{} → {}", name(&of.source_model), name(&of.target_model));
                lines.push(("pair", pair));
                let (from, to) = (of.source_layers, of.target_layers);
                lines.push(("layers", format!("{from} → {to}, {mapped} mapped")));
                let heads = format!("{} → {} KV heads", of.source_kv_heads, of.target_kv_heads);
                lines.push(("dims", format!("{source} → {hidden} → {target}, {heads}")));
            }
            None => {
                lines.push(("pair", "not in the file".to_owned()));
                lines.push(("layers", format!("the source's last {mapped} → {mapped}")));
                lines.push(("dims", format!("{source} → {hidden} → {target}")));
            }
        }
        let [keys, values] = Part::ALL.map(|part| self.open(part));
        if matches!(self.projector, Projector::Full(_)) {
            lines.push(("gates", format!("open for {keys} keys and {values} values of {mapped}")));
        }
        let memory = ByteSize::bytes(self.projector.memory_bytes() as u64);
        lines.push(("size", format!("{}, {memory} in memory", ByteSize::bytes(self.bytes()))));
        lines.push(("work", format!("{:.3} GFLOP per token", self.work())));
        if let [file] = &self.files[..] {
            lines.push(("sha256", file.sha256.clone()));
        }
        let mut out: String =
            lines.iter().map(|(name, value)| format!("{name:<8} {value}\n")).collect();
        if matches!(self.projector, Projector::Full(_)) {
            let gate = |map: &LayerMap, part| {
                if self.projector.is_open(map.module, part) { "open" } else { "closed" }.to_owned()
            };
            let row = |map: &LayerMap| {
                let numbers = [map.target, map.source, map.module].map(|number| number.to_string());
                let [target, source, module] = numbers;
                [target, source, module, gate(map, Part::Key), gate(map, Part::Value)]
            };
            let rows: Vec<_> = self.map.iter().map(row).collect();
            let heading = [">TARGET", ">SOURCE", ">MODULE", "KEYS", "VALUES"];
            out = out + "\n" + &mc_cli::table(heading, &rows);
        }
        if self.files.len() > 1 {
            let row =
                |file: &Checked| [file.name.clone(), file.bytes.to_string(), file.sha256.clone()];
            let rows: Vec<_> = self.files.iter().map(row).collect();
            out = out + "\n" + &mc_cli::table(["FILE", ">BYTES", "SHA256"], &rows);
        }
        out
    }

    fn json(&self) -> String {
        let [source_dim, hidden_dim, target_dim] = self.projector.shape();
        let identity = self.identity.as_ref().map(|of| {
            json!({
                "source_model": of.source_model, "target_model": of.target_model,
                "source_layers": of.source_layers, "target_layers": of.target_layers,
                "source_kv_heads": of.source_kv_heads, "target_kv_heads": of.target_kv_heads,
            })
        });
        let layer = |map: &LayerMap| {
            // Of a simplified projector whose source model is not known, only the target's.
            let source = self.identity.is_some().then_some(map.source);
            let [key, value] = Part::ALL.map(|part| self.projector.is_open(map.module, part));
            json!({
                "target": map.target, "source": source, "module": map.module,
                "key_open": key, "value_open": value,
            })
        };
        let file = |file: &Checked| json!({ "name": file.name, "bytes": file.bytes, "sha256": file.sha256 });
        let report = json!({
            "variant": text::variant(&self.projector),
            "models": identity,
            "source_dim": source_dim, "hidden_dim": hidden_dim, "target_dim": target_dim,
            "layers": self.map.iter().map(layer).collect::<Vec<_>>(),
            "bytes": self.bytes(),
            "memory_bytes": self.projector.memory_bytes(),
            "gflop_per_token": self.work(),
            "files": self.files.iter().map(file).collect::<Vec<_>>(),
        });
        report.to_string() + "\n"
    }
}

/// The file, or the files of a checkpoint by name.
fn files_of(path: &Path) -> Result<Vec<Checked>, ToolError> {
    let unreadable = |source| ToolError::Read { path: path.to_owned(), source };
    let mut paths: Vec<PathBuf> = vec![path.to_owned()];
    if path.is_dir() {
        let entries = fs::read_dir(path).map_err(unreadable)?;
        let all: Result<Vec<_>, _> = entries.map(|entry| Ok(entry?.path())).collect();
        paths = all.map_err(unreadable)?;
        paths.retain(|path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with("projector_") && path.is_file()
        });
        paths.sort();
    }
    paths.iter().map(|path| checked(path)).collect()
}

fn checked(path: &Path) -> Result<Checked, ToolError> {
    let unreadable = |source| ToolError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(unreadable)?;
    let bytes = file.metadata().map_err(unreadable)?.len();
    let sha256 = Sha256Sum::of_reader(file).map_err(unreadable)?.to_string();
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    Ok(Checked { name: mc_cli::visible(&name), bytes, sha256 })
}
