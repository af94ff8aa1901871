//! The tables of a shard that hold what each object costs: the [`index`] from the hash of a key to a
//! slot, the texts of the [`keys`], the clients that put them ([`owners`]), and the [`slab`] that slots are
//! places of. [`open_puts`]: what is unfinished, oldest first.

pub(crate) mod index;
pub(crate) mod keys;
pub(crate) mod open_puts;
pub(crate) mod owners;
pub(crate) mod slab;
