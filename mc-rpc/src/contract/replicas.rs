//! Where an object is: in memory, in a file, on clients' own disks.

use mc_meta::{
    DiskConfig, FoundOnDisk, LocalDiskConfig, LocalDiskSpec, MasterConfig, Slice, Slices,
};
use mc_types::{ClientId, DiskId, RemoteKey, SegmentId};
use prost::Message;

use super::{Clock, ME, MasterService, Still, call, key, me, put, put_named, service_with};
use crate::{Method, answer, proto};

const DISK_OWNER: ClientId = ClientId::from_u128(77);

/// A master with a tier of files, and with a disk of [`DISK_OWNER`].
fn with_disks() -> MasterService<Still> {
    let mut config = MasterConfig::default();
    config.disk = Some(DiskConfig::with_capacity(1 << 20));
    config.local_disk = Some(LocalDiskConfig::default());
    let service = service_with(config);
    let disk = LocalDiskSpec {
        id: DiskId::from_u128(5),
        endpoint: "tcp://10.0.0.9:7".parse().unwrap(),
        remote_key: RemoteKey::from_bytes([6; 16]),
        ticket_key: None,
    };
    service.master().mount_local_disk(Still.now(), DISK_OWNER, disk, true).unwrap();
    service
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
    let generation = handle.generation;
    assert_eq!(get(&service, "k").disk, None, "a file that is being written is not read");

    let (master, now) = (service.master(), Still.now());
    master.disk_put_end(now, ME, key("k"), handle).unwrap();
    let slices = Slices::One(Slice { len: 64, checksum: None });
    let found = FoundOnDisk { key: key("k"), generation, slices, address: 4096 };
    master.report_local_disk(now, DISK_OWNER, &[found]).remove(0).unwrap();
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
    assert_eq!(read.disk.unwrap().len, 64);
    let place = &read.local_disks[0];
    assert_eq!((place.client, read.local_disks.len()), (DISK_OWNER, 1));
    assert_eq!((place.extent.offset(), place.extent.len()), (4096, 64));
    let batch = proto::BatchGetReplicaListRequest { keys: vec!["k".into()], reads: vec![] };
    let lists: proto::BatchGetReplicaListResponse =
        call(&service, Method::BatchGetReplicaList, &batch).unwrap();
    assert_eq!((lists.segments.len(), &lists.items[0]), (0, &list));
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
        assert_eq!(read.unwrap().unwrap().disk, disk);
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
