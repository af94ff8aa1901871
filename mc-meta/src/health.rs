//! What readers and nodes report of replicas and segments that do not do what they should.
//!
//! [`damage`]: replicas whose bytes are not those that were put. [`suspicion`]: segments that
//! clients could not reach. Reporters have [`credits`], which false reports use up, so that one bad
//! reader cannot empty the cache.

pub(crate) mod credits;
pub(crate) mod damage;
pub(crate) mod suspicion;
