//! Requests that the owner's card refuses.

use bytes::Bytes;

use super::*;
use crate::control::RegionPath;
use crate::transfer::RemoteRegion;
use crate::verbs::{WorkError, WorkStatus};
use crate::wire::RegionKeys;

/// Has the link take `change`d keys for those of the region.
fn falsify(link: &RdmaLink, key: RemoteKey, change: impl FnOnce(&mut RegionKeys)) {
    let mut regions = link.state.control.regions.write();
    let RegionPath::Rdma(known) = regions.get(&key).cloned().unwrap() else { panic!("known") };
    let mut keys = known.keys.clone();
    change(&mut keys);
    regions.insert(key, RegionPath::Rdma(RemoteRegion::new(keys)));
}

fn assert_refused(error: &TransferError) {
    let TransferError::WorkFailed(work) = error else { panic!("{error:?}") };
    let work = work.downcast_ref::<WorkError>().expect("the device's error");
    assert_eq!(work.status, WorkStatus::RemoteAccess, "{error:?}");
}

#[tokio::test]
async fn on_device_what_the_card_refuses_fails_alone() {
    let Some(_alone) = on_device() else { return };
    let rig = Rig::new().await;
    rig.works().await;
    let lanes = rig.link.queue_pairs();
    let key = rig.region.key();
    type Change = fn(&mut RegionKeys);
    let changes: [(&str, Change, usize); 4] = [
        ("wrong key", |keys| keys.keys[0][0] ^= 0x55, 0),
        ("behind the end", |keys| keys.len += 1 << 20, LEN),
        ("across the end", |keys| keys.len += 1 << 20, LEN - 100),
        ("before the first byte", |keys| keys.base -= 1, 0),
    ];
    for (what, change, offset) in changes {
        rig.link.state.control.regions.write().clear();
        rig.works().await;
        let before = rig.memory.whole().to_vec();
        falsify(&rig.link, key, change);
        let local = Memory::allocate(5000).unwrap();
        for operation in [
            Operation::write(Bytes::from_static(&[1; 5000]), span(key, offset, 5000)),
            Operation::write(Bytes::from_static(&[1; 100]), span(key, offset, 100)),
            Operation::read(span(key, offset, 5000), local.whole()),
        ] {
            let fits = what == "across the end" && operation.remote().extent.len() == 100;
            match one(&rig.link, operation).await {
                Ok(()) => assert!(fits, "{what}"),
                Err(error) => assert_refused(&error),
            }
        }
        rig.link.state.control.regions.write().clear();
        rig.works().await;
        if what != "across the end" {
            assert!(rig.memory.whole().to_vec() == before, "{what}");
        }
    }
    eventually_lanes(&rig.link, lanes).await;
    rig.shutdown().await;
}

async fn eventually_lanes(link: &RdmaLink, lanes: usize) {
    mc_testkit::eventually(DEADLINE, "every lane is up", || link.queue_pairs() == lanes).await;
}

/// Requests that are refused share queue pairs with others, which are carried out.
#[tokio::test]
async fn on_device_many_refused_requests_take_no_other_with_them() {
    let Some(_alone) = on_device() else { return };
    let rig = Rig::new().await;
    rig.works().await;
    let lanes = rig.link.queue_pairs();
    let other_memory = Memory::allocate(LEN).unwrap();
    let other = rig.owner.register(&other_memory, Access::ReadWrite).unwrap();
    let (bad, good) = (rig.region.key(), other.key());
    one(&rig.link, Operation::write(Bytes::from_static(&[1; 9]), span(good, 0, 9))).await.unwrap();
    falsify(&rig.link, bad, |keys| keys.keys[0][0] ^= 0x55);
    let batch = (0..32).map(|index| {
        let key = if index % 2 == 0 { bad } else { good };
        let bytes = Bytes::from(vec![index as u8; 4096]);
        Operation::write(bytes, span(key, index * 4096, 4096))
    });
    let results = tokio::time::timeout(DEADLINE, rig.link.submit(batch.collect())).await.unwrap();
    for (index, result) in results.into_iter().enumerate() {
        if index % 2 == 0 {
            assert_refused(&result.unwrap_err());
        } else {
            result.unwrap();
            let written = other_memory.slice(index * 4096, 4096).unwrap().to_vec();
            assert_eq!(written, vec![index as u8; 4096]);
        }
    }
    assert!(rig.link.is_healthy());
    eventually_lanes(&rig.link, lanes).await;
    drop(other);
    rig.shutdown().await;
}

/// A region that its owner opened for reading cannot be written, whatever a peer claims.
#[tokio::test]
async fn on_device_the_card_enforces_the_access_of_a_region() {
    let Some(_alone) = on_device() else { return };
    let rig = Rig::new().await;
    let memory = Memory::allocate(LEN).unwrap();
    for (access, wanted) in [(Access::Read, Access::Write), (Access::Write, Access::Read)] {
        let region = rig.owner.register(&memory, access).unwrap();
        let local = Memory::allocate(100).unwrap();
        local.whole().copy_from(0, &[9; 100]).unwrap();
        let operation = || match wanted {
            Access::Read => Operation::read(span(region.key(), 0, 100), local.whole()),
            _ => Operation::write(local.whole(), span(region.key(), 0, 100)),
        };
        let told = one(&rig.link, operation()).await.unwrap_err();
        assert!(matches!(told, TransferError::AccessDenied { .. }), "{told:?}");
        falsify(&rig.link, region.key(), |keys| keys.access = Access::ReadWrite);
        assert_refused(&one(&rig.link, operation()).await.unwrap_err());
        assert_eq!(local.whole().to_vec(), [9; 100], "nothing was read");
        assert_eq!(memory.slice(0, 100).unwrap().to_vec(), [0; 100], "nothing was written");
    }
    rig.works().await;
    rig.shutdown().await;
}
