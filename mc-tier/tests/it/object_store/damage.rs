//! Stored objects that others have changed, through the API.

use std::collections::BTreeMap;
use std::time::SystemTime;

use mc_testkit::SeaweedFs;
use mc_tier::{Damage, ObjectId, ObjectStoreTier, Tier, TierError};
use object_store::ObjectStoreExt as _;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use tokio::runtime::Runtime;

use super::common::{id, object, scan_all};
use super::server::{SECRET, open, shared};

/// Another program that uses a bucket.
pub(crate) struct Client {
    runtime: Runtime,
    pub(crate) store: AmazonS3,
}

impl Client {
    pub(crate) fn new(server: &SeaweedFs, bucket: &str) -> Self {
        // The tier has a provider of its own; the client that is made here takes the process's.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let store = AmazonS3Builder::new()
            .with_bucket_name(bucket)
            .with_endpoint(format!("http://{}", server.s3()))
            .with_allow_http(true)
            .with_access_key_id("admin")
            .with_secret_access_key(SECRET)
            .build()
            .unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { runtime, store }
    }

    pub(crate) fn run<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    pub(crate) fn put(&self, name: &str, bytes: &[u8]) {
        self.run(self.store.put(&Path::parse(name).unwrap(), bytes.to_vec().into())).unwrap();
    }

    fn get(&self, name: &str) -> Vec<u8> {
        let bytes = async { self.store.get(&Path::parse(name).unwrap()).await?.bytes().await };
        self.run(bytes).unwrap().to_vec()
    }

    /// The names and tags of all objects.
    fn list(&self) -> Vec<(String, String)> {
        use futures_util::TryStreamExt as _;
        use object_store::ObjectStore as _;
        let all = self.store.list(None).map_ok(|meta| (meta.location.into(), meta.e_tag.unwrap()));
        self.run(all.try_collect()).unwrap()
    }

    /// When each object was stored.
    pub(crate) fn times(&self) -> BTreeMap<String, SystemTime> {
        use futures_util::TryStreamExt as _;
        use object_store::ObjectStore as _;
        let all = self.store.list(None);
        let all = all.map_ok(|meta| (meta.location.into(), meta.last_modified.into()));
        self.run(all.try_collect()).unwrap()
    }

    pub(crate) fn only(&self) -> (String, String) {
        let mut all = self.list();
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }
}

/// Two objects, of which the name of the first is returned.
fn two(server: &SeaweedFs, bucket: &str) -> (ObjectStoreTier, [ObjectId; 2], Client, String) {
    server.make_bucket(bucket);
    let tier = open(server, bucket);
    let ids = [id("damaged"), id("whole")];
    tier.put(&ids[0], &object("damaged", 20_000)).unwrap();
    let client = Client::new(server, bucket);
    let (name, _) = client.only();
    tier.put(&ids[1], &object("whole", 20_000)).unwrap();
    (tier, ids, client, name)
}

/// Only the damaged object suffers, until it is put again.
fn is_told_and_healed(tier: &ObjectStoreTier, [damaged, whole]: &[ObjectId; 2]) -> Damage {
    let found = match tier.get(damaged) {
        Err(TierError::Damaged { source, path }) => {
            assert!(path.starts_with("s3://"), "{path:?}");
            source
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(tier.get(whole).unwrap(), Some(object("whole", 20_000)));
    tier.put(damaged, &object("damaged", 20_000)).unwrap();
    assert_eq!(tier.get(damaged).unwrap(), Some(object("damaged", 20_000)));
    found
}

#[test]
fn no_flipped_bit_is_returned() {
    let Some(server) = shared() else { return };
    let (tier, ids, client, name) = two(&server, "flipped");
    let original = client.get(&name);
    for byte in (0..110).step_by(7).chain([200, 15_000, original.len() - 1]) {
        let mut bytes = original.clone();
        bytes[byte] ^= 1 << (byte % 8);
        client.put(&name, &bytes);
        let read = tier.get(&ids[0]);
        let is_told = matches!(read, Err(TierError::Damaged { .. } | TierError::Newer { .. }));
        assert!(is_told, "byte {byte}: {read:?}");
    }
    // The other slice is not read, and a scan reads no bytes.
    let first = tier.get_range(&ids[0], 0..10).unwrap().unwrap();
    assert_eq!(first, object("damaged", 20_000).slices()[0].bytes());
    let second = tier.get_range(&ids[0], 19_000..19_001);
    assert!(matches!(second, Err(TierError::Damaged { .. })), "{second:?}");
    assert_eq!(scan_all(&tier).objects.len(), 2);
    let damage = is_told_and_healed(&tier, &ids);
    assert!(matches!(damage, Damage::Slice { index: 1, .. }), "{damage:?}");
}

#[test]
fn an_object_that_was_cut_or_is_too_long_is_told() {
    let Some(server) = shared() else { return };
    let (tier, ids, client, name) = two(&server, "cut");
    let whole = client.get(&name);
    for len in [0, 1, 23, 60, 100, whole.len() - 1] {
        client.put(&name, &whole[..len]);
        let page = scan_all(&tier);
        assert_eq!((page.objects.len(), page.unreadable.len()), (1, 1), "{len} bytes");
        let part = tier.get_range(&ids[0], 0..10);
        assert!(matches!(part, Err(TierError::Damaged { .. })), "{len} bytes: {part:?}");
        is_told_and_healed(&tier, &ids);
    }
    client.put(&name, &[&whole[..], &[0]].concat());
    let found = whole.len() as u64 + 1;
    let expected = Damage::Length { expected: found - 1, found };
    assert_eq!(is_told_and_healed(&tier, &ids), expected);
}

#[test]
fn an_object_under_the_name_of_another_is_told() {
    let Some(server) = shared() else { return };
    let (tier, ids, client, name) = two(&server, "other");
    let (other, _) = client.list().into_iter().find(|(other, _)| *other != name).unwrap();
    client.put(&name, &client.get(&other));
    assert_eq!(scan_all(&tier).unreadable.len(), 1);
    let found = ids[1].clone();
    assert_eq!(is_told_and_healed(&tier, &ids), Damage::OtherObject { found });
}

#[test]
fn an_object_of_a_newer_version_is_told() {
    let Some(server) = shared() else { return };
    let (tier, ids, client, name) = two(&server, "newer");
    let mut bytes = client.get(&name);
    bytes[4] = 2;
    client.put(&name, &bytes);
    let read = tier.get(&ids[0]);
    assert!(matches!(read, Err(TierError::Newer { found: 2, known: 1, .. })), "{read:?}");
}

#[test]
fn an_object_that_another_has_removed_is_none() {
    let Some(server) = shared() else { return };
    let (tier, ids, client, name) = two(&server, "gone");
    client.run(client.store.delete(&Path::parse(&name).unwrap())).unwrap();
    assert_eq!(tier.get(&ids[0]).unwrap(), None);
    assert_eq!(tier.get_range(&ids[0], 0..1).unwrap(), None);
    assert!(!tier.remove(&ids[0]).unwrap());
    assert_eq!(scan_all(&tier).objects.len(), 1);
}
