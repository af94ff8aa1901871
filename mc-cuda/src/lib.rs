#![doc = include_str!("../README.md")]

mod buffer;
mod context;
mod copier;
mod device;
mod driver;
mod error;
mod ipc;
mod numa;
mod order;
mod pieces;
mod pinned;
mod pointer;
mod registered;

pub use buffer::VramBuffer;
pub use copier::{Copier, CopierOptions, Pending};
pub use device::{Cuda, CudaDevice};
pub use error::{CudaCode, CudaError, DeviceUuid};
pub use ipc::{IpcHandle, IpcMemory};
pub use order::{EngineEvent, EngineStream, Order};
pub use pieces::{DevicePiece, Pieces};
pub use pointer::{Pointed, PointerKind};
pub use registered::Registered;
