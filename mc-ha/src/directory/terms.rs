//! The small files: the term, and the secrets.

use core::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;

use mc_types::Epoch;

use super::files::{At, replace};
use crate::journal::{Identity, JournalError};

/// Longest of these files, in bytes.
const MAX_LEN: u64 = 4096;

fn read(path: &Path) -> Result<Option<String>, JournalError> {
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).at("read", path),
    };
    let mut text = String::new();
    io::Read::read_to_string(&mut io::Read::take(file, MAX_LEN), &mut text).at("read", path)?;
    Ok(Some(text))
}

fn damaged(path: &Path, reason: &str) -> JournalError {
    JournalError::Damaged { path: path.into(), reason: reason.into() }
}

/// The current term; 0 when none has begun.
pub(super) fn read_term(directory: &Path) -> Result<Epoch, JournalError> {
    let path = directory.join("term");
    let Some(text) = read(&path)? else { return Ok(Epoch::new(0)) };
    let number = text.trim().parse();
    number.map(Epoch::new).map_err(|_| damaged(&path, "it should hold a number"))
}

pub(super) fn write_term(directory: &Path, epoch: Epoch) -> Result<(), JournalError> {
    replace(&directory.join("term"), format!("{}\n", epoch.as_u64()).as_bytes())
}

pub(super) fn read_identity(directory: &Path) -> Result<Option<Identity>, JournalError> {
    let path = directory.join("identity");
    let Some(text) = read(&path)? else { return Ok(None) };
    let mut words = text.split_whitespace();
    let seed = words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
    let secret = words.next().filter(|word| word.len() == 32);
    let secret = secret.and_then(|word| u128::from_str_radix(word, 16).ok());
    match (seed, secret, words.next()) {
        (Some(seed), Some(secret), None) => {
            Ok(Some(Identity { seed, secret: secret.to_be_bytes() }))
        }
        _ => Err(damaged(&path, "it should hold two hexadecimal numbers")),
    }
}

pub(super) fn write_identity(directory: &Path, identity: &Identity) -> Result<(), JournalError> {
    let Identity { seed, secret } = identity;
    let mut text = String::new();
    writeln!(text, "{seed:x} {:032x}", u128::from_be_bytes(*secret)).expect("strings take text");
    replace(&directory.join("identity"), text.as_bytes())
}
