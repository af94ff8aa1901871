//! The small files: the term, and the secrets.

use std::fs;
use std::io;
use std::path::Path;

use mc_types::Epoch;

use super::files::{At, replace};
use crate::encoding::checksum;
use crate::identity::Identity;
use crate::journal::JournalError;

pub(super) const TERM: &str = "term";
pub(super) const IDENTITY: &str = "identity";

/// Longest of these files, in bytes.
const MAX_LEN: u64 = 4096;

fn read(path: &Path) -> Result<Option<String>, JournalError> {
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).at("read", path),
    };
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, MAX_LEN), &mut bytes).at("read", path)?;
    String::from_utf8(bytes).map(Some).map_err(|_| damaged(path, "it is not text"))
}

fn damaged(path: &Path, reason: &str) -> JournalError {
    let without = if path.ends_with(TERM) {
        "the term then follows from the journal"
    } else {
        "new secrets are drawn then, and puts that are under way cannot be ended"
    };
    let reason = format!("{reason}; restore it, or remove it: {without}");
    JournalError::Damaged { path: path.into(), reason }
}

/// The words of a file, the last of which is the checksum of those before.
fn read_words<const N: usize>(path: &Path) -> Result<Option<[String; N]>, JournalError> {
    let Some(text) = read(path)? else { return Ok(None) };
    let (text, expected) = text.trim_end().rsplit_once(' ').unwrap_or_default();
    if expected != checksum_of(text) {
        return Err(damaged(path, "its checksum is wrong"));
    }
    let words: Vec<_> = text.split(' ').map(str::to_owned).collect();
    let words = words.try_into().map_err(|_| damaged(path, "it has another number of words"))?;
    Ok(Some(words))
}

fn write_words(path: &Path, text: &str) -> Result<(), JournalError> {
    replace(path, format!("{text} {}\n", checksum_of(text)).as_bytes())
}

fn checksum_of(text: &str) -> String {
    format!("{:08x}", checksum(&[text.as_bytes()]))
}

/// The current term; 0 when none has begun.
pub(super) fn read_term(directory: &Path) -> Result<Epoch, JournalError> {
    let path = directory.join(TERM);
    let Some([number]) = read_words(&path)? else { return Ok(Epoch::new(0)) };
    number.parse().map(Epoch::new).map_err(|_| damaged(&path, "it should hold a number"))
}

pub(super) fn write_term(directory: &Path, epoch: Epoch) -> Result<(), JournalError> {
    write_words(&directory.join(TERM), &epoch.as_u64().to_string())
}

pub(super) fn read_identity(directory: &Path) -> Result<Option<Identity>, JournalError> {
    let path = directory.join(IDENTITY);
    let Some([seed, secret]) = read_words(&path)? else { return Ok(None) };
    let seed = u64::from_str_radix(&seed, 16);
    match (seed, u128::from_str_radix(&secret, 16)) {
        (Ok(seed), Ok(secret)) => Ok(Some(Identity { seed, secret: secret.to_be_bytes() })),
        _ => Err(damaged(&path, "it should hold two hexadecimal numbers")),
    }
}

pub(super) fn write_identity(directory: &Path, identity: &Identity) -> Result<(), JournalError> {
    let Identity { seed, secret } = identity;
    let text = format!("{seed:x} {:032x}", u128::from_be_bytes(*secret));
    write_words(&directory.join(IDENTITY), &text)
}
