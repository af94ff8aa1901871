//! The record beside the file of a segment: under which identity and keys the master knows the
//! segment, for the next process that has the file.
//!
//! It has the keys that open the segment. So only its user may read it, and nothing of it is logged.
//! Whether it is right is the master's to say, which compares every field with what it knows.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mc_ticket::TicketKey;
use mc_types::{ByteSize, ClientId, Endpoint, MediaType, RemoteKey, SegmentId};

/// The first line, without the format's number.
const WORDS: &str = "mc-store segment record ";
const FORMAT: &str = "1";

/// Largest record, in bytes: four endpoints and a name take a quarter of it.
const MAX_LEN: u64 = 16 << 10;

/// The permissions of a record.
const MODE: u32 = 0o600;

/// The numbers by which a system tells a file from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let metadata = path.metadata()?;
        Ok(Self { device: metadata.dev(), inode: metadata.ino() })
    }
}

/// A segment as the master knows it, and the file that its bytes are in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SegmentRecord {
    /// The name of the system's run that the bytes are of.
    pub(super) boot: Box<str>,
    pub(super) client: ClientId,
    pub(super) id: SegmentId,
    pub(super) name: Box<str>,
    pub(super) size: u64,
    pub(super) medium: MediaType,
    /// The endpoint as peers are told, with its further ways.
    pub(super) endpoint: Box<str>,
    pub(super) remote_key: RemoteKey,
    /// `None` when peers show no tickets.
    pub(super) ticket_key: Option<TicketKey>,
    pub(super) file: FileIdentity,
}

/// The segment of this process, as far as a record tells of it without identity and keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct Present<'a> {
    pub(super) boot: &'a str,
    pub(super) name: &'a str,
    pub(super) size: u64,
    pub(super) medium: MediaType,
    pub(super) endpoint: &'a Endpoint,
    pub(super) tickets: bool,
    pub(super) file: FileIdentity,
}

/// Why a segment is not the one of a record, or why there is no record.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotKept {
    #[error("there is no record of an earlier process")]
    NoRecord,
    #[error("its record cannot be read: {0}")]
    Unreadable(io::Error),
    #[error(
        "its record is not a file of this process's user with mode 600, so others may know or have written it"
    )]
    NotPrivate,
    #[error("its record has another format than this program's")]
    Format,
    #[error("its record is damaged")]
    Malformed,
    #[error("this host has been started again since, so the bytes may be gone")]
    Boot,
    #[error("its size was {was} and is {is}")]
    Size { was: ByteSize, is: ByteSize },
    #[error("its name was {was:?} and is {is:?}")]
    Name { was: Box<str>, is: Box<str> },
    #[error("its medium was {was} and is {is}")]
    Medium { was: MediaType, is: MediaType },
    #[error("peers were told {was} and are told {is}")]
    Endpoint { was: Box<str>, is: Box<str> },
    #[error("peers had to show tickets or not, and that has changed")]
    Tickets,
    #[error("the file is another one")]
    File,
    #[error("the transport that peers come by opens memory under new keys only")]
    NewKeysOnly,
}

/// The endpoint as peers are told, with its further ways, in one line.
pub(super) fn endpoint_text(endpoint: &Endpoint) -> Box<str> {
    let all = std::iter::once(endpoint).chain(endpoint.others());
    all.map(Endpoint::as_str).collect::<Vec<_>>().join(" ").into()
}

impl SegmentRecord {
    /// Checks that the segment of now is the one of the record, as far as this process can know.
    pub(super) fn check(&self, now: &Present<'_>) -> Result<(), NotKept> {
        if *self.boot != *now.boot {
            return Err(NotKept::Boot);
        }
        if self.size != now.size {
            let (was, is) = (ByteSize::bytes(self.size), ByteSize::bytes(now.size));
            return Err(NotKept::Size { was, is });
        }
        // Before the name, which has the address if none was given.
        let is = endpoint_text(now.endpoint);
        if self.endpoint != is {
            return Err(NotKept::Endpoint { was: self.endpoint.clone(), is });
        }
        if *self.name != *now.name {
            return Err(NotKept::Name { was: self.name.clone(), is: now.name.into() });
        }
        if self.medium != now.medium {
            return Err(NotKept::Medium { was: self.medium, is: now.medium });
        }
        if self.ticket_key.is_some() != now.tickets {
            return Err(NotKept::Tickets);
        }
        if self.file != now.file { Err(NotKept::File) } else { Ok(()) }
    }

    fn encode(&self) -> String {
        let mut text = format!("{WORDS}{FORMAT}\n");
        let mut line = |key: &str, value: &str| _ = writeln!(text, "{key} {value}");
        line("boot", &self.boot);
        line("client", &self.client.to_string());
        line("segment", &self.id.to_string());
        line("name", &hex(self.name.as_bytes()));
        line("size", &self.size.to_string());
        line("medium", self.medium.as_str());
        line("endpoint", &self.endpoint);
        line("remote_key", &hex(&self.remote_key.to_bytes()));
        let ticket_key = self.ticket_key.as_ref().map(|key| hex(&key.to_bytes()));
        line("ticket_key", ticket_key.as_deref().unwrap_or("none"));
        line("device", &self.file.device.to_string());
        line("inode", &self.file.inode.to_string());
        text
    }

    fn parse(bytes: &[u8]) -> Result<Self, NotKept> {
        let text = std::str::from_utf8(bytes).map_err(|_| NotKept::Malformed)?;
        let (first, rest) = text.split_once('\n').ok_or(NotKept::Malformed)?;
        match first.strip_prefix(WORDS) {
            Some(FORMAT) => {}
            Some(_) => return Err(NotKept::Format),
            None => return Err(NotKept::Malformed),
        }
        let record = Self::parse_lines(&mut rest.lines()).ok_or(NotKept::Malformed)?;
        // There is one way to write each record, and nothing may follow it.
        if record.encode() == text { Ok(record) } else { Err(NotKept::Malformed) }
    }

    fn parse_lines<'a>(lines: &mut impl Iterator<Item = &'a str>) -> Option<Self> {
        let mut field = |key: &str| lines.next()?.strip_prefix(key)?.strip_prefix(' ');
        Some(Self {
            boot: field("boot")?.into(),
            client: field("client")?.parse().ok()?,
            id: field("segment")?.parse().ok()?,
            name: String::from_utf8(from_hex(field("name")?)?).ok()?.into(),
            size: field("size")?.parse().ok()?,
            medium: field("medium")?.parse().ok()?,
            endpoint: field("endpoint")?.into(),
            remote_key: RemoteKey::from_bytes(from_hex(field("remote_key")?)?.try_into().ok()?),
            ticket_key: match field("ticket_key")? {
                "none" => None,
                key => Some(TicketKey::from_bytes(from_hex(key)?.try_into().ok()?)),
            },
            file: FileIdentity {
                device: field("device")?.parse().ok()?,
                inode: field("inode")?.parse().ok()?,
            },
        })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        _ = write!(text, "{byte:02x}");
        text
    })
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pairs = text.as_bytes().chunks(2).map(|pair| match *pair {
        [high, low] => u8::try_from((digit(high)? << 4) | digit(low)?).ok(),
        _ => None,
    });
    pairs.collect()
}

/// The file of a segment that is kept, as this process found it.
#[derive(Clone, Debug)]
pub(super) struct KeptFile {
    pub(super) path: Arc<Path>,
    pub(super) record: RecordPath,
    /// The name of the system's run.
    pub(super) boot: Arc<str>,
    pub(super) identity: FileIdentity,
    /// Held while the record is changed.
    pub(super) turn: Arc<tokio::sync::Mutex<()>>,
}

/// Where the record of a segment is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RecordPath(PathBuf);

impl RecordPath {
    /// The one beside this file of a segment.
    pub(super) fn beside(file: &Path) -> Self {
        Self(with_ending(file, ".life"))
    }

    pub(super) fn as_path(&self) -> &Path {
        &self.0
    }

    /// Reads the record. Blocks, as all here.
    pub(super) fn read(&self) -> Result<SegmentRecord, NotKept> {
        let mut options = OpenOptions::new();
        // Whatever else is at the place, opening it must not wait, and no link leads elsewhere.
        options.read(true).custom_flags(NO_LINK_NO_WAIT);
        let file = match options.open(&self.0) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(NotKept::NoRecord),
            Err(error) => return Err(NotKept::Unreadable(error)),
        };
        let metadata = file.metadata().map_err(NotKept::Unreadable)?;
        let is_private = metadata.is_file()
            && metadata.mode() & 0o777 == MODE
            && own_user().is_none_or(|user| user == metadata.uid());
        if !is_private {
            return Err(NotKept::NotPrivate);
        }
        let mut bytes = Vec::new();
        file.take(MAX_LEN + 1).read_to_end(&mut bytes).map_err(NotKept::Unreadable)?;
        if bytes.len() as u64 > MAX_LEN {
            return Err(NotKept::Malformed);
        }
        SegmentRecord::parse(&bytes)
    }

    /// Writes the record: all of it is there in the end, or nothing, also when the process is killed.
    pub(super) fn write(&self, record: &SegmentRecord) -> io::Result<()> {
        let text = record.encode();
        if text.len() as u64 > MAX_LEN {
            return Err(io::Error::other("the record is longer than one may be"));
        }
        let new = self.unfinished();
        // One that a killed process left.
        gone(fs::remove_file(&new))?;
        let write = || {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(&new)?;
            file.set_permissions(fs::Permissions::from_mode(MODE))?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, &self.0)
        };
        // A part of one takes room, which may be what is missing.
        write().inspect_err(|_| _ = fs::remove_file(&new))?;
        self.sync_directory()
    }

    /// Removes the record, for good: it does not come back with the host's next start.
    pub(super) fn remove(&self) -> io::Result<()> {
        gone(fs::remove_file(&self.0))?;
        // One that a killed process left.
        gone(fs::remove_file(self.unfinished()))?;
        self.sync_directory()
    }

    /// Removes what a process left here that kept the segment of this file, whatever its format is; nothing of others.
    pub(super) fn remove_stale(&self) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(NO_LINK_NO_WAIT);
        let Ok(file) = options.open(&self.0) else { return Ok(()) };
        let mut begin = Vec::new();
        file.take(WORDS.len() as u64).read_to_end(&mut begin)?;
        if begin == WORDS.as_bytes() { self.remove() } else { Ok(()) }
    }

    /// The file that becomes the record when it is whole.
    fn unfinished(&self) -> PathBuf {
        with_ending(&self.0, ".new")
    }

    fn sync_directory(&self) -> io::Result<()> {
        File::open(directory_of(&self.0))?.sync_all()
    }
}

/// The directory that a file is in.
pub(super) fn directory_of(file: &Path) -> &Path {
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

#[cfg(target_os = "linux")]
const NO_LINK_NO_WAIT: i32 =
    rustix::fs::OFlags::NOFOLLOW.union(rustix::fs::OFlags::NONBLOCK).bits() as i32;
// No other system has memory of a file.
#[cfg(not(target_os = "linux"))]
const NO_LINK_NO_WAIT: i32 = 0;

/// The user that this process acts as; `None` where the system does not say.
#[cfg(target_os = "linux")]
fn own_user() -> Option<u32> {
    Some(rustix::process::geteuid().as_raw())
}

#[cfg(not(target_os = "linux"))]
fn own_user() -> Option<u32> {
    None
}

/// The path with `ending` after its last name.
fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut whole = path.as_os_str().to_owned();
    whole.push(ending);
    whole.into()
}

/// A file that is to go may have gone.
fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record() -> SegmentRecord {
        SegmentRecord {
            boot: "c0ffee00-1111-2222-3333-444455556666".into(),
            client: ClientId::from_u128(1),
            id: SegmentId::from_u128(2),
            name: "rack 7/\n\u{e9}".into(),
            size: 4 << 30,
            medium: MediaType::Dram,
            endpoint: "tcp://10.0.0.1:7 tcp://name:7".into(),
            remote_key: RemoteKey::from_bytes([3; 16]),
            ticket_key: Some(TicketKey::from_bytes([0xfe; 16])),
            file: FileIdentity { device: 5, inode: u64::MAX },
        }
    }

    fn endpoint() -> Endpoint {
        let others = ["tcp://name:7".parse().unwrap()];
        "tcp://10.0.0.1:7".parse::<Endpoint>().unwrap().with_others(others)
    }

    fn present(endpoint: &Endpoint) -> Present<'_> {
        Present {
            boot: "c0ffee00-1111-2222-3333-444455556666",
            name: "rack 7/\n\u{e9}",
            size: 4 << 30,
            medium: MediaType::Dram,
            endpoint,
            tickets: true,
            file: FileIdentity { device: 5, inode: u64::MAX },
        }
    }

    fn place() -> (tempfile::TempDir, RecordPath) {
        let directory = tempfile::tempdir().unwrap();
        let path = RecordPath::beside(&directory.path().join("segment"));
        (directory, path)
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let (directory, path) = place();
        assert!(matches!(path.read(), Err(NotKept::NoRecord)));
        for record in [record(), SegmentRecord { ticket_key: None, ..record() }] {
            path.write(&record).unwrap();
            assert_eq!(path.read().unwrap(), record);
        }
        assert_eq!(path.as_path(), directory.path().join("segment.life"));
        let mode = path.as_path().metadata().unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing else is left");
        path.remove().unwrap();
        path.remove().unwrap();
        assert!(matches!(path.read(), Err(NotKept::NoRecord)));
    }

    #[test]
    fn what_a_killed_process_left_half_written_is_in_no_way() {
        let (directory, path) = place();
        fs::write(directory.path().join("segment.life.new"), "mc-st").unwrap();
        path.write(&record()).unwrap();
        assert_eq!(path.read().unwrap(), record());
    }

    #[test]
    fn a_record_that_others_can_read_is_not_taken() {
        let (_directory, path) = place();
        for mode in [0o640, 0o604, 0o622, 0o666, 0o400] {
            path.write(&record()).unwrap();
            fs::set_permissions(path.as_path(), fs::Permissions::from_mode(mode)).unwrap();
            let refused = path.read().unwrap_err();
            assert!(
                matches!(refused, NotKept::NotPrivate | NotKept::Unreadable(_)),
                "{mode:o}: {refused}"
            );
            path.remove().unwrap();
        }
        let (elsewhere, other) = place();
        other.write(&record()).unwrap();
        std::os::unix::fs::symlink(elsewhere.path().join("segment.life"), path.as_path()).unwrap();
        assert!(matches!(path.read(), Err(NotKept::Unreadable(_))));
        path.remove().unwrap();
        fs::create_dir(path.as_path()).unwrap();
        assert!(matches!(path.read(), Err(NotKept::NotPrivate)));
    }

    #[test]
    fn each_change_is_named() {
        let (endpoint, elsewhere) = (endpoint(), "tcp://10.0.0.1:7".parse().unwrap());
        let now = present(&endpoint);
        record().check(&now).unwrap();
        for (now, reason) in [
            (Present { boot: "another", ..now }, "started again"),
            (Present { size: 1 << 30, ..now }, "its size was 4.00 GB and is 1.00 GB"),
            (Present { name: "b", ..now }, "and is \"b\""),
            (Present { medium: MediaType::Ssd, ..now }, "its medium was dram and is ssd"),
            (Present { endpoint: &elsewhere, ..now }, "are told tcp://10.0.0.1:7"),
            (Present { tickets: false, ..now }, "tickets"),
            (Present { file: FileIdentity { device: 6, ..now.file }, ..now }, "another one"),
            (Present { file: FileIdentity { inode: 6, ..now.file }, ..now }, "another one"),
        ] {
            let refused = record().check(&now).unwrap_err().to_string();
            assert!(refused.contains(reason), "{refused}");
        }
    }

    #[test]
    fn keys_are_shown_nowhere() {
        let shown = format!("{:?}", record());
        assert!(!shown.contains("0303") && !shown.contains("fefe"), "{shown}");
        assert!(!shown.contains("3, 3") && !shown.contains("254"), "{shown}");
    }

    #[test]
    fn records_of_other_formats_and_lengths_are_refused() {
        let good = record().encode();
        let parse = |text: &str| SegmentRecord::parse(text.as_bytes());
        assert_eq!(parse(&good).unwrap(), record());
        let newer = good.replace("record 1", "record 2");
        assert!(matches!(parse(&newer), Err(NotKept::Format)));
        for bad in [
            String::new(),
            format!("{good} "),
            format!("{good}inode 1\n"),
            good.replace("size 4", "size +4"),
            good.replace("fefe", "FEFE"),
            good.replace("medium dram", "medium ram"),
        ] {
            assert!(matches!(parse(&bad), Err(NotKept::Malformed)), "{bad:?}");
        }
        let (_directory, path) = place();
        path.write(&record()).unwrap();
        OpenOptions::new().write(true).open(path.as_path()).unwrap().set_len(1 << 30).unwrap();
        assert!(matches!(path.read(), Err(NotKept::Malformed)), "a gigabyte is not read");
        let long = SegmentRecord { name: "n".repeat(10_000).into(), ..record() };
        assert!(path.write(&long).is_err());
    }

    #[test]
    fn only_records_are_removed_as_stale() {
        let (_directory, path) = place();
        path.remove_stale().unwrap();
        fs::write(path.as_path(), "the user's own notes").unwrap();
        path.remove_stale().unwrap();
        assert!(path.as_path().exists());
        fs::write(path.as_path(), "mc-store segment record 9\n").unwrap();
        path.remove_stale().unwrap();
        assert!(!path.as_path().exists());
    }

    fn any_record() -> impl Strategy<Value = SegmentRecord> {
        let ids = (any::<u128>(), any::<u128>(), any::<[u8; 16]>(), any::<Option<[u8; 16]>>());
        let rest = ("[ -~]{0,40}", any::<String>(), "[!-~]{1,80}", any::<[u64; 3]>(), 0..3u8);
        (ids, rest).prop_map(
            |((client, id, remote, ticket), (boot, name, endpoint, numbers, at))| SegmentRecord {
                boot: boot.into(),
                client: ClientId::from_u128(client),
                id: SegmentId::from_u128(id),
                name: name.into(),
                size: numbers[0],
                medium: MediaType::from_number(at).unwrap(),
                endpoint: endpoint.into(),
                remote_key: RemoteKey::from_bytes(remote),
                ticket_key: ticket.map(TicketKey::from_bytes),
                file: FileIdentity { device: numbers[1], inode: numbers[2] },
            },
        )
    }

    proptest! {
        #[test]
        fn any_record_is_read_as_it_was_written_and_cut_off_is_none(record in any_record(), cut: usize) {
            let text = record.encode();
            prop_assert_eq!(SegmentRecord::parse(text.as_bytes()).unwrap(), record);
            let cut = cut % text.len();
            prop_assert!(SegmentRecord::parse(&text.as_bytes()[..cut]).is_err());
        }

        #[test]
        fn any_bytes_are_refused_or_are_a_record(bytes: Vec<u8>, at: usize, record in any_record()) {
            prop_assert!(SegmentRecord::parse(&bytes).is_err());
            let mut damaged = record.encode().into_bytes();
            let at = at % damaged.len();
            damaged.splice(at..at + 1, bytes);
            if let Ok(read) = SegmentRecord::parse(&damaged) {
                prop_assert_eq!(read.encode().into_bytes(), damaged);
            }
        }
    }
}
