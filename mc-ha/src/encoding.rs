//! Records as bytes, in batches.
//!
//! A journal is a sequence of batches, and so are a snapshot and the stream to a standby. All
//! integers are little-endian; a *varint* is a LEB128 of 64 bits at most; checksums are CRC-32C.
//!
//! | bytes | what |
//! |---|---|
//! | 0–3 | `MCJB` |
//! | 4 | version of the format: 1 |
//! | 5 | kind: 0 effects, 1 page of a snapshot, 2 end of a snapshot |
//! | 6–7 | 0 |
//! | 8–15 | epoch |
//! | 16–23 | first effect; in a snapshot the effect it begins with |
//! | 24–31 | last effect |
//! | 32–39 | when the batch was made: milliseconds since 1970 |
//! | 40–47 | base of the generations |
//! | 48–51 | the shard that all objects of a snapshot's page are in, or 2³²−1 |
//! | 52–55 | the number of shards then |
//! | 56–59 | number of ids *i* |
//! | 60–63 | number of records *n* |
//! | 64–67 | bytes of the tables |
//! | 68–71 | bytes of the records |
//! | 72–75 | checksum of bytes 0–71 and the tables |
//! | tables | *i* ids of 16 bytes each, then *n* varints: the length of each record |
//! | records | for each its checksum (4 bytes) and its fields |
//!
//! So a damaged byte costs one record, or, in the header or the tables, one batch.
//!
//! A record begins with the byte of its kind. *id* is a varint: the place in the table. *text* is a
//! varint, its length, and UTF-8. *generation* is a varint: the difference to the base, zigzag.
//! *places* is a varint, their number, and for each an id (the segment), a varint (the offset) and,
//! except for an object's replicas, which are as long as the object, a varint (the length).
//!
//! | kind | fields |
//! |---|---|
//! | 1 generations | varint: the next one; or 0 and a part of the list of leased objects: varint objects in the parts before, byte 1 in the last part or byte 0, varint number, and for each a generation |
//! | 2 segment | id, id of the client, byte of the status, byte of the medium, varint base, varint size, text name, varint number of endpoints, each a text, 16 bytes remote key, byte 0 or byte 1 and 16 bytes ticket key; while it is being unmounted a varint, its grace in milliseconds |
//! | 3 segment gone | id |
//! | 4 object | see below |
//! | 5 removed | text key, generation |
//! | 6 space kept | varint milliseconds, places |
//! | 7 space freed | places |
//! | 8 quota | text tenant, byte 0 or byte 1 and varint bytes; nothing more, or byte 1 where puts beyond it are refused or byte 0; nothing more, or a byte (1 disks, 2 files) and for each of these a varint, the quota below memory |
//! | 9 completion | varint: how many records before this one is the object that it completes; varint number of checksums, 0 or that of the slices, and 4 bytes each; varint number of prefixes and 4 bytes each |
//!
//! An object is: byte of flags (1 complete, 2 soft pin, 4 hard pin, 8 has a file, 16 in a group, 32
//! has a parent, 64 has prefixes, 128 has reserved space), text key, generation, id of the owner,
//! varint number of slices, for each a varint (twice the length, plus 1 with a checksum) and 4 bytes
//! (the checksum, if it has one), places of the replicas, varint milliseconds idle; then, as the
//! flags say, the byte of the file's status, text group, 8 bytes parent, varint number of prefixes
//! and 4 bytes each, places of reserved space; and, if it is on clients' local disks, a varint, their
//! number, and the id of each. What follows belongs to a later version and is passed over.
//!
//! The status of a segment is the one that it has while its client is there. Where it is 6, which older
//! versions wrote while the client was away, the record before it has the last word. What follows its
//! fields is passed over, too.
//!
//! A completion is the end of a put whose beginning is in the same batch: an object that is not
//! complete, without checksums. It stands for that object with the flag 1 and these checksums and
//! prefixes, and a reader needs the earlier record no more. When either is damaged, the object is lost
//! or unfinished, and no other.
//!
//! A reader refuses a version that it does not know, and counts a record of an unknown kind as
//! damaged.

mod batch;
mod builder;
mod decode;
mod encode;
mod fields;
mod stream;
mod table;
mod varint;

#[cfg(feature = "sled")]
pub(crate) use batch::checksum;
pub use batch::{
    Batch, BatchError, BatchKind, DamagedRecord, HEADER_LEN, MAX_BATCH_LEN, RecordVisitor,
    batch_len,
};
pub use builder::{BatchBuilder, PageOf};
pub use stream::BatchReader;
