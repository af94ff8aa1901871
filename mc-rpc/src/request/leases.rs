//! The requests to renew leases.

use mc_types::{Generation, KeyRef};

use super::{Items, key, missing_key};
use crate::refusal::Refusal;
use crate::wire::Fields;

/// `RenewLeaseRequest` and `RenewLeaseItem`, which have the same fields: the key, and
/// which put of it is being read.
pub(crate) fn parse_renew(message: &[u8]) -> Result<(KeyRef<'_>, Generation), Refusal> {
    let (mut fields, mut found, mut generation) = (Fields::new(message), None, None);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => found = Some(key(field, "key")?),
            2 => generation = Some(Generation::new(field.u64()?)),
            _ => {}
        }
    }
    let missing = || Refusal::invalid("generation is missing; it says which put is being read");
    Ok((found.ok_or_else(missing_key)?, generation.ok_or_else(missing)?))
}

/// `BatchRenewLeaseRequest`.
#[derive(Debug)]
pub(crate) struct BatchRenewRequest<'a> {
    pub(crate) reads: Items<'a>,
}

impl<'a> BatchRenewRequest<'a> {
    pub(crate) fn parse(payload: &'a [u8]) -> Result<Self, Refusal> {
        Ok(Self { reads: Items::parse(payload, 1, "reads", |_| Ok(()))? })
    }

    /// Calls `each` for every read, in order, with the read or why it is none.
    pub(crate) fn for_each(&self, mut each: impl FnMut(Result<(KeyRef<'a>, Generation), Refusal>)) {
        self.reads.messages().for_each(|message| each(parse_renew(message)));
    }
}
