//! Checkpoints of C2C, as PyTorch and its trainer write them (feature `torch`).
//!
//! A `.pt` file is a zip archive of a pickle and of raw storages. A pickle is a program: the usual
//! reader calls whatever functions it names. [`StateDict`] calls none. Its own machine knows the
//! instructions that a state dict consists of, and the functions that make up tensors are names to
//! it; any other name is refused. All that a file says is checked against the file's own size before
//! memory is taken.
//!
//! [`archive`]: the zip. [`pickle`]: the machine. [`state_dict`]: tensors. [`checkpoint`]: projectors
//! from a directory.

pub(crate) mod archive;
pub(crate) mod checkpoint;
pub(crate) mod error;
pub(crate) mod pickle;
pub(crate) mod state_dict;
