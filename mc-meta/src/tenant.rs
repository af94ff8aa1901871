//! Tenants: whose a key is, and how many bytes each may have.
//!
//! [`id`]: names of tenants and how their keys are told apart. [`quota`]: the quotas and what is
//! charged against them, on the accounts in [`ledger`]. [`below`]: the same below memory.

pub(crate) mod below;
pub(crate) mod id;
pub(crate) mod ledger;
pub(crate) mod quota;
