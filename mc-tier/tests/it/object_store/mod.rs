//! Objects in object stores: memory, a directory, and the S3 of a SeaweedFS.

mod common;
mod damage;
mod faults;
mod local;
mod s3;
pub(crate) mod server;
