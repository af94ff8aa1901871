//! The calls over gRPC as clients of other makers see them, against a real master.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
mod grpc;
mod grpc_hostile;
mod grpc_python;
