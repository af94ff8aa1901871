//! A client whose files go to a tier of your own: here a map in this process.
//!
//! `cargo run -p mc-store --example own_tier`

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::num::NonZeroUsize;
use std::ops::{Bound, Range};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use mc_meta::SharedTierConfig;
use mc_store::{ByteSize, Client, Master, MasterConfig};
use mc_tier::{
    ObjectBytes, ObjectId, ScanCursor, ScanPage, StoredObject, Tier, TierError, TierUsage,
};

/// Keeps objects in the order in which they were put first, so that a scan can go on at a number.
#[derive(Debug, Default)]
struct Shelf(Mutex<Places>);

#[derive(Debug, Default)]
struct Places {
    objects: BTreeMap<u64, (ObjectId, ObjectBytes)>,
    numbers: HashMap<ObjectId, u64>,
    next: u64,
}

impl Shelf {
    fn places(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The least that a tier must have; `Tier` has more methods, for media that do better than one by one.
/// The checksums of the slices are compared by the client that reads: it has those of the put.
impl Tier for Shelf {
    fn put(&self, id: &ObjectId, object: &ObjectBytes) -> Result<(), TierError> {
        let mut places = self.places();
        let next = places.next;
        let number = *places.numbers.entry(id.clone()).or_insert(next);
        places.next = next.max(number + 1);
        places.objects.insert(number, (id.clone(), object.clone()));
        Ok(())
    }

    fn get(&self, id: &ObjectId) -> Result<Option<ObjectBytes>, TierError> {
        let places = self.places();
        let found = places.numbers.get(id).and_then(|number| places.objects.get(number));
        Ok(found.map(|(_, object)| object.clone()))
    }

    fn get_range(&self, id: &ObjectId, range: Range<u64>) -> Result<Option<Bytes>, TierError> {
        let Some(object) = self.get(id)? else { return Ok(None) };
        let len = object.slices().iter().map(|slice| slice.info().len).sum();
        if range.is_empty() || range.end > len {
            return Err(TierError::Range { range, len });
        }
        let mut bytes = BytesMut::new();
        object.slices().iter().for_each(|slice| bytes.extend_from_slice(slice.bytes()));
        Ok(Some(bytes.freeze().slice(range.start as usize..range.end as usize)))
    }

    fn remove(&self, id: &ObjectId) -> Result<bool, TierError> {
        let mut places = self.places();
        let number = places.numbers.remove(id);
        Ok(number.is_some_and(|number| places.objects.remove(&number).is_some()))
    }

    fn scan(&self, after: Option<&ScanCursor>, limit: NonZeroUsize) -> Result<ScanPage, TierError> {
        let places = self.places();
        // A cursor that is not from here is behind everything.
        let last = after.map(|cursor| cursor.as_str().parse().unwrap_or(u64::MAX));
        let begin = last.map_or(Bound::Unbounded, Bound::Excluded);
        let mut page = ScanPage { objects: Vec::new(), unreadable: Vec::new(), next: None };
        for (number, (id, object)) in places.objects.range((begin, Bound::Unbounded)) {
            page.objects.push(StoredObject::of(id.clone(), object));
            if page.objects.len() == limit.get() {
                page.next = Some(ScanCursor::new(number.to_string()));
                break;
            }
        }
        Ok(page)
    }

    fn usage(&self) -> Result<TierUsage, TierError> {
        let places = self.places();
        let slices = places.objects.values().flat_map(|(_, object)| object.slices());
        let bytes = slices.map(|slice| slice.info().len).sum();
        Ok(TierUsage { objects: places.objects.len() as u64, bytes })
    }
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<(), Box<dyn Error>> {
    let mut config = MasterConfig::default();
    config.shared_tier = Some(SharedTierConfig::default());
    let master = Master::builder().config(config).start().await?;
    let shelf = Arc::new(Shelf::default());
    // All clients of a cluster must have the same tier.
    let node = Client::builder()
        .master(master.local_addr().to_string())
        .segment_size(ByteSize::mib(1))
        .shared_tier(shelf.clone())
        .connect()
        .await?;
    for n in 0..100_u8 {
        node.put(&format!("block/{n}"), vec![n; 64 << 10]).await?;
        // The put has ended when its bytes are in memory; its file follows.
        node.flush_files(Duration::from_secs(10)).await;
    }
    let mut found = 0;
    for n in 0..100_u8 {
        found += usize::from(node.get(&format!("block/{n}")).await? == vec![n; 64 << 10]);
    }
    let kept = shelf.usage()?.objects;
    println!("100 blocks of 64 KiB in 1 MiB: {found} are found, {kept} are on the shelf");
    node.shutdown().await;
    master.shutdown().await;
    Ok(())
}
