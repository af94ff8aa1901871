//! Errors.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::error::WeightsError;

/// A file is no state dict that can be read safely.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum TorchError {
    /// The file cannot be read.
    #[error("the file cannot be read")]
    Io(#[from] io::Error),
    /// The format before PyTorch 1.6, which is no archive.
    #[error(
        "the file has PyTorch's old format; load and save it again with PyTorch 1.6 or newer, or convert it to safetensors"
    )]
    Legacy,
    /// The file is no zip archive.
    #[error("the file is no zip archive as torch.save writes it; get it again")]
    NotAnArchive,
    /// The archive contradicts itself.
    #[error("the archive is damaged: {what}; get it again")]
    Archive { what: &'static str },
    /// An entry of the archive is compressed or encrypted, which torch.save never does.
    #[error(
        "{entry:?} is compressed or encrypted in the archive; load the file and save it again with torch.save"
    )]
    Packed { entry: String },
    /// An entry is missing in the archive.
    #[error("the archive has no {entry:?}; get the file again")]
    NoEntry { entry: String },
    /// The checksum of an entry is wrong.
    #[error("{entry:?} in the archive is not as it was saved; get the file again")]
    Checksum { entry: String },
    /// A limit of this reader is exceeded.
    #[error("the file has {what} above the limit of {limit}; a state dict of a projector has less")]
    Limit { what: &'static str, limit: u64 },
    /// The pickle has an instruction that state dicts do not have.
    #[error(
        "the pickle has the instruction {opcode:#04x} at byte {at}, which a state dict does not need; save module.state_dict() alone"
    )]
    Opcode {
        opcode: u8,
        /// Its place in the pickle.
        at: usize,
    },
    /// The pickle names a function or class that state dicts do not have. Nothing was called.
    #[error(
        "the pickle asks for {name:?}, which a state dict of tensors does not need and which may be an attack; nothing was called; save module.state_dict() alone"
    )]
    Global {
        /// Its module and name.
        name: String,
    },
    /// The pickle is malformed.
    #[error("the pickle is malformed at byte {at}: {what}; get the file again")]
    Pickle {
        what: &'static str,
        /// Its place in the pickle.
        at: usize,
    },
    /// The pickle is something else than a dictionary of tensors.
    #[error("the file holds {what} and no dictionary of tensors; save module.state_dict() alone")]
    NotAStateDict {
        /// The kind of object that the file holds.
        what: String,
    },
    /// The storages are big-endian.
    #[error("the file was saved by a big-endian machine; load and save it on a little-endian one")]
    BigEndian,
    /// A storage has another length than the pickle says.
    #[error("{entry:?} has {len} bytes, and the pickle says {expected}; get the file again")]
    StorageLen {
        /// The entry of the archive.
        entry: String,
        len: u64,
        /// The length by the pickle.
        expected: u64,
    },
    /// A tensor has elements outside of its storage, or more of them than the storage.
    #[error("the tensor {tensor:?} {what}; save it again after .contiguous()")]
    View { tensor: String, what: &'static str },
    /// There is no such tensor.
    #[error("the tensor {tensor:?} is missing")]
    NoTensor { tensor: String },
}

/// A checkpoint directory cannot become a projector.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum CheckpointError {
    /// A file cannot be read.
    #[error("cannot read {path:?}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        source: io::Error,
    },
    /// A state dict cannot be read.
    #[error("cannot read {path:?}")]
    Torch { path: PathBuf, source: TorchError },
    /// A file of JSON is malformed.
    #[error("{path:?} is not as C2C writes it")]
    Json { path: PathBuf, source: serde_json::Error },
    /// A tensor is missing or does not fit the others.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// There is no file of a module.
    #[error(
        "{dir:?} has neither projector_{index}.safetensors nor projector_{index}.pt; get it again"
    )]
    NoModule { dir: PathBuf, index: usize },
    /// The directory has no modules at all.
    #[error(
        "{dir:?} has no projector_config.json and no projector_0.pt; name the directory that has them"
    )]
    NoCheckpoint { dir: PathBuf },
    /// A module is of another class.
    #[error("{path:?} is of a {class:?}, and only a C2CProjector can be converted")]
    Class {
        /// The module's JSON file.
        path: PathBuf,
        class: String,
    },
    /// The checkpoint connects several pairs of models.
    #[error(
        "the checkpoint connects several pairs of models ({pairs}); name source and target as they are there"
    )]
    Pairs {
        /// Source and target of each.
        pairs: String,
    },
    /// The map of layers cannot be used.
    #[error("the map of layers {what}")]
    Map {
        /// The fault, and what to do.
        what: String,
    },
    /// A number that the files do not have was not given.
    #[error("the files do not say {name}; give it")]
    Unknown { name: &'static str },
    /// A number differs from that of the files.
    #[error("{name} is {given}, and the files say {found}; give the right one, or none")]
    Differs {
        name: &'static str,
        /// The value that was given, or another file's.
        given: usize,
        /// The value in the files.
        found: usize,
    },
}
