//! The rules that say which objects are converted for which model: Mooncake's JSON, with more fields.
//!
//! A rule applies to the keys in which the name of its source model is found, see [`Matching`]. The
//! converted object has the key in which the target model's name stands instead.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Deserialize;
use thiserror::Error;

use crate::dtype::{Dtype, Rounding};
use crate::shape::{Layout, ModelShape, Part};
use crate::weights::reader::{MAX_DIM, MAX_LAYERS};

/// Limit on the length of a configuration.
pub const MAX_CONFIG_BYTES: usize = 1 << 20;
/// Limit on the models, and on the rules, of a configuration.
const MAX_ENTRIES: usize = 1024;
/// Mooncake's default for the memory of conversions.
const BUFFER_SIZE: u64 = 256 << 20;
/// Limit on the memory of conversions.
const MAX_BUFFER_SIZE: u64 = 1 << 40;

/// The conversions to make, and how to make them.
///
/// ```
/// use mc_c2c::{C2cConfig, Part};
/// let config = C2cConfig::from_json(
///     r#"{
///     "models": [
///         {"model_id": "4b", "num_layers": 36, "num_kv_heads": 8, "head_dim": 128},
///         {"model_id": "0.6b", "hf_model": "Qwen/Qwen3-0.6B"}
///     ],
///     "rules": [{
///         "source_model": "4b", "source_model_name": "Qwen/Qwen3-4B",
///         "target_model": "0.6b", "target_model_name": "Qwen/Qwen3-0.6B",
///         "projector_file": "/models/4b-to-0.6b.bin"
///     }]
/// }"#,
/// )?;
/// let matches = config.matching("Qwen/Qwen3-4B_7f3a_0_k");
/// assert_eq!(matches[0].target_key, "Qwen/Qwen3-0.6B_7f3a_0_k");
/// assert_eq!(matches[0].part, Part::Key);
/// assert!(config.matching("Qwen/Qwen3-4B-Base_7f3a_0_k").is_empty());
/// # Ok::<_, mc_c2c::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct C2cConfig {
    /// Bytes of the buffers that objects are read and converted in; 256 MiB unless given.
    #[serde(default = "buffer_size")]
    pub buffer_size: u64,
    /// The models.
    #[serde(default)]
    pub models: Vec<Model>,
    /// The rules.
    #[serde(default)]
    pub rules: Vec<Rule>,
    #[serde(flatten)]
    others: Others,
}

/// Fields without a meaning here.
type Others = BTreeMap<String, serde_json::Value>;

fn buffer_size() -> u64 {
    BUFFER_SIZE
}

/// A model that rules name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Model {
    /// Its name in rules.
    pub model_id: String,
    /// Its name on the hub, where the numbers that are missing here are taken from.
    pub hf_model: Option<String>,
    /// Number of layers.
    pub num_layers: Option<usize>,
    /// KV heads of a layer.
    pub num_kv_heads: Option<usize>,
    /// Elements of a head.
    pub head_dim: Option<usize>,
    #[serde(flatten)]
    others: Others,
}

impl Model {
    /// The shape, if all its numbers are given.
    #[must_use]
    pub fn shape(&self) -> Option<ModelShape> {
        let (layers, kv_heads) = (self.num_layers?, self.num_kv_heads?);
        Some(ModelShape { layers, kv_heads, head_dim: self.head_dim? })
    }

    /// The shape with these numbers where none are given.
    #[must_use]
    pub fn shape_or(&self, hub: ModelShape) -> ModelShape {
        ModelShape {
            layers: self.num_layers.unwrap_or(hub.layers),
            kv_heads: self.num_kv_heads.unwrap_or(hub.kv_heads),
            head_dim: self.head_dim.unwrap_or(hub.head_dim),
        }
    }

    fn check(&self) -> Result<(), ConfigError> {
        let id = || self.model_id.clone();
        let missing = |what| ConfigError::Missing { place: format!("model {:?}", id()), what };
        if self.model_id.is_empty() {
            return Err(missing("model_id"));
        }
        let numbers = [
            ("num_layers", self.num_layers, MAX_LAYERS),
            ("num_kv_heads", self.num_kv_heads, MAX_DIM),
            ("head_dim", self.head_dim, MAX_DIM),
        ];
        for (name, number, max) in numbers {
            match number {
                None if self.hf_model.is_none() => {
                    return Err(ConfigError::NoShape { model: id(), name });
                }
                Some(value) if !(1..=max).contains(&value) => {
                    return Err(ConfigError::Number { model: id(), name, value, max });
                }
                _ => {}
            }
        }
        let dim = self.num_kv_heads.unwrap_or(1) * self.head_dim.unwrap_or(1);
        if dim > MAX_DIM {
            let name = "num_kv_heads × head_dim";
            return Err(ConfigError::Number { model: id(), name, value: dim, max: MAX_DIM });
        }
        Ok(())
    }
}

/// How a rule finds its source model's name in a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Matching {
    /// The name is the key's field: `_` follows it, and no letter, digit, `-` or `.` stands before
    /// it. `Qwen3-4B` is in `Qwen3-4B_7f3a_0_k` and `Qwen/Qwen3-4B_7f3a_0_k`, and not in
    /// `Qwen3-4B-Base_7f3a_0_k`.
    #[default]
    Field,
    /// The name is anywhere in the key, as for Mooncake: the rules of a model apply to others
    /// whose names begin alike.
    Substring,
}

/// Objects of one model are converted for another one.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Rule {
    /// The source model's id.
    pub source_model: String,
    /// The target model's id.
    pub target_model: String,
    /// The source model's name in keys.
    pub source_model_name: String,
    /// The name that stands instead in keys of converted objects.
    pub target_model_name: String,
    /// Where the weights are fetched. Used before `projector_file`.
    #[serde(default)]
    pub projector_url: Option<String>,
    /// The file of the weights, on each client's host.
    #[serde(default)]
    pub projector_file: Option<String>,
    /// The SHA-256 of the weights as 64 hexadecimal digits.
    #[serde(default)]
    pub projector_sha256: Option<String>,
    /// Where the name is found.
    #[serde(default, rename = "match")]
    pub matching: Matching,
    /// The type of the source's elements; bf16 unless given.
    #[serde(default = "bf16")]
    pub source_dtype: Dtype,
    /// The type of the converted elements; bf16 unless given.
    #[serde(default = "bf16")]
    pub target_dtype: Dtype,
    /// The order of the source's rows.
    #[serde(default)]
    pub source_layout: Layout,
    /// The order of the converted rows.
    #[serde(default)]
    pub target_layout: Layout,
    /// How results lose bits.
    #[serde(default, rename = "round")]
    pub rounding: Rounding,
    #[serde(flatten)]
    others: Others,
}

fn bf16() -> Dtype {
    Dtype::Bf16
}

impl Rule {
    /// Where the name is in a key, and how well it matches: fields before substrings, and long
    /// names before short ones.
    fn find(&self, key: &str) -> Option<(usize, Rank)> {
        let name = &*self.source_model_name;
        let is_field = |at: usize| {
            let before = key[..at].chars().next_back();
            let part_of_a_name = |it: char| it.is_alphanumeric() || it == '-' || it == '.';
            key[at + name.len()..].starts_with('_') && !before.is_some_and(part_of_a_name)
        };
        let field = key.match_indices(name).map(|(at, _)| at).find(|&at| is_field(at));
        let found = match (field, self.matching) {
            (None, Matching::Substring) => key.find(name),
            _ => field,
        };
        found.map(|at| (at, (field.is_some(), name.len())))
    }

    fn check(&self, number: usize) -> Result<(), ConfigError> {
        let missing = |what| ConfigError::Missing { place: format!("rule {number}"), what };
        if self.source_model_name.is_empty() {
            return Err(missing("source_model_name"));
        }
        if self.target_model_name.is_empty() {
            return Err(missing("target_model_name"));
        }
        let given = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        if !given(&self.projector_url) && !given(&self.projector_file) {
            return Err(missing("projector_url or projector_file"));
        }
        if let Some(sum) = &self.projector_sha256
            && (sum.len() != 64 || !sum.bytes().all(|byte| byte.is_ascii_hexdigit()))
        {
            return Err(ConfigError::Checksum { number, value: sum.chars().take(80).collect() });
        }
        Ok(())
    }
}

/// Whether a name is a field of the key, and its length.
type Rank = (bool, usize);

/// A rule that applies to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyMatch {
    /// The index of the rule.
    pub rule: usize,
    /// Whether the object has keys or values.
    pub part: Part,
    /// The key of the converted object.
    pub target_key: String,
}

impl C2cConfig {
    /// Reads a configuration and checks that it is whole: no rule names a model that is not there,
    /// none is there twice, and none converts what another one made from its own results.
    ///
    /// # Errors
    /// [`ConfigError`], which names the entry.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        if text.len() > MAX_CONFIG_BYTES {
            return Err(ConfigError::TooLong { len: text.len() });
        }
        let config: Self = serde_json::from_str(text)?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), ConfigError> {
        let (models, rules) = (self.models.len(), self.rules.len());
        for (what, count) in [("models", models), ("rules", rules)] {
            if count > MAX_ENTRIES {
                return Err(ConfigError::TooMany { what, count });
            }
        }
        if self.buffer_size > MAX_BUFFER_SIZE {
            return Err(ConfigError::BufferSize { bytes: self.buffer_size });
        }
        let mut ids = BTreeSet::new();
        for model in &self.models {
            model.check()?;
            if !ids.insert(&*model.model_id) {
                return Err(ConfigError::ModelTwice { model: model.model_id.clone() });
            }
        }
        let mut pairs = BTreeSet::new();
        for (number, rule) in (1..).zip(&self.rules) {
            for model in [&rule.source_model, &rule.target_model] {
                if !ids.contains(&**model) {
                    let known = ids.iter().copied().collect::<Vec<_>>().join(", ");
                    return Err(ConfigError::UnknownModel { number, model: model.clone(), known });
                }
            }
            rule.check(number)?;
            let pair = (&*rule.source_model_name, &*rule.target_model_name);
            if !pairs.insert(pair) {
                let (source, target) = (pair.0.to_owned(), pair.1.to_owned());
                return Err(ConfigError::RuleTwice { source_model: source, target_model: target });
            }
        }
        self.check_cycles()
    }

    /// # Errors
    /// [`ConfigError::Cycle`] when objects of a model would be made from objects of that model.
    fn check_cycles(&self) -> Result<(), ConfigError> {
        let mut targets: HashMap<&str, Vec<&str>> = HashMap::new();
        for rule in &self.rules {
            targets.entry(&rule.source_model_name).or_default().push(&rule.target_model_name);
        }
        let mut done = BTreeSet::new();
        for rule in &self.rules {
            // Depth first, without recursion: the names on the path, each with its next target.
            let mut path = vec![(&*rule.source_model_name, 0)];
            while let Some((name, next)) = path.last_mut() {
                let following = targets.get(name).and_then(|all| all.get(*next)).copied();
                *next += 1;
                match following {
                    Some(target) => {
                        if let Some(from) = path.iter().position(|(name, _)| *name == target) {
                            let mut names: Vec<_> =
                                path[from..].iter().map(|(name, _)| (*name).to_owned()).collect();
                            names.push(target.to_owned());
                            return Err(ConfigError::Cycle { path: names.join(" → ") });
                        }
                        if !done.contains(target) {
                            path.push((target, 0));
                        }
                    }
                    None => {
                        done.insert(*name);
                        path.pop();
                    }
                }
            }
        }
        Ok(())
    }

    /// The model that a rule names.
    #[must_use]
    pub fn model(&self, id: &str) -> Option<&Model> {
        self.models.iter().find(|model| model.model_id == id)
    }

    /// Names of fields that have no meaning here, such as misspelt ones.
    #[must_use]
    pub fn unknown_fields(&self) -> Vec<String> {
        let mut names: Vec<_> = self.others.keys().cloned().collect();
        for model in &self.models {
            let id = &model.model_id;
            names.extend(model.others.keys().map(|name| format!("{name} of model {id:?}")));
        }
        for (number, rule) in (1..).zip(&self.rules) {
            names.extend(rule.others.keys().map(|name| format!("{name} of rule {number}")));
        }
        names
    }

    /// Returns the rules that apply to a key, one for each target: those of the source model whose
    /// name matches best. Empty for a key that does not end in `_k` or `_v`, and for one with `::`,
    /// which Mooncake's engines use for keys of other kinds.
    #[must_use]
    pub fn matching(&self, key: &str) -> Vec<KeyMatch> {
        let part = match key.as_bytes() {
            [.., b'_', b'k'] => Part::Key,
            [.., b'_', b'v'] => Part::Value,
            _ => return Vec::new(),
        };
        let mut best: Vec<KeyMatch> = Vec::new();
        let mut best_rank = (false, 0);
        for (number, rule) in self.rules.iter().enumerate() {
            let Some((at, rank)) = rule.find(key) else { continue };
            if rank < best_rank {
                continue;
            }
            if rank > best_rank {
                best.clear();
                best_rank = rank;
            }
            let (before, after) = (&key[..at], &key[at + rule.source_model_name.len()..]);
            let target_key = format!("{before}{}{after}", rule.target_model_name);
            best.push(KeyMatch { rule: number, part, target_key });
        }
        if !best.is_empty() && key.contains("::") {
            best.clear();
        }
        best
    }
}

/// A configuration cannot be used.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum ConfigError {
    /// The text is too long.
    #[error("the configuration has {len} bytes, and at most {MAX_CONFIG_BYTES} are possible")]
    TooLong { len: usize },
    /// The text is not JSON, or a field has another type.
    #[error("the configuration is no JSON of models and rules, as docs/c2c.md describes it")]
    Json(#[from] serde_json::Error),
    /// The configuration has too many entries.
    #[error("the configuration has {count} {what}, and at most {MAX_ENTRIES} are possible")]
    TooMany {
        /// Models or rules.
        what: &'static str,
        count: usize,
    },
    /// The buffers are too large.
    #[error("buffer_size is {bytes} bytes, and at most {MAX_BUFFER_SIZE} are possible")]
    BufferSize { bytes: u64 },
    /// A field is missing or empty.
    #[error("{place} has no {what}; add it")]
    Missing { place: String, what: &'static str },
    /// The shape of a model is not given.
    #[error("model {model:?} has no {name}; add it, or the hf_model to look it up with")]
    NoShape { model: String, name: &'static str },
    /// A number is out of range.
    #[error("{name} of model {model:?} is {value}, and 1 to {max} are possible")]
    Number { model: String, name: &'static str, value: usize, max: usize },
    /// Two models have the same id.
    #[error("the model {model:?} is there twice; give each model_id once")]
    ModelTwice { model: String },
    /// A rule names a model that is not there.
    #[error("rule {number} names the model {model:?}, which is not among models ({known})")]
    UnknownModel {
        /// The rule, counted from 1.
        number: usize,
        model: String,
        /// The ids of the models.
        known: String,
    },
    /// A checksum is malformed.
    #[error("projector_sha256 of rule {number} is {value:?}; give 64 hexadecimal digits")]
    Checksum {
        /// The rule, counted from 1.
        number: usize,
        value: String,
    },
    /// Two rules have the same names.
    #[error("two rules convert {source_model:?} to {target_model:?}; leave one out")]
    RuleTwice {
        /// The source model's name.
        source_model: String,
        /// The target model's name.
        target_model: String,
    },
    /// A model would get objects that were made from its own.
    #[error(
        "the rules form a cycle: {path}; a model's objects would be made from its own, so leave one \
         of these rules out"
    )]
    Cycle {
        /// The names along it.
        path: String,
    },
}
