//! Owners of client ids.
//!
//! A caller that knows another client's id could unmount its segments or fetch its tasks. (Not
//! end its puts, copies and moves: that takes the token from the answer that began them.) So
//! the id of a client that contributes memory or a disk belongs to the caller that contributed
//! it, as long as the contribution is there. Without authentication nothing is recorded.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use mc_meta::Master;
use mc_types::{ClientId, ErrorCode};
use parking_lot::RwLock;

use crate::caller::{Caller, Role};
use crate::method::Method;
use crate::refusal::Refusal;
use crate::request;
use crate::wire::Fields;

/// Most ids that are kept.
const MAX_OWNERS: usize = 65_536;

/// Fewest ids at which it is worth while to look for those that contribute no more.
const MIN_LOOK: usize = 1024;

/// The number of the field `client_id` in the method's request.
const fn client_id_field(method: Method) -> Option<u32> {
    include!(concat!(env!("OUT_DIR"), "/client_ids.rs"))
}

/// Returns whether the method makes the caller's client one that contributes.
pub(super) const fn contributes(method: Method) -> bool {
    matches!(method, Method::MountSegment | Method::ReMountSegment | Method::MountLocalDisk)
}

/// Returns whether the method may make it one that contributes no more.
pub(super) const fn withdraws(method: Method) -> bool {
    matches!(method, Method::UnmountSegment | Method::UnmountLocalDisk)
}

/// Returns the client that the request acts for; `None` when the caller is not authenticated
/// or the request names no client.
pub(super) fn client(
    method: Method,
    payload: &[u8],
    caller: &Caller,
) -> Result<Option<ClientId>, Refusal> {
    let Some(number) = client_id_field(method) else { return Ok(None) };
    if caller.is_anybody() {
        return Ok(None);
    }
    let (mut fields, mut found) = (Fields::new(payload), None);
    while let Some(field) = fields.next()? {
        if field.number == number {
            // Where a field comes twice, the last one counts, here as where it is parsed.
            found = Some(request::client(field)?);
        }
    }
    Ok(found)
}

/// The clients that contribute, and who runs each of them.
#[derive(Debug, Default)]
pub(super) struct Owners(RwLock<Registry>);

#[derive(Debug, Default)]
struct Registry {
    owners: HashMap<ClientId, Owner>,
    /// The number of ids at which to look again for those that contribute no more.
    look_at: usize,
}

#[derive(Debug)]
struct Owner {
    name: Box<str>,
    /// Calls under way that may make the client one that contributes.
    pending: u32,
    /// How many there have been, so that none is overlooked by who releases the id.
    claims: u64,
}

/// Holds an id while a call is under way that may make its client one that contributes.
pub(super) struct Claim<'a> {
    owners: &'a Owners,
    client: ClientId,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if let Some(owner) = self.owners.0.write().owners.get_mut(&self.client) {
            owner.pending -= 1;
        }
    }
}

fn stranger() -> Refusal {
    Refusal::new(
        ErrorCode::IllegalClient,
        "client_id belongs to a client of another caller; call with an id of your own",
    )
}

fn may_use(owner: &Owner, caller: &Caller) -> bool {
    caller.role() >= Role::Admin || *owner.name == *caller.name()
}

impl Owners {
    /// Fails with `IllegalClient` unless the caller owns this client, or no caller does.
    pub(super) fn check(
        &self,
        client: ClientId,
        caller: &Caller,
        master: &Master,
    ) -> Result<(), Refusal> {
        let allowed = || self.0.read().owners.get(&client).is_none_or(|own| may_use(own, caller));
        if allowed() {
            return Ok(());
        }
        // What it contributed may have gone without a word.
        self.release(client, master);
        if allowed() { Ok(()) } else { Err(stranger()) }
    }

    /// Makes the caller the owner of the id, unless it has another owner. The caller stays the
    /// owner when the claim is dropped, until the id is [released](Self::release).
    pub(super) fn claim(
        &self,
        client: ClientId,
        caller: &Caller,
        master: &Master,
    ) -> Result<Claim<'_>, Refusal> {
        self.look_for_the_gone(master);
        let mut known = self.0.write();
        let full = known.owners.len() >= MAX_OWNERS;
        match known.owners.entry(client) {
            Entry::Occupied(mut owner) => {
                let owner = owner.get_mut();
                if !may_use(owner, caller) {
                    return Err(stranger());
                }
                owner.pending += 1;
                owner.claims += 1;
            }
            Entry::Vacant(_) if full => {
                return Err(Refusal::new(
                    ErrorCode::Overloaded,
                    format!("{MAX_OWNERS} clients contribute, which is as many as can"),
                ));
            }
            Entry::Vacant(free) => {
                free.insert(Owner { name: caller.name().into(), pending: 1, claims: 1 });
            }
        }
        Ok(Claim { owners: self, client })
    }

    /// Forgets whose the id is, if its client contributes nothing.
    pub(super) fn release(&self, client: ClientId, master: &Master) {
        let claims = self.0.read().owners.get(&client).map(|owner| owner.claims);
        // The master is asked without the lock; a claim since then shows in their number.
        if let Some(claims) = claims
            && !master.contributes(client)
        {
            self.0.write().forget(client, claims);
        }
    }

    /// Forgets those whose segments have gone without a word.
    fn look_for_the_gone(&self, master: &Master) {
        let known = self.0.read();
        if known.owners.len() < known.look_at.max(MIN_LOOK) {
            return;
        }
        let seen: Vec<(ClientId, u64)> =
            known.owners.iter().map(|(client, owner)| (*client, owner.claims)).collect();
        drop(known);
        let gone = seen.into_iter().filter(|(client, _)| !master.contributes(*client));
        let gone: Vec<_> = gone.collect();
        let mut known = self.0.write();
        for (client, claims) in gone {
            known.forget(client, claims);
        }
        // Each look costs as much as there are ids, so it comes once in as many mounts.
        known.look_at = (2 * known.owners.len()).min(MAX_OWNERS);
    }
}

impl Registry {
    fn forget(&mut self, client: ClientId, claims: u64) {
        if let Entry::Occupied(owner) = self.owners.entry(client)
            && owner.get().claims == claims
            && owner.get().pending == 0
        {
            owner.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::BytesMut;
    use mc_meta::MasterConfig;
    use mc_types::Time;
    use prost::Message;

    use super::*;
    use crate::proto;
    use crate::service::{Call, MasterService, Service, SystemClock};
    use crate::wire::put_bytes;

    const CLIENT: ClientId = ClientId::from_u128(77);

    fn service() -> MasterService {
        let master = Arc::new(Master::new(MasterConfig::default(), 3).unwrap());
        MasterService::new(master, SystemClock::new())
    }

    fn node(name: &'static str) -> Caller {
        Caller::new(name, Role::Node)
    }

    fn call(
        service: &MasterService,
        caller: &Caller,
        method: Method,
        write: impl FnOnce(&mut BytesMut),
    ) -> Result<(), ErrorCode> {
        let (mut payload, mut out) = (BytesMut::new(), BytesMut::new());
        write(&mut payload);
        let call = Call::new(method, &payload, 1 << 20, caller);
        service.call(call, &mut out).map(drop).map_err(|refusal| refusal.code)
    }

    fn mount_sized(
        service: &MasterService,
        caller: &Caller,
        number: u32,
        size: u64,
    ) -> Result<(), ErrorCode> {
        let request = proto::MountSegmentRequest {
            buffer: 4096,
            size,
            segment_name: format!("segment-{number}"),
            segment_id: u128::from(number).to_be_bytes().into(),
            client_id: CLIENT.to_bytes().into(),
            endpoint: "tcp://10.0.0.1:1".into(),
            remote_key: vec![1; 16],
            ..Default::default()
        };
        call(service, caller, Method::MountSegment, |out| request.encode(out).unwrap())
    }

    fn mount(service: &MasterService, caller: &Caller, number: u32) -> Result<(), ErrorCode> {
        mount_sized(service, caller, number, 1 << 20)
    }

    fn unmount(service: &MasterService, caller: &Caller, number: u32) -> Result<(), ErrorCode> {
        call(service, caller, Method::UnmountSegment, |out| {
            put_bytes(out, 2, &u128::from(number).to_be_bytes());
            put_bytes(out, 3, &CLIENT.to_bytes());
        })
    }

    fn ping(service: &MasterService, caller: &Caller) -> Result<(), ErrorCode> {
        call(service, caller, Method::Ping, |out| request::write_ping(out, CLIENT))
    }

    #[test]
    fn a_local_disk_makes_the_id_its_nodes() {
        let mut config = MasterConfig::default();
        config.local_disk = Some(mc_meta::LocalDiskConfig::default());
        let master = Arc::new(Master::new(config, 3).unwrap());
        let service = MasterService::new(master, SystemClock::new());
        let (owner, other) = (node("owner"), node("other"));
        let mount = |caller: &Caller| {
            call(&service, caller, Method::MountLocalDisk, |out| {
                request::write_ping(out, CLIENT);
                put_bytes(out, 2, b"tcp://10.0.0.1:1");
                put_bytes(out, 5, &[6; 16]);
            })
        };
        let unmount = |caller: &Caller| {
            call(&service, caller, Method::UnmountLocalDisk, |out| request::write_ping(out, CLIENT))
        };
        mount(&owner).unwrap();
        assert_eq!(mount(&other), Err(ErrorCode::IllegalClient));
        assert_eq!(unmount(&other), Err(ErrorCode::IllegalClient));
        assert_eq!(ping(&service, &other), Err(ErrorCode::IllegalClient));
        unmount(&owner).unwrap();
        mount(&other).unwrap();
    }

    #[test]
    fn every_request_with_a_client_id_is_looked_at() {
        assert_eq!(client_id_field(Method::PutStart), Some(5));
        assert_eq!(client_id_field(Method::Ping), Some(1));
        assert_eq!(client_id_field(Method::ExistKey), None);
        let service = service();
        let (owner, other) = (node("owner"), node("other"));
        mount(&service, &owner, 1).unwrap();
        let admin = Caller::new("admin", Role::Admin);
        for &method in Method::ALL {
            let Some(number) = client_id_field(method) else { continue };
            let as_client = |caller| {
                call(&service, caller, method, |out| put_bytes(out, number, &CLIENT.to_bytes()))
            };
            let refused = Err(ErrorCode::IllegalClient);
            assert_eq!(as_client(&other), refused, "{method}");
            for allowed in [&owner, &admin, &Caller::ANYBODY] {
                assert_ne!(as_client(allowed), refused, "{method} {}", allowed.name());
            }
            // The last of several ids counts.
            let hidden = call(&service, &other, method, |out| {
                put_bytes(out, number, &[1; 16]);
                put_bytes(out, number, &CLIENT.to_bytes());
            });
            assert_eq!(hidden, refused, "{method}");
            let odd = call(&service, &other, method, |out| put_bytes(out, number, &[1; 15]));
            assert_eq!(odd, Err(ErrorCode::InvalidParams), "{method}");
        }
    }

    #[test]
    fn an_id_is_its_owners_until_the_last_segment_goes() {
        let service = service();
        let (owner, other) = (node("owner"), node("other"));
        assert_eq!(ping(&service, &other), Ok(()));
        mount(&service, &owner, 1).unwrap();
        mount(&service, &owner, 2).unwrap();
        assert_eq!(mount(&service, &other, 3), Err(ErrorCode::IllegalClient));
        assert_eq!(unmount(&service, &other, 1), Err(ErrorCode::IllegalClient));
        unmount(&service, &owner, 1).unwrap();
        assert_eq!(ping(&service, &other), Err(ErrorCode::IllegalClient));
        unmount(&service, &owner, 2).unwrap();
        assert_eq!(ping(&service, &other), Ok(()));
        mount(&service, &other, 3).unwrap();
        assert_eq!(ping(&service, &owner), Err(ErrorCode::IllegalClient));
        // The name counts, so that a renewed credential finds its segments.
        assert_eq!(ping(&service, &node("other")), Ok(()));
    }

    #[test]
    fn a_mount_that_is_refused_makes_nobody_an_owner() {
        let service = service();
        let (owner, other) = (node("owner"), node("other"));
        let refused = mount_sized(&service, &owner, 1, 0);
        assert_eq!(refused, Err(ErrorCode::InvalidParams));
        mount(&service, &other, 1).unwrap();
        // One that is refused later does not take the id from who has it.
        let refused = mount_sized(&service, &other, 1, 0);
        assert_eq!(refused, Err(ErrorCode::InvalidParams));
        assert_eq!(ping(&service, &owner), Err(ErrorCode::IllegalClient));
    }

    #[test]
    fn what_anybody_mounts_is_anybodys() {
        let service = service();
        mount(&service, &Caller::ANYBODY, 1).unwrap();
        let of_a_tenant = Caller::ANYBODY.of_tenant("team-a".parse().unwrap());
        mount(&service, &of_a_tenant, 2).unwrap();
        unmount(&service, &of_a_tenant, 2).unwrap();
        assert!(service.owners.0.read().owners.is_empty());
        assert_eq!(ping(&service, &node("other")), Ok(()));
        // An administrator's segments are not.
        unmount(&service, &Caller::ANYBODY, 1).unwrap();
        mount(&service, &Caller::new("admin", Role::Admin), 1).unwrap();
        assert_eq!(ping(&service, &node("other")), Err(ErrorCode::IllegalClient));
    }

    #[test]
    fn those_that_go_without_a_word_are_forgotten() {
        let service = service();
        let other = node("other");
        mount(&service, &node("owner"), 1).unwrap();
        // A node that does not come back is forgotten.
        service.master().tick(Time::from_millis(u64::MAX / 2));
        service.master().tick(Time::from_millis(u64::MAX / 2 + 3_600_000));
        assert!(!service.master().contributes(CLIENT));
        assert_eq!(ping(&service, &other), Ok(()));
        mount(&service, &other, 2).unwrap();
        assert_eq!(ping(&service, &node("owner")), Err(ErrorCode::IllegalClient));
    }

    #[test]
    fn ids_are_bounded_by_those_that_contribute() {
        let service = service();
        let owner = node("owner");
        let master = service.master();
        for number in 0..3 * MIN_LOOK {
            let client = ClientId::from_u128(1000 + number as u128);
            // Claimed, and never mounted.
            drop(service.owners.claim(client, &owner, master).unwrap());
            assert!(service.owners.0.read().owners.len() <= MIN_LOOK);
        }
        mount(&service, &owner, 1).unwrap();
        let claim = service.owners.claim(CLIENT, &owner, master).unwrap();
        unmount(&service, &owner, 1).unwrap();
        // A mount is under way.
        assert_eq!(ping(&service, &node("other")), Err(ErrorCode::IllegalClient));
        drop(claim);
        service.owners.release(CLIENT, master);
        assert_eq!(ping(&service, &node("other")), Ok(()));
    }
}
