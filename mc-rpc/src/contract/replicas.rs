//! Where an object is: in memory, in a file, on clients' local disks.

use mc_meta::{
    FoundInTier, LocalDiskConfig, LocalDiskSpec, MasterConfig, SharedTierConfig, Slice, Slices,
};
use mc_ticket::{ClockEpoch, Rights, Ticket, TicketKey};
use mc_types::{ClientId, Extent, Generation, LocalDiskId, RemoteKey, SegmentId};
use prost::Message;

use super::{Clock, ME, MasterService, Still, call, key, me, put, put_named, service_with};
use crate::{Method, answer, proto};

const DISK_OWNER: ClientId = ClientId::from_u128(77);

/// A master with a tier of files, and with a disk of [`DISK_OWNER`].
fn with_disks() -> MasterService<Still> {
    let mut config = MasterConfig::default();
    config.shared_tier = Some(SharedTierConfig::with_capacity(1 << 20));
    config.local_disk = Some(LocalDiskConfig::default());
    let service = service_with(config);
    service.master().mount_local_disk(Still.now(), DISK_OWNER, disk(None), true).unwrap();
    service
}

fn disk(ticket_key: Option<TicketKey>) -> LocalDiskSpec {
    LocalDiskSpec {
        id: LocalDiskId::from_u128(5),
        endpoint: "tcp://10.0.0.9:7".parse().unwrap(),
        remote_key: RemoteKey::from_bytes([6; 16]),
        ticket_key,
    }
}

/// Finds an object of 64 bytes on the disk.
fn find(service: &MasterService<Still>, text: &str, put: u64, address: u64) {
    let slices = Slices::One(Slice { len: 64, checksum: None });
    let generation = Generation::new(put);
    let found = FoundInTier { key: key(text), generation, slices, address };
    service.master().report_local_disk(Still.now(), DISK_OWNER, &[found]).remove(0).unwrap();
}

fn lose_memory(service: &MasterService<Still>) {
    for number in 1..=3 {
        service.master().unmount_segment(Still.now(), ME, SegmentId::from_u128(number)).unwrap();
    }
}

fn on_disk() -> proto::LocalDiskReplica {
    proto::LocalDiskReplica {
        client_id: DISK_OWNER.to_bytes().to_vec(),
        endpoint: "tcp://10.0.0.9:7".into(),
        remote_key: vec![6; 16],
        offset: 4096,
        ticket: vec![],
    }
}

fn get(service: &MasterService<Still>, text: &str) -> proto::GetReplicaListResponse {
    let get = proto::GetReplicaListRequest { key: text.into(), ranges: vec![] };
    call(service, Method::GetReplicaList, &get).unwrap()
}

#[test]
fn an_object_is_told_wherever_it_is() {
    let service = with_disks();
    let handle = put_named(&service, "k");
    assert_eq!(get(&service, "k").disk, None, "a file that is being written is not read");

    let (master, now) = (service.master(), Still.now());
    master.file_put_end(now, ME, key("k"), handle).unwrap();
    find(&service, "k", handle.generation.as_u64(), 4096);
    let complete = proto::DiskReplica {
        length: 64,
        status: proto::replica_info::ReplicaStatus::Complete.into(),
    };
    let list = get(&service, "k");
    assert_eq!((list.replica_list.len(), list.disk), (1, Some(complete)));
    assert_eq!(list.local_disks, [on_disk()]);

    lose_memory(&service);
    let list = get(&service, "k");
    assert_eq!((list.replica_list.len(), list.disk), (0, Some(complete)));
    let read = answer::read_replica_list(&list.encode_to_vec()).unwrap().unwrap();
    assert!(read.replicas.is_empty());
    assert_eq!(read.file.unwrap().len, 64);
    let place = &read.local_disks[0];
    assert_eq!((place.client, read.local_disks.len()), (DISK_OWNER, 1));
    assert_eq!((place.extent.offset(), place.extent.len()), (4096, 64));
    let batch = proto::BatchGetReplicaListRequest { keys: vec!["k".into()], reads: vec![] };
    let lists: proto::BatchGetReplicaListResponse =
        call(&service, Method::BatchGetReplicaList, &batch).unwrap();
    assert_eq!((lists.segments.len(), &lists.items[0]), (0, &list));
}

#[test]
fn a_ticket_opens_the_object_on_the_disk_and_nothing_else() {
    let service = with_disks();
    let secret = TicketKey::from_bytes([0x41; 16]);
    let (master, now) = (service.master(), Still.now());
    master.mount_local_disk(now, DISK_OWNER, disk(Some(secret)), true).unwrap();
    for (text, address) in [("k", 4096), ("next", 4160)] {
        let put = put(&service, text);
        find(&service, text, put, address);
    }
    let list = get(&service, "k");
    let ranged = proto::GetReplicaListRequest { key: "k".into(), ranges: vec![0, 1] };
    let ranged: proto::GetReplicaListResponse =
        call(&service, Method::GetReplicaList, &ranged).unwrap();
    let keys = vec!["next".into(), "k".into()];
    let batch = proto::BatchGetReplicaListRequest { keys, reads: vec![] };
    let mut lists: proto::BatchGetReplicaListResponse =
        call(&service, Method::BatchGetReplicaList, &batch).unwrap();
    let matching =
        proto::GetReplicaListByRegexRequest { key_regex: "^k$".into(), ..Default::default() };
    let page: proto::GetReplicaListByRegexResponse =
        call(&service, Method::GetReplicaListByRegex, &matching).unwrap();
    let [place] = &list.local_disks[..] else { panic!("{list:?}") };
    assert_eq!(proto::LocalDiskReplica { ticket: vec![], ..place.clone() }, on_disk());
    for disks in
        [&ranged.local_disks, &lists.items.remove(1).local_disks, &page.object_map["k"].local_disks]
    {
        assert_eq!(disks[..], list.local_disks[..], "the time stands still");
    }

    let read = answer::read_replica_list(&list.encode_to_vec()).unwrap().unwrap();
    let ticket = read.local_disks[0].ticket.unwrap();
    assert_eq!((ticket.extent, read.local_disks[0].extent), (ticket.extent, ticket.extent));
    assert_eq!((ticket.extent.offset(), ticket.extent.len()), (4096, 64));
    assert_eq!(ticket.until, now + read.lease);
    let (epoch, region) = (service.clock_epoch(), disk(None).remote_key);
    assert!(secret.verify(epoch, region, &ticket, Rights::Read));
    assert!(!secret.verify(epoch, region, &ticket, Rights::Write));
    let other = RemoteKey::from_bytes([7; 16]);
    assert!(!secret.verify(epoch, other, &ticket, Rights::Read), "of another disk");
    let later = ClockEpoch::new(epoch.as_u64() ^ 1);
    assert!(!secret.verify(later, region, &ticket, Rights::Read), "after a restart");
    let guessed = TicketKey::from_bytes([0x42; 16]);
    assert!(!guessed.verify(epoch, region, &ticket, Rights::Read));
    for (offset, len) in [(4096, 65), (4095, 64), (4097, 63), (4160, 64), (0, 1 << 20)] {
        let extent = Extent::new(offset, len).unwrap();
        let stretched = Ticket { extent, ..ticket };
        assert!(!secret.verify(epoch, region, &stretched, Rights::Read), "{extent:?}");
    }
    let until = ticket.until + core::time::Duration::from_millis(1);
    assert!(!secret.verify(epoch, region, &Ticket { until, ..ticket }, Rights::Read));

    // The key itself is told to no reader.
    let told = list.encode_to_vec();
    assert!(!told.windows(16).any(|part| part == secret.to_bytes()));
    assert_eq!(format!("{:?}", disk(Some(secret))).matches("65").count(), 0);
}

#[test]
fn a_place_on_a_disk_is_the_same_whatever_its_ticket() {
    let mut list = get_on_disk();
    let read = |list: &proto::GetReplicaListResponse| {
        answer::read_replica_list(&list.encode_to_vec()).unwrap().unwrap().local_disks.remove(0)
    };
    let bare = read(&list);
    list.local_disks[0].ticket = vec![0xff; 24];
    let sealed = read(&list);
    assert_eq!((&bare, sealed.ticket.is_some()), (&sealed, true));
    list.local_disks[0].offset += 1;
    assert_ne!(read(&list), bare);
}

/// An answer about an object that is on a disk, too.
fn get_on_disk() -> proto::GetReplicaListResponse {
    let service = with_disks();
    let put = put(&service, "k");
    find(&service, "k", put, 4096);
    get(&service, "k")
}

#[test]
fn a_grant_asks_for_a_file_where_there_is_room_for_one() {
    let service = with_disks();
    for (text, value_length, disk) in [("small", 64, true), ("large", 1 << 20, false)] {
        let start = proto::PutStartRequest {
            key: text.into(),
            value_length,
            client_id: me(),
            ..Default::default()
        };
        let grant: proto::PutStartResponse = call(&service, Method::PutStart, &start).unwrap();
        assert_eq!(grant.disk, disk, "{text}");
        let read = answer::read_grant(&grant.encode_to_vec(), value_length as u64);
        assert_eq!(read.unwrap().unwrap().file, disk);
    }
}

#[test]
fn disks_that_make_no_sense_are_malformed() {
    let service = with_disks();
    put(&service, "k");
    let list = get(&service, "k");
    let read = |list: &proto::GetReplicaListResponse| {
        answer::read_replica_list(&list.encode_to_vec()).map(Result::unwrap)
    };
    let with_disk = |length, status: proto::replica_info::ReplicaStatus| {
        let disk = Some(proto::DiskReplica { length, status: status.into() });
        proto::GetReplicaListResponse { disk, ..list.clone() }
    };
    let with_local = |local_disks| proto::GetReplicaListResponse { local_disks, ..list.clone() };
    use proto::replica_info::ReplicaStatus::{Complete, Processing};
    assert!(read(&with_disk(64, Complete)).is_ok());
    assert!(read(&with_local(vec![on_disk(); 32])).is_ok());
    for bad in [
        with_disk(63, Complete),
        with_disk(64, Processing),
        with_local(vec![on_disk(); 33]),
        with_local(vec![proto::LocalDiskReplica { client_id: vec![1; 15], ..on_disk() }]),
        with_local(vec![proto::LocalDiskReplica { endpoint: "nowhere".into(), ..on_disk() }]),
        with_local(vec![proto::LocalDiskReplica { remote_key: vec![1; 15], ..on_disk() }]),
        with_local(vec![proto::LocalDiskReplica { remote_key: vec![], ..on_disk() }]),
        with_local(vec![proto::LocalDiskReplica { ticket: vec![1; 23], ..on_disk() }]),
        with_local(vec![proto::LocalDiskReplica { offset: u64::MAX, ..on_disk() }]),
        proto::GetReplicaListResponse { replica_list: vec![], ..list.clone() },
    ] {
        assert!(read(&bad).is_err(), "{bad:?}");
    }
}
