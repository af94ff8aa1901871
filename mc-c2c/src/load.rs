//! Converters made of rules.

use std::path::PathBuf;

use thiserror::Error;

use crate::convert::Converter;
use crate::error::{ConvertError, WeightsError};
use crate::rules::{C2cConfig, Model, Rule};
use crate::shape::ModelShape;
use crate::weights::read_weights;

/// Reads what rules need.
#[derive(Clone, Debug, Default)]
pub struct Loader {}

impl Loader {
    /// Makes the converter of a rule. Blocks while it reads the weights.
    ///
    /// # Errors
    /// [`LoadError`]: the shape of a model or the weights cannot be had, or do not fit each other.
    pub fn load(&self, config: &C2cConfig, rule: &Rule) -> Result<Converter, LoadError> {
        let source = self.shape(config, &rule.source_model)?;
        let target = self.shape(config, &rule.target_model)?;
        let path = PathBuf::from(rule.projector_file.clone().unwrap_or_default());
        let read = read_weights(&path);
        let (projector, _) = read.map_err(|source| LoadError::Weights { path, source })?;
        let (source, target) = (
            source.format(rule.source_dtype, rule.source_layout),
            target.format(rule.target_dtype, rule.target_layout),
        );
        Ok(Converter::new(projector, source, target)?.rounding(rule.rounding))
    }

    fn shape(&self, config: &C2cConfig, id: &str) -> Result<ModelShape, LoadError> {
        let unknown = || LoadError::Shape { model: id.to_owned() };
        config.model(id).and_then(Model::shape).ok_or_else(unknown)
    }
}

/// A rule's converter cannot be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The shape of a model is not known.
    #[error(
        "the shape of the model {model:?} is not given; give num_layers, num_kv_heads and head_dim"
    )]
    Shape {
        /// Its id.
        model: String,
    },
    /// The weights cannot be used.
    #[error("the weights in {} cannot be used", path.display())]
    Weights {
        /// Their file.
        path: PathBuf,
        #[source]
        /// The cause.
        source: WeightsError,
    },
    /// The weights are for models of other shapes.
    #[error("the weights do not fit the models of the rule")]
    Fit(#[from] ConvertError),
}
