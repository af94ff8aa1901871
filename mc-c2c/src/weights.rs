//! Files of weights.
//!
//! [`bin`]: Mooncake's `projector.bin`. [`container`]: safetensors that describe themselves.

pub(crate) mod bin;
pub(crate) mod container;
