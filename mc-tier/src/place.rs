//! Where an object is in a directory: a name that follows from its id.

use core::fmt::Write as _;

use mc_types::Generation;
use sha2::{Digest as _, Sha256};

use crate::object::ObjectId;
use crate::tier::ScanCursor;

/// Longest name of a file on the usual file systems.
const MAX_NAME_LEN: usize = 255;

/// Number of folders that the objects of a directory are spread over.
pub(crate) const FOLDERS: u16 = 256;

/// The name of a folder.
pub(crate) fn folder(number: u16) -> String {
    format!("{number:02x}")
}

/// The path of an object from the tier's directory: `FOLDER/o,TENANT,KEY,GENERATION`, or
/// `FOLDER/h,HASH,GENERATION` where the first name is too long.
///
/// Letters, digits, `_`, `-` and `.` stand for themselves, every other byte is `%XX`. So no two
/// objects have the same first name, and none leaves the folder. `HASH` is the SHA-256 of the
/// length of the tenant's name as one byte, the name and the key; `FOLDER` is its first byte. Readers
/// compare the id in the file with the one that they look for.
pub(crate) fn place(id: &ObjectId) -> String {
    place_within(id, MAX_NAME_LEN)
}

/// The [`place`] of an object whose name may have `max_name_len` bytes.
pub(crate) fn place_within(id: &ObjectId, max_name_len: usize) -> String {
    let (tenant, key) = (id.tenant(), id.key().as_str());
    let mut hash = Sha256::new();
    hash.update([tenant.len() as u8]);
    hash.update(tenant);
    hash.update(key);
    let hash = hash.finalize();
    let mut place = folder(hash[0].into());
    place.push_str("/o,");
    escape(tenant, &mut place);
    place.push(',');
    escape(key, &mut place);
    let folder_len = 3;
    let generation = format_args!(",{:016x}", id.generation().as_u64()).to_string();
    if place.len() - folder_len + generation.len() > max_name_len {
        place.truncate(folder_len);
        place.push_str("h,");
        for byte in hash {
            write!(place, "{byte:02x}").expect("a string takes everything");
        }
    }
    place.push_str(&generation);
    place
}

/// The path of the pack of a run from the tier's directory: `FOLDER/p,RUN`, where `FOLDER` is the run's last byte.
pub(crate) fn pack_place(run: u64) -> String {
    format!("{}/p,{run:011x}", folder((run & 0xff) as u16))
}

/// The run whose pack is at this place; `None` when it is another place.
pub(crate) fn run_of_pack(place: &str) -> Option<u64> {
    let (_, name) = place.split_once('/')?;
    let run = u64::from_str_radix(name.strip_prefix("p,")?, 16).ok()?;
    (pack_place(run) == place).then_some(run)
}

/// A place in a scan.
#[derive(Debug, Default)]
pub(crate) struct Cursor {
    /// The last place that was listed.
    pub(crate) place: String,
    /// If that is a pack with more objects, the place in the run from which on they are.
    pub(crate) within: Option<u32>,
}

/// A character that no place has.
const WITHIN: char = ';';

impl Cursor {
    pub(crate) fn new(after: Option<&ScanCursor>) -> Self {
        let Some(after) = after else { return Self::default() };
        match after.as_str().split_once(WITHIN) {
            Some((place, within)) => Self { place: place.to_owned(), within: within.parse().ok() },
            None => Self { place: after.as_str().to_owned(), within: None },
        }
    }
}

impl From<Cursor> for ScanCursor {
    fn from(Cursor { place, within }: Cursor) -> Self {
        match within {
            Some(within) => Self::new(format!("{place}{WITHIN}{within}")),
            None => Self::new(place),
        }
    }
}

/// The generation in the [`place`] of an object, or the first that could be in a pack; zero where there is none.
pub(crate) fn generation_of(place: &str) -> u64 {
    if let Some(run) = run_of_pack(place) {
        return Generation::in_run(run, 0).as_u64();
    }
    let generation = place.rsplit(',').next();
    generation.and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or_default()
}

/// Returns whether a file of this name is an object's or a pack.
pub(crate) fn is_object(name: &str) -> bool {
    ["o,", "h,", "p,"].iter().any(|begin| name.starts_with(begin))
}

fn escape(text: &str, to: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"_-.".contains(&byte) {
            to.push(char::from(byte));
        } else {
            write!(to, "%{byte:02X}").expect("a string takes everything");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use mc_types::ObjectKey;
    use proptest::prelude::*;

    use super::*;

    fn id(tenant: &str, key: &str, generation: u64) -> ObjectId {
        let key = ObjectKey::new(key).unwrap();
        ObjectId::new(tenant, key, Generation::new(generation)).unwrap()
    }

    #[test]
    fn names_can_be_read() {
        let place = place(&id("team", "layer0/block 7", 255));
        assert_eq!(place, "f4/o,team,layer0%2Fblock%207,00000000000000ff");
    }

    #[test]
    fn long_names_are_hashes() {
        let longest = "k".repeat(MAX_NAME_LEN - "o,,,0123456789abcdef".len());
        assert_eq!(place(&id("", &longest, 1)).len(), 3 + MAX_NAME_LEN);
        let hashed = place(&id("", &(longest + "k"), 1));
        assert_eq!(hashed.len(), 3 + "h,".len() + 64 + ",0123456789abcdef".len());
        assert_eq!(hashed[..2], hashed[5..7]);
    }

    proptest! {
        #[test]
        fn no_two_objects_share_a_name_and_none_leaves_its_folder(
            ids in prop::collection::vec(("[a,%/.\0é]{0,3}", "[a,%/.\0é]{1,3}|[%a]{200,300}", 0u64..3), 2..50)
        ) {
            let mut places = BTreeMap::new();
            for (tenant, key, generation) in ids {
                let id = id(&tenant, &key, generation);
                let place = place(&id);
                let (folder, name) = place.split_once('/').unwrap();
                prop_assert!(folder.len() == 2 && name.len() <= MAX_NAME_LEN && is_object(name));
                prop_assert!(!name.contains(['/', '\0']));
                prop_assert_eq!(generation_of(&place), generation);
                let other = places.insert(place, id.clone());
                prop_assert!(other.is_none_or(|other| other == id));
            }
        }
    }
}
