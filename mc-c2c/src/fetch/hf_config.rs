//! The shape of a model's cache from its `config.json`.

use serde_json::Value;
use thiserror::Error;

use crate::shape::ModelShape;
use crate::weights::reader::{MAX_DIM, MAX_LAYERS};

/// The most bytes of a `config.json`.
pub(super) const MAX_CONFIG: usize = 1 << 20;

/// A `config.json` does not tell the shape of the model's KV cache.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum HfConfigError {
    /// The text is too long for a configuration.
    #[error("it has {len} bytes, more than {MAX_CONFIG}; this is no configuration of a model")]
    TooLong { len: usize },
    /// The text is not JSON.
    #[error("it is not JSON")]
    Json(#[source] serde_json::Error),
    /// A number is missing.
    #[error("it lacks {name}; give the model's layers, heads and head dimension yourself")]
    Missing { name: &'static str },
    /// A number is out of range.
    #[error("its {name} is {value}, and 1 to {max} are possible")]
    Range { name: &'static str, value: String, max: usize },
    /// The hidden dimension is not a whole number for each head.
    #[error("its hidden_size of {hidden} is not divisible by its {heads} attention heads")]
    Indivisible { hidden: usize, heads: usize },
    /// The model caches something else than keys and values of heads.
    #[error("the model caches latents (kv_lora_rank) in place of keys and values")]
    Latents,
}

impl ModelShape {
    /// Reads the shape from a `config.json` of Hugging Face: `num_hidden_layers`,
    /// `num_key_value_heads` (or else `num_attention_heads`) and `head_dim` (or else `hidden_size`
    /// for each attention head), in the `text_config` of a multimodal model.
    ///
    /// # Errors
    /// [`HfConfigError`] when a number is missing or out of range.
    pub fn from_hf_config(json: &[u8]) -> Result<Self, HfConfigError> {
        if json.len() > MAX_CONFIG {
            return Err(HfConfigError::TooLong { len: json.len() });
        }
        let whole: Value = serde_json::from_slice(json).map_err(HfConfigError::Json)?;
        let nested = &whole["text_config"];
        let config = if is_given(&whole["num_hidden_layers"]) { &whole } else { nested };
        if is_given(&config["kv_lora_rank"]) {
            return Err(HfConfigError::Latents);
        }
        let layers = number(config, "num_hidden_layers", MAX_LAYERS)?;
        let kv_heads = match optional(config, "num_key_value_heads", MAX_DIM)? {
            Some(heads) => heads,
            None => number(config, "num_attention_heads", MAX_DIM)?,
        };
        let head_dim = match optional(config, "head_dim", MAX_DIM)? {
            Some(dim) => dim,
            None => {
                let hidden = number(config, "hidden_size", usize::MAX)?;
                let heads = number(config, "num_attention_heads", MAX_DIM)?;
                if !hidden.is_multiple_of(heads) {
                    return Err(HfConfigError::Indivisible { hidden, heads });
                }
                hidden / heads
            }
        };
        // Of two numbers that may be large each; the product is what objects are made of.
        match kv_heads.checked_mul(head_dim) {
            Some(1..=MAX_DIM) => Ok(Self { layers, kv_heads, head_dim }),
            _ => Err(HfConfigError::Range {
                name: "KV heads × head dimension",
                value: format!("{kv_heads} × {head_dim}"),
                max: MAX_DIM,
            }),
        }
    }
}

/// Configurations write what a model does not have as null.
fn is_given(value: &Value) -> bool {
    !value.is_null()
}

fn number(config: &Value, name: &'static str, max: usize) -> Result<usize, HfConfigError> {
    optional(config, name, max)?.ok_or(HfConfigError::Missing { name })
}

fn optional(
    config: &Value,
    name: &'static str,
    max: usize,
) -> Result<Option<usize>, HfConfigError> {
    let value = &config[name];
    if !is_given(value) {
        return Ok(None);
    }
    match value.as_u64().and_then(|value| usize::try_from(value).ok()) {
        Some(value) if (1..=max).contains(&value) => Ok(Some(value)),
        _ => {
            // What is no number may be long.
            let value = value.to_string().chars().take(40).collect();
            Err(HfConfigError::Range { name, value, max })
        }
    }
}
