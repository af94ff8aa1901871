//! Converters made of rules.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::convert::Converter;
use crate::error::{ConvertError, WeightsError};
use crate::fetch::{FetchError, Fetcher, ParseSha256Error, Sha256Sum};
use crate::rules::{C2cConfig, Rule};
use crate::shape::ModelShape;
use crate::weights::read_weights;

/// Makes the converter of a rule: fetches what the rule does not have itself, and reads the
/// weights. Blocks meanwhile. `progress` is called with the bytes of the weights that have arrived,
/// and their number if it is known.
///
/// A file from a URL whose format is refused is deleted from the cache.
///
/// # Errors
/// [`LoadError`]: the shape of a model or the weights cannot be had, or do not fit each other.
pub fn load_rule(
    config: &C2cConfig,
    rule: &Rule,
    fetcher: &Fetcher,
    progress: impl FnMut(u64, Option<u64>),
) -> Result<Converter, LoadError> {
    let source = shape(config, &rule.source_model, fetcher)?;
    let target = shape(config, &rule.target_model, fetcher)?;
    let sum = rule.projector_sha256.as_deref().map(str::parse).transpose()?;
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let url = given(&rule.projector_url);
    let path = match &url {
        Some(url) => fetcher.projector(url, sum, progress)?,
        None => PathBuf::from(given(&rule.projector_file).unwrap_or_default()),
    };
    let refused = |source| LoadError::Weights { path: path.clone(), source };
    if let (None, Some(expected)) = (&url, sum) {
        let actual = sum_of(&path).map_err(refused)?;
        if actual != expected {
            return Err(LoadError::Checksum { path, expected, actual });
        }
    }
    let (projector, _) = read_weights(&path).map_err(|error| {
        if url.is_some() && !matches!(error, WeightsError::Io(_)) {
            // What a server sent by mistake is not used again.
            let _ = fs::remove_file(&path);
        }
        refused(error)
    })?;
    let source = source.format(rule.source_dtype, rule.source_layout);
    let target = target.format(rule.target_dtype, rule.target_layout);
    Ok(Converter::new(projector, source, target)?.rounding(rule.rounding))
}

fn shape(config: &C2cConfig, id: &str, fetcher: &Fetcher) -> Result<ModelShape, LoadError> {
    let unknown = || LoadError::Shape { model: id.to_owned() };
    let model = config.model(id).ok_or_else(unknown)?;
    match (model.shape(), &model.hf_model) {
        (Some(shape), _) => Ok(shape),
        (None, Some(name)) => Ok(model.shape_or(fetcher.model_shape(name)?)),
        (None, None) => Err(unknown()),
    }
}

fn sum_of(path: &Path) -> Result<Sha256Sum, WeightsError> {
    Ok(Sha256Sum::of_reader(File::open(path)?)?)
}

/// A rule's converter cannot be made.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum LoadError {
    /// The shape of a model is not known.
    #[error(
        "the shape of the model {model:?} is not given; give its hf_model, or num_layers, \
         num_kv_heads and head_dim"
    )]
    Shape { model: String },
    /// The checksum in the rule is malformed.
    #[error("projector_sha256 is malformed")]
    BadChecksum(#[from] ParseSha256Error),
    /// The weights, or the shape of a model, cannot be fetched.
    #[error("the weights, or the shape of a model, cannot be fetched")]
    Fetch(#[from] FetchError),
    /// The file of the weights is another one than the rule says.
    #[error("{} has the SHA-256 {actual}, and the rule says {expected}", path.display())]
    Checksum {
        path: PathBuf,
        /// The checksum in the rule.
        expected: Sha256Sum,
        /// The checksum of the file.
        actual: Sha256Sum,
    },
    /// The weights cannot be used.
    #[error("the weights in {} cannot be used", path.display())]
    Weights { path: PathBuf, source: WeightsError },
    /// The weights are for models of other shapes.
    #[error("the weights do not fit the models of the rule")]
    Fit(#[from] ConvertError),
}
