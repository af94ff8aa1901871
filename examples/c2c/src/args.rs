//! The command line.

use std::path::PathBuf;

use clap::ValueEnum;
use mc_c2c::fetch::{Fetcher, Sha256Sum};
use mc_c2c::{CheckpointOptions, Dtype, Layout, Part, Rounding, Variant};

/// Converts, shows and judges the weights that convert one model's KV cache for another.
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "mc-c2c", version)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum Verb {
    /// Make a file of weights from a checkpoint of C2C or from another file.
    Convert(Convert),
    /// Show what weights are for, and what they take.
    Inspect(Inspect),
    /// Compare converted sample objects with those of the target model, layer by layer.
    Quality(Quality),
    /// Fetch a file of weights into the cache, as clients do for a rule's projector_url.
    Fetch(Fetch),
    /// Check the rules of mc-master's --c2c_config_file, and the weights that they name.
    Check(Check),
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Fetch {
    /// Where the file is.
    #[arg(value_name = "URL")]
    pub(crate) url: String,
    /// SHA-256 of the file: 64 hexadecimal digits.
    #[arg(long = "sha256", value_name = "SUM")]
    pub(crate) sha256: Option<Sha256Sum>,
    #[command(flatten)]
    pub(crate) network: Network,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Check {
    /// The rules, as JSON.
    #[arg(value_name = "FILE")]
    pub(crate) config: PathBuf,
    #[command(flatten)]
    pub(crate) network: Network,
}

/// How files are fetched.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Network {
    /// Cache directory [default: ~/.cache/mooncake/c2c, as clients have it].
    #[arg(long = "cache_dir", value_name = "DIR")]
    pub(crate) cache_dir: Option<PathBuf>,
    /// Use the cache alone.
    #[arg(long = "offline")]
    pub(crate) offline: bool,
}

impl Network {
    /// With the settings of the environment (HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE).
    pub(crate) fn fetcher(&self) -> Fetcher {
        let fetcher = Fetcher::from_env();
        let fetcher = if self.offline { fetcher.offline(true) } else { fetcher };
        match &self.cache_dir {
            Some(directory) => fetcher.cache(directory),
            None => fetcher,
        }
    }
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Convert {
    /// Directory of a C2C checkpoint: projector_config.json, projector_0.pt, ….
    #[arg(long = "checkpoint", value_name = "DIR", required_unless_present = "input")]
    pub(crate) checkpoint: Option<PathBuf>,
    /// File of weights: *.safetensors or *.bin.
    #[arg(long = "input", value_name = "FILE", conflicts_with = "checkpoint")]
    pub(crate) input: Option<PathBuf>,
    /// File to write: *.safetensors, or *.bin for Mooncake's converter.
    #[arg(long = "output", value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Replace the output if it exists.
    #[arg(long = "force")]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) models: Models,
}

/// Properties that files may leave open.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Models {
    /// The projector to make of a checkpoint [default: full].
    #[arg(long = "variant", value_name = "VARIANT", help_heading = "Models")]
    pub(crate) variant: Option<VariantArg>,
    /// Name of the source model.
    #[arg(long = "source_model", value_name = "NAME", help_heading = "Models")]
    pub(crate) source_model: Option<String>,
    /// Name of the target model.
    #[arg(long = "target_model", value_name = "NAME", help_heading = "Models")]
    pub(crate) target_model: Option<String>,
    /// Layers of the source model, where the files do not say.
    #[arg(long = "source_layers", value_name = "N", help_heading = "Models")]
    pub(crate) source_layers: Option<usize>,
    /// Layers of the target model, where the files do not say.
    #[arg(long = "target_layers", value_name = "N", help_heading = "Models")]
    pub(crate) target_layers: Option<usize>,
    /// KV heads of the source model, where the files do not say.
    #[arg(long = "source_kv_heads", value_name = "N", help_heading = "Models")]
    pub(crate) source_kv_heads: Option<usize>,
    /// KV heads of the target model, where the files do not say.
    #[arg(long = "target_kv_heads", value_name = "N", help_heading = "Models")]
    pub(crate) target_kv_heads: Option<usize>,
}

impl Models {
    pub(crate) fn options(&self) -> CheckpointOptions {
        CheckpointOptions {
            source_model: self.source_model.clone(),
            target_model: self.target_model.clone(),
            source_layers: self.source_layers,
            target_layers: self.target_layers,
            source_kv_heads: self.source_kv_heads,
            target_kv_heads: self.target_kv_heads,
        }
    }
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Inspect {
    /// File of weights or directory of a checkpoint.
    #[arg(value_name = "FILE|DIR")]
    pub(crate) weights: PathBuf,
    #[command(flatten)]
    pub(crate) models: Models,
    /// One JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Quality {
    /// File of weights or directory of a checkpoint.
    #[arg(value_name = "FILE|DIR")]
    pub(crate) weights: PathBuf,
    /// Whether the objects are keys or values.
    #[arg(long = "part", value_name = "PART")]
    pub(crate) part: PartArg,
    /// Object of the source model; may be given several times.
    #[arg(long = "source", value_name = "OBJ", required = true, action = clap::ArgAction::Append)]
    pub(crate) sources: Vec<PathBuf>,
    /// Object of the target model for the same tokens, one for each source.
    #[arg(long = "target", value_name = "OBJ", required = true, action = clap::ArgAction::Append)]
    pub(crate) targets: Vec<PathBuf>,
    /// Object that the result should be, one for each source [default: the target's].
    #[arg(long = "expected", value_name = "OBJ", action = clap::ArgAction::Append)]
    pub(crate) expected: Vec<PathBuf>,
    /// Type of the elements.
    #[arg(long = "dtype", value_name = "DTYPE", default_value = "bf16")]
    pub(crate) dtype: DtypeArg,
    /// Order of the rows of an object.
    #[arg(long = "layout", value_name = "LAYOUT", default_value = "page_first")]
    pub(crate) layout: LayoutArg,
    /// How results lose bits.
    #[arg(long = "rounding", value_name = "ROUNDING", default_value = "nearest")]
    pub(crate) rounding: RoundingArg,
    #[command(flatten)]
    pub(crate) models: Models,
    /// One JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum VariantArg {
    Full,
    Simplified,
}

impl From<VariantArg> for Variant {
    fn from(variant: VariantArg) -> Self {
        match variant {
            VariantArg::Full => Self::Full,
            VariantArg::Simplified => Self::Simplified,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum PartArg {
    Key,
    Value,
}

impl From<PartArg> for Part {
    fn from(part: PartArg) -> Self {
        match part {
            PartArg::Key => Self::Key,
            PartArg::Value => Self::Value,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum DtypeArg {
    Bf16,
    Fp16,
    Fp32,
}

impl From<DtypeArg> for Dtype {
    fn from(dtype: DtypeArg) -> Self {
        match dtype {
            DtypeArg::Bf16 => Self::Bf16,
            DtypeArg::Fp16 => Self::F16,
            DtypeArg::Fp32 => Self::F32,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum LayoutArg {
    #[value(name = "page_first", alias = "page-first")]
    PageFirst,
    #[value(name = "layer_first", alias = "layer-first")]
    LayerFirst,
}

impl From<LayoutArg> for Layout {
    fn from(layout: LayoutArg) -> Self {
        match layout {
            LayoutArg::PageFirst => Self::PageFirst,
            LayoutArg::LayerFirst => Self::LayerFirst,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum RoundingArg {
    Nearest,
    Truncate,
}

impl From<RoundingArg> for Rounding {
    fn from(rounding: RoundingArg) -> Self {
        match rounding {
            RoundingArg::Nearest => Self::Nearest,
            RoundingArg::Truncate => Self::Truncate,
        }
    }
}
