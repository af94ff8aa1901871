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
    InSync, Leader, MAX_MEMBERS, Member, MemberError, MemberId, MemberStatus,
};
use crate::etcd::MAX_LEASE;
use crate::etcd::messages::RangeRequest;
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
    members: String,
}

impl Keys {
    /// Keys that begin with this, which ends with a slash.
    pub(super) fn new(prefix: String) -> Self {
        let key = |name: &str| format!("{prefix}{name}");
        Self { leader: key("leader"), in_sync: key("in-sync"), members: key("members/"), prefix }
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
}

#[derive(Serialize, Deserialize)]
struct InSyncValue {
    epoch: u64,
    members: Vec<String>,
}

/// What is wrong with a value.
#[derive(Debug, Error)]
enum ValueError {
    #[error("it has {0} bytes; at most {MAX_VALUE_LEN} are read")]
    TooLong(usize),
    #[error("it names {0} members; at most {MAX_MEMBERS} are read")]
    TooManyMembers(usize),
    #[error("its lease of {0:?} is longer than any leader's")]
    LeaseTooLong(Duration),
    #[error(transparent)]
    Member(#[from] MemberError),
    #[error("it is not JSON of the expected form")]
    Json(#[from] serde_json::Error),
}

pub(super) fn encode_member(member: &Member, position: Position) -> Bytes {
    encode(&MemberValue {
        rpc_address: member.rpc_address().to_owned(),
        epoch: position.epoch.as_u64(),
        sequence: position.sequence.as_u64(),
    })
}

pub(super) fn encode_in_sync(epoch: Epoch, members: &[MemberId]) -> Bytes {
    let members = members.iter().map(ToString::to_string).collect();
    encode(&InSyncValue { epoch: epoch.as_u64(), members })
}

fn encode(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).expect("numbers and texts can be written").into()
}

pub(super) fn decode_member(
    key: &str,
    id: &str,
    value: &[u8],
) -> Result<MemberStatus, ElectionError> {
    let decoded = parse(value).and_then(|MemberValue { rpc_address, epoch, sequence }| {
        let position = Position { epoch: Epoch::new(epoch), sequence: Sequence::new(sequence) };
        Ok(MemberStatus { member: Member::new(id, &rpc_address)?, position })
    });
    named(key, decoded)
}

pub(super) fn decode_in_sync(key: &str, value: &[u8]) -> Result<InSync, ElectionError> {
    let decoded = parse(value).and_then(|InSyncValue { epoch, members }| {
        if members.len() > MAX_MEMBERS {
            return Err(ValueError::TooManyMembers(members.len()));
        }
        let members = members.iter().map(|id| MemberId::new(id)).collect::<Result<_, _>>()?;
        Ok(InSync { epoch: Epoch::new(epoch), members })
    });
    named(key, decoded)
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
        let status = decode_member("k", "a", &encode_member(&member, position)).unwrap();
        assert_eq!(status, MemberStatus { member, position });
        let members = vec![MemberId::new("a").unwrap(), MemberId::new("b").unwrap()];
        let in_sync = decode_in_sync("k", &encode_in_sync(Epoch::new(7), &members)).unwrap();
        assert_eq!(in_sync, InSync { epoch: Epoch::new(7), members });
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
        assert!(decode_in_sync("k", &encode_in_sync(Epoch::new(1), &many)).is_err());
    }
}
