//! Where clients serve their segments.

use mc_types::ClientId;

use super::read::{Answer, Status, problem};
use crate::error::MalformedReply;
use crate::request::MAX_BATCH;
use crate::wire::Fields;

/// `BatchQueryIpResponse` to a question about `asked` clients.
pub(crate) fn read_hosts(message: &[u8], asked: usize) -> Answer<Vec<(ClientId, Vec<Box<str>>)>> {
    let (mut fields, mut status) = (Fields::new(message), Status::default());
    let (mut clients, mut hosts) = (Vec::new(), 0);
    while let Some(field) = fields.next()? {
        match field.number {
            2 if clients.len() == asked => {
                return Err(problem("client_ip_map", "has too many clients"));
            }
            2 => clients.push(read_entry(field.bytes()?, &mut hosts)?),
            _ => status.read(field)?,
        }
    }
    status.or(|| Ok(clients))
}

/// One entry of the map; `hosts` counts those of all entries.
fn read_entry(
    message: &[u8],
    hosts: &mut usize,
) -> Result<(ClientId, Vec<Box<str>>), MalformedReply> {
    let (mut fields, mut id, mut list) = (Fields::new(message), "", &b""[..]);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => id = field.text()?,
            2 => list = field.bytes()?,
            _ => {}
        }
    }
    let client = client_id(id).ok_or(problem("client_ip_map", "has a key that is no id"))?;
    let (mut fields, mut own) = (Fields::new(list), Vec::new());
    while let Some(field) = fields.next()? {
        if field.number == 1 {
            if *hosts == MAX_BATCH {
                return Err(problem("ip_addresses", "has too many addresses"));
            }
            *hosts += 1;
            own.push(field.text()?.into());
        }
    }
    Ok((client, own))
}

/// The id that 32 lower-case hexadecimal digits say.
fn client_id(text: &str) -> Option<ClientId> {
    let is_digits = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let bits = u128::from_str_radix(text, 16).ok().filter(|_| is_digits && text.len() == 32)?;
    Some(ClientId::from_u128(bits))
}
