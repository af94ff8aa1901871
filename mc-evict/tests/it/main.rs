//! Tests of the policies. What they cost in memory is in a program of its own, which counts
//! allocations.

mod adaptive;
mod conformance;
mod models;
mod workload;
