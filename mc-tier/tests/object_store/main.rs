//! Objects in object stores: memory, a directory, and the S3 of a SeaweedFS.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
mod damage;
mod faults;
mod local;
mod s3;
mod server;
