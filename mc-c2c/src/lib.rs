#![doc = include_str!("../README.md")]

mod convert;
mod dtype;
mod error;
#[cfg(feature = "fetch")]
pub mod fetch;
mod fuser;
#[cfg(feature = "fetch")]
mod load;
mod math;
mod matrix;
mod rules;
mod shape;
mod simplified;
mod size;
#[cfg(feature = "torch")]
mod torch;
mod weights;

pub use convert::{Converter, Projector};
pub use dtype::{Dtype, Rounding};
pub use error::{ConvertError, WeightsError};
pub use fuser::{Fuser, LayerMap};
#[cfg(feature = "fetch")]
pub use load::{LoadError, load_rule};
pub use matrix::multiply;
pub use rules::{C2cConfig, ConfigError, KeyMatch, MAX_CONFIG_BYTES, Matching, Model, Rule};
pub use shape::{KvFormat, Layout, ModelShape, Part};
pub use simplified::Simplified;
#[cfg(feature = "torch")]
pub use torch::{
    checkpoint::{CheckpointOptions, Variant, read_checkpoint},
    error::{CheckpointError, TorchError},
    pickle::ElementType,
    state_dict::{StateDict, Tensor},
};
pub use weights::bin::{read_projector_bin, write_projector_bin};
pub use weights::container::{Identity, read_projector, write_projector};
pub use weights::read_weights;
pub use weights::reader::{MAX_DIM, MAX_LAYERS};
