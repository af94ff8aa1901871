//! Our own file: safetensors with properties that say what the weights are for.
//!
//! Tensors are named as in C2C's checkpoints, and have PyTorch's orientation `[out, in]`.

use std::collections::HashMap;
use std::io::Write;

use half::{bf16, f16};
use safetensors::tensor::TensorView;
use safetensors::{Dtype as TensorType, SafeTensors};

use super::reader::{MAX_DIM, MAX_LAYERS, Reader, TensorSource};
use crate::convert::Projector;
use crate::error::WeightsError;
use crate::fuser::{Block, LayerMap};
use crate::matrix::{Linear, Matrix};
use crate::shape::Part;

const FORMAT: &str = "kv-projector";
const VERSION: &str = "1";

/// The pair of models that weights were trained for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The source model's name.
    pub source_model: String,
    /// The target model's name.
    pub target_model: String,
    /// Layers of the source model.
    pub source_layers: usize,
    /// Layers of the target model.
    pub target_layers: usize,
    /// KV heads of the source model.
    pub source_kv_heads: usize,
    /// KV heads of the target model.
    pub target_kv_heads: usize,
}

/// Reads a file that [`write_projector`] made. The bytes may be a mapped file; the weights are
/// copied.
///
/// # Errors
/// [`WeightsError`]: it is no such file, or its tensors do not fit each other or the properties.
pub fn read_projector(bytes: &[u8]) -> Result<(Projector, Identity), WeightsError> {
    let (_, metadata) = SafeTensors::read_metadata(bytes)?;
    let properties = Properties(metadata.metadata().as_ref());
    properties.require("format", FORMAT, "kv-projector")?;
    properties.require("version", VERSION, "1, the version that this program reads")?;
    let identity = Identity {
        source_model: properties.text("source_model").to_owned(),
        target_model: properties.text("target_model").to_owned(),
        source_layers: properties.number("source_layers", MAX_LAYERS)?,
        target_layers: properties.number("target_layers", MAX_LAYERS)?,
        source_kv_heads: properties.number("source_kv_heads", MAX_DIM)?,
        target_kv_heads: properties.number("target_kv_heads", MAX_DIM)?,
    };
    let reader = Reader { tensors: Container(SafeTensors::deserialize(bytes)?) };
    let projector = match properties.text("variant") {
        "simplified" => {
            properties.require("activation", "gelu_tanh_pade", "gelu_tanh_pade")?;
            properties.require("gate", "sigmoid", "sigmoid")?;
            reader.simplified(identity.target_layers)?.into()
        }
        "c2c" => {
            properties.require("activation", "gelu_erf", "gelu_erf")?;
            properties.require("gate", "hard", "hard")?;
            let map = properties.map(&identity)?;
            reader.fuser(map, identity.target_kv_heads)?.into()
        }
        other => {
            let value = other.to_owned();
            return Err(WeightsError::Metadata {
                name: "variant",
                value,
                expected: "simplified or c2c",
            });
        }
    };
    Ok((projector, identity))
}

struct Properties<'a>(Option<&'a HashMap<String, String>>);

impl Properties<'_> {
    /// Empty when it is missing.
    fn text(&self, name: &str) -> &str {
        self.0.and_then(|all| all.get(name)).map_or("", |text| text)
    }

    fn require(
        &self,
        name: &'static str,
        value: &str,
        expected: &'static str,
    ) -> Result<(), WeightsError> {
        let given = self.text(name);
        if given == value {
            return Ok(());
        }
        Err(WeightsError::Metadata { name, value: given.to_owned(), expected })
    }

    fn number(&self, name: &'static str, max: usize) -> Result<usize, WeightsError> {
        let text = self.text(name);
        match text.parse() {
            Ok(number) if (1..=max).contains(&number) => Ok(number),
            _ => Err(WeightsError::Metadata {
                name,
                value: text.to_owned(),
                expected: "a whole number from 1 on, within the limits of a model",
            }),
        }
    }

    /// The pairs `target:source:module`, separated by commas, each target once.
    fn map(&self, identity: &Identity) -> Result<Vec<LayerMap>, WeightsError> {
        let text = self.text("layer_map");
        let malformed = || WeightsError::Metadata {
            name: "layer_map",
            value: text.chars().take(80).collect(),
            expected: "target:source:module for each layer, separated by commas",
        };
        let mut map: Vec<LayerMap> = Vec::new();
        for triple in text.split(',') {
            let mut numbers = triple.split(':').map(str::parse);
            let (Some(Ok(target)), Some(Ok(source)), Some(Ok(module)), None) =
                (numbers.next(), numbers.next(), numbers.next(), numbers.next())
            else {
                return Err(malformed());
            };
            let is_known = map.iter().any(|other| other.target == target);
            if target >= identity.target_layers || source >= identity.source_layers || is_known {
                return Err(WeightsError::Map { target, source_layer: source });
            }
            if module >= MAX_LAYERS {
                return Err(malformed());
            }
            map.push(LayerMap { target, source, module });
        }
        Ok(map)
    }
}

/// The tensors of a container.
struct Container<'a>(SafeTensors<'a>);

impl TensorSource for Container<'_> {
    type Error = WeightsError;

    fn has(&self, name: &str) -> Result<bool, WeightsError> {
        Ok(self.0.tensor(name).is_ok())
    }

    fn read(&self, name: &str) -> Result<(Vec<usize>, Vec<f32>), WeightsError> {
        read_tensor(&self.0, name, name)
    }

    fn describe(&self, name: &str) -> String {
        name.to_owned()
    }
}

/// Reads a tensor of safetensors; errors call it `described`.
pub(crate) fn read_tensor(
    tensors: &SafeTensors<'_>,
    name: &str,
    described: &str,
) -> Result<(Vec<usize>, Vec<f32>), WeightsError> {
    let Ok(tensor) = tensors.tensor(name) else {
        return Err(WeightsError::Missing { tensor: described.to_owned() });
    };
    let data = tensor.data();
    let weights = match tensor.dtype() {
        TensorType::F32 => data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        TensorType::BF16 => {
            data.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect()
        }
        TensorType::F16 => {
            data.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect()
        }
        other => {
            let (tensor, dtype) = (described.to_owned(), format!("{other:?}"));
            return Err(WeightsError::TensorType { tensor, dtype });
        }
    };
    Ok((tensor.shape().to_vec(), weights))
}

/// Writes weights as fp32. Takes twice as much memory again as the weights have.
///
/// # Errors
/// Writing fails.
pub fn write_projector(
    projector: &Projector,
    identity: &Identity,
    mut writer: impl Write,
) -> Result<(), WeightsError> {
    let mut tensors = Tensors::default();
    let (variant, activation, gate) = match projector {
        Projector::Simplified(projector) => {
            for (layer, networks) in projector.layers.iter().enumerate() {
                for (part, network) in Part::ALL.iter().zip(networks) {
                    let name = |tensor: &str| format!("layers.{layer}.{part}.{tensor}");
                    tensors.linear(&name("in"), &network.input);
                    tensors.linear(&name("mlp1"), &network.hidden);
                    tensors.linear(&name("proj_out"), &network.output);
                    tensors.add(name("gate_logit"), Vec::new(), &[network.gate_logit]);
                }
            }
            ("simplified", "gelu_tanh_pade", "sigmoid")
        }
        Projector::Full(fuser) => {
            for (number, modules) in fuser.modules.iter().enumerate() {
                for (part, module) in Part::ALL.iter().zip(modules) {
                    let name = |tensor: &str| format!("layers.{number}.{part}.{tensor}");
                    tensors.linear(&name("in"), &module.input);
                    tensors.blocks(&name("mlp1"), &module.shared);
                    tensors.blocks(&name("proj_mlp2"), &module.projection);
                    tensors.linear(&name("proj_out"), &module.output);
                    tensors.blocks(&name("scalar_mlp2"), &module.scalar);
                    tensors.linear(&name("scalar_head"), &module.head);
                    tensors.add(name("gate_logit"), Vec::new(), &[module.gate_logit]);
                }
            }
            ("c2c", "gelu_erf", "hard")
        }
    };
    let mut properties: HashMap<String, String> = [
        ("format", FORMAT.to_owned()),
        ("version", VERSION.to_owned()),
        ("variant", variant.to_owned()),
        ("activation", activation.to_owned()),
        ("gate", gate.to_owned()),
        ("rope", "as_cached".to_owned()),
        ("source_model", identity.source_model.clone()),
        ("target_model", identity.target_model.clone()),
        ("source_layers", identity.source_layers.to_string()),
        ("target_layers", identity.target_layers.to_string()),
        ("source_kv_heads", identity.source_kv_heads.to_string()),
        ("target_kv_heads", identity.target_kv_heads.to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    if let Projector::Full(fuser) = projector {
        let triple = |map: &LayerMap| format!("{}:{}:{}", map.target, map.source, map.module);
        let map: Vec<_> = fuser.map.iter().map(triple).collect();
        properties.insert("layer_map".to_owned(), map.join(","));
    }
    let views = tensors.0.iter().map(|(name, shape, bytes)| {
        Ok((name, TensorView::new(TensorType::F32, shape.clone(), bytes)?))
    });
    let views = views.collect::<Result<Vec<_>, safetensors::SafeTensorError>>()?;
    writer.write_all(&safetensors::serialize(views, Some(properties))?)?;
    Ok(writer.flush()?)
}

/// Tensors to be written: names, shapes, bytes.
#[derive(Default)]
struct Tensors(Vec<(String, Vec<usize>, Vec<u8>)>);

impl Tensors {
    fn add(&mut self, name: String, shape: Vec<usize>, weights: &[f32]) {
        let bytes = weights.iter().flat_map(|weight| weight.to_le_bytes()).collect();
        self.0.push((name, shape, bytes));
    }

    fn matrix(&mut self, name: String, matrix: &Matrix) {
        let (inputs, outputs) = (matrix.inputs(), matrix.outputs());
        let transposed = Matrix::transposed(matrix.weights(), outputs);
        self.add(name, vec![outputs, inputs], transposed.weights());
    }

    fn linear(&mut self, name: &str, linear: &Linear) {
        self.matrix(format!("{name}.weight"), &linear.matrix);
        self.add(format!("{name}.bias"), vec![linear.bias.len()], &linear.bias);
    }

    fn blocks(&mut self, branch: &str, blocks: &[Block]) {
        for (number, block) in blocks.iter().enumerate() {
            let name = |tensor: &str| format!("{branch}.{number}.{tensor}.weight");
            self.add(name("norm"), vec![block.norm.len()], &block.norm);
            self.matrix(name("w1"), &block.w1);
            self.matrix(name("w2"), &block.w2);
        }
    }
}
