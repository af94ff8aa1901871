//! The keys of a cluster and how their values are written.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mc_types::{Epoch, Sequence};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::super::error::ElectionError;
use super::super::member::{
    InSync, Leader, MAX_MEMBERS, Member, MemberError, MemberId, MemberStatus, Progress, Standing,
};
use crate::etcd::MAX_LEASE;
use crate::etcd::messages::RangeRequest;
use crate::identity::HistoryId;
use crate::position::Position;

/// Most keys of a cluster that are read.
pub(super) const MAX_KEYS: usize = 4 * MAX_MEMBERS;

/// Longest value that is read, in bytes.
const MAX_VALUE_LEN: usize = 64 << 10;

/// The names of a cluster's keys.
#[derive(Debug)]
pub(super) struct Keys {
    prefix: String,
    pub(super) leader: String,
    pub(super) in_sync: String,
    pub(super) progress: String,
    members: String,
}

impl Keys {
    /// Keys that begin with this, which ends with a slash.
    pub(super) fn new(prefix: String) -> Self {
        let key = |name: &str| format!("{prefix}{name}");
        Self {
            leader: key("leader"),
            in_sync: key("in-sync"),
            progress: key("progress"),
            members: key("members/"),
            prefix,
        }
    }

    pub(super) fn member(&self, id: &MemberId) -> String {
        format!("{}{id}", self.members)
    }

    /// The id that a member's key names.
    pub(super) fn member_of<'a>(&self, key: &'a str) -> Option<&'a str> {
        key.strip_prefix(&*self.members)
    }

    /// All keys: from the prefix to the same with its slash replaced by the character after it.
    pub(super) fn all(&self) -> RangeRequest {
        let end = format!("{}0", self.prefix.trim_end_matches('/'));
        RangeRequest {
            key: Bytes::copy_from_slice(self.prefix.as_bytes()),
            range_end: end.into(),
            limit: MAX_KEYS as i64,
            ..RangeRequest::default()
        }
    }
}

/// The value of the key `leader`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// A term, which lasts as long as the value is written again within this time.
    Term { leader: Leader, ttl: Duration },
    /// The last leader has resigned.
    Vacant { epoch: Epoch, successor: Option<MemberId> },
}

impl Record {
    /// The epoch of the last term.
    pub(super) fn epoch(&self) -> Epoch {
        match self {
            Self::Term { leader, .. } => leader.epoch,
            Self::Vacant { epoch, .. } => *epoch,
        }
    }

    /// The value of a term. `nonce` differs between two processes that have the same member id by
    /// mistake, so that only one of them takes a term for its own.
    pub(super) fn encode_term(leader: &Leader, ttl: Duration, nonce: u64) -> Bytes {
        encode(&RecordValue {
            epoch: leader.epoch.as_u64(),
            id: Some(leader.member.id().to_string()),
            rpc_address: Some(leader.member.rpc_address().to_owned()),
            lease_ms: u64::try_from(ttl.as_millis()).ok(),
            nonce: Some(nonce),
            successor: None,
        })
    }

    /// The value after the term of this epoch.
    pub(super) fn encode_vacant(epoch: Epoch, successor: Option<&MemberId>) -> Bytes {
        let (epoch, successor) = (epoch.as_u64(), successor.map(ToString::to_string));
        encode(&RecordValue { epoch, successor, ..RecordValue::default() })
    }

    pub(super) fn decode(key: &str, value: &[u8]) -> Result<Self, ElectionError> {
        named(key, parse(value).and_then(Self::from_value))
    }

    fn from_value(value: RecordValue) -> Result<Self, ValueError> {
        let epoch = Epoch::new(value.epoch);
        let RecordValue { id: Some(id), rpc_address: Some(address), lease_ms: Some(lease), .. } =
            value
        else {
            let successor = value.successor.as_deref().map(MemberId::new).transpose()?;
            return Ok(Self::Vacant { epoch, successor });
        };
        // Others wait for so long.
        let ttl = Duration::from_millis(lease);
        if ttl > MAX_LEASE {
            return Err(ValueError::LeaseTooLong(ttl));
        }
        Ok(Self::Term { leader: Leader { epoch, member: Member::new(&id, &address)? }, ttl })
    }
}

#[derive(Default, Serialize, Deserialize)]
struct RecordValue {
    epoch: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rpc_address: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lease_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nonce: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    successor: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct MemberValue {
    rpc_address: String,
    epoch: u64,
    sequence: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    history: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct InSyncValue {
    epoch: u64,
    members: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    history: Option<String>,
    #[serde(default)]
    last_unclean: u64,
}

#[derive(Serialize, Deserialize)]
struct ProgressValue {
    epoch: u64,
    /// Changes, and milliseconds since the term began.
    marks: Vec<(u64, u64)>,
    #[serde(default)]
    common: u64,
}

/// The fault of a value.
#[derive(Debug, Error)]
enum ValueError {
    #[error("it has {0} bytes; at most {MAX_VALUE_LEN} are read")]
    TooLong(usize),
    #[error("it names {0} members; at most {MAX_MEMBERS} are read")]
    TooManyMembers(usize),
    #[error("it has {0} marks; at most {max} are read", max = Progress::MAX_MARKS)]
    TooManyMarks(usize),
    #[error("its history is no hexadecimal number")]
    History(#[from] std::num::ParseIntError),
    #[error("its lease of {0:?} is longer than any leader's")]
    LeaseTooLong(Duration),
    #[error(transparent)]
    Member(#[from] MemberError),
    #[error("it is not JSON of the expected form")]
    Json(#[from] serde_json::Error),
}

pub(super) fn encode_member(member: &Member, standing: Standing) -> Bytes {
    let Standing { position, history } = standing;
    encode(&MemberValue {
        rpc_address: member.rpc_address().to_owned(),
        epoch: position.epoch.as_u64(),
        sequence: position.sequence.as_u64(),
        history: history.map(|history| history.to_string()),
    })
}

pub(super) fn encode_in_sync(in_sync: &InSync) -> Bytes {
    encode(&InSyncValue {
        epoch: in_sync.epoch.as_u64(),
        members: in_sync.members.iter().map(ToString::to_string).collect(),
        history: in_sync.history.map(|history| history.to_string()),
        last_unclean: in_sync.last_unclean.as_u64(),
    })
}

pub(super) fn encode_progress(progress: &Progress) -> Bytes {
    let mark = |(sequence, time): &(Sequence, Duration)| {
        (sequence.as_u64(), u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
    };
    let marks = progress.marks.iter().map(mark).collect();
    let common = progress.common.as_u64();
    encode(&ProgressValue { epoch: progress.epoch.as_u64(), marks, common })
}

fn encode(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).expect("numbers and texts can be written").into()
}

pub(super) fn decode_member(
    key: &str,
    id: &str,
    value: &[u8],
) -> Result<MemberStatus, ElectionError> {
    let decoded = parse(value).and_then(|value: MemberValue| {
        let position = Position::new(Epoch::new(value.epoch), Sequence::new(value.sequence));
        let history = history_of(value.history)?;
        let member = Member::new(id, &value.rpc_address)?;
        Ok(MemberStatus { member, standing: Standing { position, history } })
    });
    named(key, decoded)
}

pub(super) fn decode_in_sync(key: &str, value: &[u8]) -> Result<InSync, ElectionError> {
    let decoded = parse(value).and_then(|value: InSyncValue| {
        let InSyncValue { epoch, members, history, last_unclean } = value;
        if members.len() > MAX_MEMBERS {
            return Err(ValueError::TooManyMembers(members.len()));
        }
        let members = members.iter().map(|id| MemberId::new(id)).collect::<Result<_, _>>()?;
        let (epoch, last_unclean) = (Epoch::new(epoch), Epoch::new(last_unclean));
        Ok(InSync { epoch, members, history: history_of(history)?, last_unclean })
    });
    named(key, decoded)
}

pub(super) fn decode_progress(key: &str, value: &[u8]) -> Result<Progress, ElectionError> {
    let decoded = parse(value).and_then(|ProgressValue { epoch, marks, common }| {
        if marks.len() > Progress::MAX_MARKS {
            return Err(ValueError::TooManyMarks(marks.len()));
        }
        let mark = |(sequence, millis)| (Sequence::new(sequence), Duration::from_millis(millis));
        let marks = marks.into_iter().map(mark).collect();
        Ok(Progress { epoch: Epoch::new(epoch), marks, common: Sequence::new(common) })
    });
    named(key, decoded)
}

fn history_of(text: Option<String>) -> Result<Option<HistoryId>, ValueError> {
    Ok(text.map(|text| text.parse()).transpose()?)
}

fn parse<T: DeserializeOwned>(value: &[u8]) -> Result<T, ValueError> {
    if value.len() > MAX_VALUE_LEN {
        return Err(ValueError::TooLong(value.len()));
    }
    Ok(serde_json::from_slice(value)?)
}

fn named<T>(key: &str, decoded: Result<T, ValueError>) -> Result<T, ElectionError> {
    decoded.map_err(|error| ElectionError::Malformed { key: key.into(), source: Arc::new(error) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_they_were_written() {
        let member = Member::new("a", "host:1").unwrap();
        let leader = Leader { epoch: Epoch::new(7), member: member.clone() };
        let ttl = Duration::from_secs(2);
        let term = Record::encode_term(&leader, ttl, 9);
        assert_eq!(
            *term, *br#"{"epoch":7,"id":"a","rpc_address":"host:1","lease_ms":2000,"nonce":9}"#,
            "the module documents it"
        );
        assert_eq!(Record::decode("k", &term).unwrap(), Record::Term { leader, ttl });
        let (epoch, successor) = (Epoch::new(7), Some(MemberId::new("b").unwrap()));
        let vacant = Record::encode_vacant(epoch, successor.as_ref());
        assert_eq!(*vacant, *br#"{"epoch":7,"successor":"b"}"#, "the module documents it");
        assert_eq!(Record::decode("k", &vacant).unwrap(), Record::Vacant { epoch, successor });
        let position = Position { epoch: Epoch::new(7), sequence: Sequence::new(u64::MAX) };
        for history in [None, Some(HistoryId::new(9))] {
            let standing = Standing { position, history };
            let status = decode_member("k", "a", &encode_member(&member, standing)).unwrap();
            assert_eq!(status, MemberStatus { member: member.clone(), standing });
            let members = vec![MemberId::new("a").unwrap(), MemberId::new("b").unwrap()];
            let last_unclean = Epoch::new(3);
            let in_sync = InSync { epoch: Epoch::new(7), members, history, last_unclean };
            assert_eq!(decode_in_sync("k", &encode_in_sync(&in_sync)).unwrap(), in_sync);
        }
        let marks = vec![(Sequence::new(1), ttl), (Sequence::new(u64::MAX), 2 * ttl)];
        let progress = Progress { epoch: Epoch::new(7), marks, common: Sequence::new(5) };
        assert_eq!(decode_progress("k", &encode_progress(&progress)).unwrap(), progress);
        // What the first version wrote.
        let old = decode_member("k", "a", br#"{"rpc_address":"host:1","epoch":7,"sequence":1}"#);
        assert_eq!(old.unwrap().standing, Position::new(Epoch::new(7), Sequence::new(1)).into());
        let old = decode_in_sync("k", br#"{"epoch":7,"members":["a"]}"#).unwrap();
        assert_eq!((old.history, old.last_unclean), (None, Epoch::new(0)));
    }

    #[test]
    fn what_others_wrote_is_an_error_that_names_the_key() {
        let long = vec![b'1'; MAX_VALUE_LEN + 1];
        for value in [
            &b""[..],
            b"x",
            b"{}",
            b"\xff",
            br#"{"epoch":-1}"#,
            br#"{"epoch":7,"id":"","rpc_address":"a:1","lease_ms":2000}"#,
            br#"{"epoch":7,"id":"a","rpc_address":"a:1","lease_ms":3600001}"#,
            br#"{"epoch":7,"successor":"a/b"}"#,
            &long,
        ] {
            let error = Record::decode("/mc-store/x/leader", value).unwrap_err();
            assert!(error.to_string().contains("/mc-store/x/leader"), "{error}");
        }
        let many = vec![MemberId::new("a").unwrap(); MAX_MEMBERS + 1];
        let (epoch, last_unclean) = (Epoch::new(1), Epoch::new(0));
        let many = InSync { epoch, members: many, history: None, last_unclean };
        assert!(decode_in_sync("k", &encode_in_sync(&many)).is_err());
        let mark = (Sequence::new(1), Duration::ZERO);
        let marks = vec![mark; Progress::MAX_MARKS + 1];
        let many = Progress { epoch, marks, common: Sequence::new(0) };
        assert!(decode_progress("k", &encode_progress(&many)).is_err());
        assert!(decode_in_sync("k", br#"{"epoch":7,"members":[],"history":"x"}"#).is_err());
    }
}
