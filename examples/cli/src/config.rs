//! The settings of a program: from flags, variables of the environment and a file.

mod effective;
mod entry;
mod file;
mod json;
mod known;
mod layers;
mod program;
mod reload;
mod toml;
mod yaml;

pub use effective::{Effective, Origin};
pub use layers::Configured;
pub use program::{ClientFlags, Program};
pub use reload::{Reloaded, Reloader};

#[cfg(test)]
mod tests;
