//! Projectors from a checkpoint directory of C2C.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::error::CheckpointError;
use super::state_dict::StateDict;
use crate::convert::Projector;
use crate::error::WeightsError;
use crate::fuser::LayerMap;
use crate::weights::container::{Identity, read_tensor};
use crate::weights::reader::{MAX_LAYERS, Reader, TensorSource};

/// Limit on the bytes of a file of JSON.
const MAX_JSON: u64 = 4 << 20;

/// The projector to make of a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Variant {
    /// The trained projector.
    #[default]
    Full,
    /// Mooncake's simplification, which has a part of the weights and loses quality.
    Simplified,
}

/// Settings that the files of a checkpoint may leave open. A number that they have must not differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckpointOptions {
    /// The source model's name, which files leave empty.
    pub source_model: Option<String>,
    /// The target model's name, which files leave empty.
    pub target_model: Option<String>,
    /// Layers of the source model; by default as many as the map of layers uses.
    pub source_layers: Option<usize>,
    /// Layers of the target model; by default as many as the map of layers uses.
    pub target_layers: Option<usize>,
    /// KV heads of the source model; by default those in `projector_{i}.json`.
    pub source_kv_heads: Option<usize>,
    /// KV heads of the target model; by default those of the weights.
    pub target_kv_heads: Option<usize>,
}

/// Reads a checkpoint directory: `projector_config.json`, and for each module that it names
/// `projector_{i}.safetensors` or `projector_{i}.pt` and, if there is one, `projector_{i}.json`.
/// Holds the weights as fp32 and one tensor more.
///
/// Where the map lists several sources for a layer, the first is used, as C2C does without an
/// aggregator. A simplified projector takes layers of a pair whose last layers are aligned; without
/// `projector_config.json` it takes the modules in the order of their numbers.
///
/// # Errors
/// [`CheckpointError`]: a file is missing, malformed or of another class, the weights do not fit
/// each other, or the layers cannot be represented.
pub fn read_checkpoint(
    dir: &Path,
    variant: Variant,
    options: &CheckpointOptions,
) -> Result<(Projector, Identity), CheckpointError> {
    let config = dir.join("projector_config.json");
    let (entries, names) = match (config.exists(), variant) {
        (true, _) => pair(dir, &read_json(&config)?, options)?,
        (false, Variant::Simplified) => (in_order(dir)?, [String::new(), String::new()]),
        (false, Variant::Full) => {
            return Err(CheckpointError::NoCheckpoint { dir: dir.to_owned() });
        }
    };
    // Modules without a layer are left out.
    let mut files: Vec<usize> = entries.iter().map(|map| map.module).collect();
    files.sort_unstable();
    files.dedup();
    let module = |file: usize| files.partition_point(|other| *other < file);
    let map: Vec<LayerMap> =
        entries.iter().map(|map| LayerMap { module: module(map.module), ..*map }).collect();
    let arguments = arguments(dir, &files)?;

    let layers = |name, given: Option<usize>, of: fn(&LayerMap) -> usize| {
        let least = map.iter().map(of).max().map_or(0, |last| last + 1);
        match given.unwrap_or(least) {
            layers if (least..=MAX_LAYERS).contains(&layers) => Ok(layers),
            given => Err(CheckpointError::Differs { name, given, found: least }),
        }
    };
    let source_layers = layers("the number of source layers", options.source_layers, |m| m.source)?;
    let target_layers = layers("the number of target layers", options.target_layers, |m| m.target)?;
    let reader = Reader {
        tensors: Modules {
            dir,
            // A layer of a simplified projector is what a module of a full one is.
            files: match variant {
                Variant::Full => files,
                Variant::Simplified => {
                    check_aligned(&map, source_layers, target_layers)?;
                    entries.iter().map(|map| map.module).collect()
                }
            },
            variant,
            open: RefCell::new(None),
        },
    };
    // What a simplified projector does not need may be missing.
    let bias = "layers.0.key.scalar_head.bias";
    let heads = match reader.tensors.has(bias)? {
        true => reader.tensors.read(bias)?.0.first().copied(),
        false => arguments.target_num_heads,
    };
    let known = |name, given: Option<usize>, found: Option<usize>| match (given, found) {
        (Some(given), Some(found)) if given != found => {
            Err(CheckpointError::Differs { name, given, found })
        }
        (given, found) => given.or(found).ok_or(CheckpointError::Unknown { name }),
    };
    let source_heads = "the number of KV heads of the source model";
    let target_heads = "the number of KV heads of the target model";
    let identity = Identity {
        source_model: options.source_model.clone().unwrap_or_else(|| names[0].clone()),
        target_model: options.target_model.clone().unwrap_or_else(|| names[1].clone()),
        source_layers,
        target_layers,
        source_kv_heads: known(source_heads, options.source_kv_heads, arguments.source_num_heads)?,
        target_kv_heads: known(target_heads, options.target_kv_heads, heads)?,
    };
    let projector: Projector = match variant {
        Variant::Full => reader.fuser(map, identity.target_kv_heads)?.into(),
        Variant::Simplified => reader.simplified(target_layers)?.into(),
    };
    arguments.check(&projector, &identity)?;
    Ok((projector, identity))
}

/// `projector_config.json`: target model, source model, target layer, pairs of a source layer and
/// a module.
type Config = BTreeMap<String, BTreeMap<String, BTreeMap<usize, Vec<(usize, usize)>>>>;

/// The map of the one pair of models that is meant, and their names: source and target. Modules are
/// the numbers of files.
fn pair(
    dir: &Path,
    config: &Config,
    options: &CheckpointOptions,
) -> Result<(Vec<LayerMap>, [String; 2]), CheckpointError> {
    let all: Vec<_> = config
        .iter()
        .flat_map(|(target, sources)| {
            sources.iter().map(move |(source, map)| (source, target, map))
        })
        .filter(|(_, _, map)| !map.is_empty())
        .collect();
    let is_meant =
        |name: &str, option: &Option<String>| option.as_ref().is_none_or(|meant| meant == name);
    let meant: Vec<_> = all
        .iter()
        .filter(|(source, target, _)| {
            is_meant(source, &options.source_model) && is_meant(target, &options.target_model)
        })
        .collect();
    let (source, target, map) = match (&all[..], &meant[..]) {
        ([one], _) => *one,
        (_, [one]) => **one,
        _ => {
            let names =
                |(source, target, _): &(&String, &String, _)| format!("{source} to {target}");
            let pairs: Vec<_> = all.iter().map(names).collect();
            return Err(CheckpointError::Pairs { pairs: pairs.join(", ") });
        }
    };
    let has_several = map.values().any(|sources| sources.len() > 1);
    if has_several && dir.join("aggregator_config.json").exists() {
        let what = "lists several sources for a layer, which an aggregator joins; only projectors can be converted";
        return Err(CheckpointError::Map { what: what.to_owned() });
    }
    let entry = |(target, sources): (&usize, &Vec<(usize, usize)>)| {
        let Some((source, module)) = sources.first().copied() else {
            let what = format!("has no source for layer {target}; take the layer out");
            return Err(CheckpointError::Map { what });
        };
        if [*target, source, module].iter().any(|number| *number >= MAX_LAYERS) {
            let what = format!("has numbers above {MAX_LAYERS}; get the checkpoint again");
            return Err(CheckpointError::Map { what });
        }
        Ok(LayerMap { target: *target, source, module })
    };
    let entries = map.iter().map(entry).collect::<Result<_, _>>()?;
    // The trainer numbers its models, which names none.
    let name = |name: &String| {
        let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
        if is_number { String::new() } else { name.clone() }
    };
    Ok((entries, [name(source), name(target)]))
}

/// All modules of a directory, one for each layer.
fn in_order(dir: &Path) -> Result<Vec<LayerMap>, CheckpointError> {
    let read = |source| CheckpointError::Io { path: dir.to_owned(), source };
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).map_err(read)? {
        let name = entry.map_err(read)?.file_name();
        let Some(name) = name.to_str().and_then(|name| name.strip_prefix("projector_")) else {
            continue;
        };
        let number = name.strip_suffix(".pt").or_else(|| name.strip_suffix(".safetensors"));
        if let Some(Ok(number)) = number.map(str::parse::<usize>) {
            files.push(number);
        }
    }
    files.sort_unstable();
    files.dedup();
    if files.is_empty() || files.len() > MAX_LAYERS {
        return Err(CheckpointError::NoCheckpoint { dir: dir.to_owned() });
    }
    let entry = |(layer, module)| LayerMap { target: layer, source: layer, module };
    Ok(files.into_iter().enumerate().map(entry).collect())
}

/// A simplified projector has no map: its layers are those of the target, and the source's last ones.
fn check_aligned(map: &[LayerMap], source: usize, target: usize) -> Result<(), CheckpointError> {
    let has_all = map.len() == target && source >= target;
    let is_aligned = |(layer, map): (usize, &LayerMap)| {
        map.target == layer && map.source == source - target + layer
    };
    if has_all && map.iter().enumerate().all(is_aligned) {
        return Ok(());
    }
    let what = format!(
        "does not align all {target} layers of the target model with the last of {source} of the source model, and a simplified projector cannot have another; make a full one"
    );
    Err(CheckpointError::Map { what })
}

/// The content of `projector_{i}.json`: the arguments that the module was made with.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct Arguments {
    source_dim: Option<usize>,
    target_dim: Option<usize>,
    source_num_heads: Option<usize>,
    target_num_heads: Option<usize>,
}

#[derive(Deserialize)]
struct ModuleFile {
    class: String,
    #[serde(default)]
    init_args: Arguments,
}

/// The arguments of the modules, of which all must have the same.
fn arguments(dir: &Path, files: &[usize]) -> Result<Arguments, CheckpointError> {
    let mut all = Arguments::default();
    for index in files {
        let path = dir.join(format!("projector_{index}.json"));
        if !path.exists() {
            continue;
        }
        let module: ModuleFile = read_json(&path)?;
        if module.class != "C2CProjector" {
            return Err(CheckpointError::Class { path, class: module.class });
        }
        let Arguments { source_dim, target_dim, source_num_heads, target_num_heads } =
            module.init_args;
        for (name, all, this) in [
            ("source_dim of a module", &mut all.source_dim, source_dim),
            ("target_dim of a module", &mut all.target_dim, target_dim),
            ("source_num_heads of a module", &mut all.source_num_heads, source_num_heads),
            ("target_num_heads of a module", &mut all.target_num_heads, target_num_heads),
        ] {
            match (*all, this) {
                (Some(found), Some(given)) if given != found => {
                    return Err(CheckpointError::Differs { name, given, found });
                }
                _ => *all = all.or(this),
            }
        }
    }
    Ok(all)
}

impl Arguments {
    /// Compares them with what the weights have.
    fn check(&self, projector: &Projector, identity: &Identity) -> Result<(), CheckpointError> {
        let (source, target) = projector.dims();
        for (name, heads, per_head, dim) in [
            ("source_dim by the heads", identity.source_kv_heads, self.source_dim, source),
            ("target_dim by the heads", identity.target_kv_heads, self.target_dim, target),
        ] {
            // Without the dimension of a head, the heads must at least divide the row.
            let given = match per_head {
                Some(per_head) => heads.saturating_mul(per_head),
                None if heads > 0 && dim.is_multiple_of(heads) => dim,
                None => heads,
            };
            if given != dim {
                return Err(CheckpointError::Differs { name, given, found: dim });
            }
        }
        match self.target_num_heads {
            Some(given) if given != identity.target_kv_heads => Err(CheckpointError::Differs {
                name: "target_num_heads",
                given,
                found: identity.target_kv_heads,
            }),
            _ => Ok(()),
        }
    }
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, CheckpointError> {
    let read = |source| CheckpointError::Io { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(read)?;
    // A longer file is cut, and malformed then.
    file.take(MAX_JSON).read_to_end(&mut bytes).map_err(read)?;
    serde_json::from_slice(&bytes)
        .map_err(|source| CheckpointError::Json { path: path.to_owned(), source })
}

/// The tensors of a checkpoint, under the names of a container.
struct Modules<'a> {
    dir: &'a Path,
    /// The number of the file of each module.
    files: Vec<usize>,
    variant: Variant,
    /// The file that was read last. All tensors of a module are read together.
    open: RefCell<Option<(usize, PathBuf, ModuleTensors)>>,
}

enum ModuleTensors {
    Torch(StateDict<BufReader<File>>),
    Safetensors(Vec<u8>),
}

impl Modules<'_> {
    /// The file and the name in it of `layers.{n}.{part}.{tensor}`.
    fn place(&self, name: &str) -> Option<(usize, String)> {
        let (module, tensor) = name.strip_prefix("layers.")?.split_once('.')?;
        let file = *self.files.get(module.parse::<usize>().ok()?)?;
        let (part, tensor) = tensor.split_once('.')?;
        let tensor = match (tensor.split_once('.'), self.variant) {
            (Some(("mlp1", "weight")), Variant::Simplified) => "mlp1.blocks.0.w1.weight".to_owned(),
            (Some((branch, rest)), _) if rest.starts_with(|c: char| c.is_ascii_digit()) => {
                format!("{branch}.blocks.{rest}")
            }
            _ => tensor.to_owned(),
        };
        Some((file, format!("{part}_{tensor}")))
    }

    fn open(&self, index: usize) -> Result<(PathBuf, ModuleTensors), CheckpointError> {
        let path = self.dir.join(format!("projector_{index}.safetensors"));
        if path.exists() {
            return match fs::read(&path) {
                Ok(bytes) => Ok((path, ModuleTensors::Safetensors(bytes))),
                Err(source) => Err(CheckpointError::Io { path, source }),
            };
        }
        let path = self.dir.join(format!("projector_{index}.pt"));
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(CheckpointError::NoModule { dir: self.dir.to_owned(), index });
            }
            Err(source) => return Err(CheckpointError::Io { path, source }),
            Ok(file) => file,
        };
        match StateDict::open(BufReader::new(file)) {
            Ok(tensors) => Ok((path, ModuleTensors::Torch(tensors))),
            Err(source) => Err(CheckpointError::Torch { path, source }),
        }
    }

    /// Does something with the tensors of a file.
    fn with<T>(
        &self,
        index: usize,
        work: impl FnOnce(&Path, &mut ModuleTensors) -> Result<T, CheckpointError>,
    ) -> Result<T, CheckpointError> {
        let mut open = self.open.borrow_mut();
        let (_, path, tensors) = match open.take() {
            Some(same) if same.0 == index => open.insert(same),
            _ => {
                let (path, tensors) = self.open(index)?;
                open.insert((index, path, tensors))
            }
        };
        work(path, tensors)
    }

    /// A tensor as it is in its file.
    fn stored(&self, name: &str) -> Result<(Vec<usize>, Vec<f32>), CheckpointError> {
        let described = self.describe(name);
        let Some((index, tensor)) = self.place(name) else {
            return Err(WeightsError::Missing { tensor: described }.into());
        };
        self.with(index, |path, tensors| match tensors {
            ModuleTensors::Safetensors(bytes) => {
                let tensors = SafeTensors::deserialize(bytes).map_err(WeightsError::from)?;
                Ok(read_tensor(&tensors, &tensor, &described)?)
            }
            ModuleTensors::Torch(tensors) if !tensors.has(&tensor) => {
                Err(WeightsError::Missing { tensor: described }.into())
            }
            ModuleTensors::Torch(tensors) => {
                let torch = |source| CheckpointError::Torch { path: path.to_owned(), source };
                let tensor = tensors.read(&tensor).map_err(torch)?;
                let dtype = format!("{:?}", tensor.element);
                let weights =
                    tensor.to_f32().ok_or(WeightsError::TensorType { tensor: described, dtype })?;
                Ok((tensor.shape, weights))
            }
        })
    }
}

impl TensorSource for Modules<'_> {
    type Error = CheckpointError;

    fn has(&self, name: &str) -> Result<bool, CheckpointError> {
        let Some((index, tensor)) = self.place(name) else { return Ok(false) };
        self.with(index, |_, tensors| match tensors {
            ModuleTensors::Torch(tensors) => Ok(tensors.has(&tensor)),
            ModuleTensors::Safetensors(bytes) => {
                let tensors = SafeTensors::deserialize(bytes).map_err(WeightsError::from)?;
                Ok(tensors.tensor(&tensor).is_ok())
            }
        })
    }

    fn read(&self, name: &str) -> Result<(Vec<usize>, Vec<f32>), CheckpointError> {
        if self.variant == Variant::Full {
            return self.stored(name);
        }
        let sibling = |tensor: &str| {
            // `layers.{n}.{part}`
            let end = name.match_indices('.').nth(2).map_or(name.len(), |(at, _)| at);
            format!("{}.{tensor}", &name[..end])
        };
        if name.ends_with(".gate_logit") && !self.has(name)? {
            return Ok((Vec::new(), vec![0.0]));
        }
        if name.ends_with(".mlp1.bias") {
            // The blocks of the trained projector have none.
            let (shape, bias) = self.stored(&sibling("in.bias"))?;
            return Ok((shape, vec![0.0; bias.len()]));
        }
        let (shape, weights) = self.stored(name)?;
        if !name.ends_with(".in.weight") {
            return Ok((shape, weights));
        }
        // The target's half is left out.
        let (target, _) = self.stored(&sibling("proj_out.bias"))?;
        let (&[hidden, both], &[target]) = (&shape[..], &target[..]) else {
            return Ok((shape, weights));
        };
        match both.checked_sub(target) {
            None | Some(0) => Ok((shape, weights)),
            Some(source) => {
                let rows = weights.chunks_exact(both).flat_map(|row| &row[..source]);
                Ok((vec![hidden, source], rows.copied().collect()))
            }
        }
    }

    fn describe(&self, name: &str) -> String {
        match self.place(name) {
            Some((index, tensor)) => format!("{tensor} of projector_{index}"),
            None => name.to_owned(),
        }
    }
}
