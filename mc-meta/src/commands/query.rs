//! Questions of administrators. None of them grants a lease or changes an object.

pub(crate) mod admin;
pub(crate) mod explain;
pub(crate) mod report;
pub(crate) mod walk;
