//! Gets: whole objects and parts of them, into own memory or the caller's.

use std::ops::Range;

use bytes::Bytes;
use mc_transport::MemorySlice;
use mc_types::{BoxFuture, Generation};

use super::read::{Item, MakeMemory, Target};
use super::{Client, ClientOperation};
use crate::error::GetError;

/// One object to get into memory of the caller.
#[derive(Clone, Debug)]
pub struct GetInto<'a> {
    /// The object's key.
    pub key: &'a str,
    /// Where its bytes go, piece after piece; together at least as long as what is
    /// read.
    pub into: Vec<MemorySlice>,
    /// Which of the object's bytes to read; all, without it.
    pub range: Option<Range<u64>>,
    /// The only put whose bytes will do; any, without it.
    pub generation: Option<Generation>,
}

impl<'a> GetInto<'a> {
    /// Into one piece of memory.
    #[must_use]
    pub fn new(key: &'a str, into: MemorySlice) -> Self {
        Self::scattered(key, vec![into])
    }

    /// Into several pieces of memory, one after the other.
    #[must_use]
    pub fn scattered(key: &'a str, into: Vec<MemorySlice>) -> Self {
        Self { key, into, range: None, generation: None }
    }

    /// Only these bytes of the object, as [`Client::get_range`] reads them.
    #[must_use]
    pub fn range(self, range: Range<u64>) -> Self {
        Self { range: Some(range), ..self }
    }

    /// Only of this put, as [`Client::stat`] tells it: [`GetError::Replaced`] when the key has
    /// the value of another one now.
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// use mc_store::{GetError, GetInto, Memory};
    /// let memory = Memory::allocate(8)?;
    /// client.put("block", "keys and values").await?;
    /// let found = client.stat("block").await?;
    /// let get = |at| {
    ///     GetInto::new("block", memory.whole()).range(at..at + 8).generation(found.generation)
    /// };
    /// assert!(matches!(client.batch_get_into(vec![get(0)]).await[..], [Ok(8)]));
    /// client.upsert("block", "others, as long").await?;
    /// assert!(matches!(client.batch_get_into(vec![get(7)]).await[..], [Err(GetError::Replaced)]));
    /// # Ok(()) });
    /// ```
    #[must_use]
    pub fn generation(self, generation: Generation) -> Self {
        Self { generation: Some(generation), ..self }
    }
}

impl Client {
    /// As [`ObjectStore::get`](crate::ObjectStore::get). The value is verified. It borrows from the
    /// client's [local buffer](super::ClientBuilder::local_buffer), without a copy, until it is
    /// dropped; when that has no room, it has memory of its own.
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// client.put("block", "keys and values").await?;
    /// assert_eq!(client.get("block").await?, "keys and values");
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`GetError`]; no bytes are returned then.
    pub async fn get(&self, key: &str) -> Result<Bytes, GetError> {
        let values = self.get_owned(&[key], None, None, ClientOperation::Get).await;
        values.into_iter().next().expect("one value for each key")
    }

    /// As [`ObjectStore::get_range`](crate::ObjectStore::get_range), of whichever put is there. The
    /// bytes are verified as by [`get`](Self::get): for that, what lies around them is read as
    /// well, up to the next 64 KiB boundaries of their slices. Only in slices of more than 4 MiB
    /// whose writer told no checksums of their parts, an older client, parts are not verified.
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// client.put("block", "keys and values").await?;
    /// assert_eq!(client.get_range("block", 9..15).await?, "values");
    /// assert_eq!(client.get_range("block", 9..1000).await?, "values");
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`GetError`]; [`OutOfRange`](GetError::OutOfRange) when the range begins behind
    /// the value's end or ends before it begins.
    pub async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, GetError> {
        self.read_range(key, range, None).await
    }

    /// [`get_range`](Self::get_range) of this put only, as [`stat`](Self::stat) tells it.
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// use mc_store::GetError;
    /// client.put("block", "keys and values").await?;
    /// let put = client.stat("block").await?.generation;
    /// assert_eq!(client.get_range_of("block", put, 0..4).await?, "keys");
    /// client.upsert("block", "others").await?;
    /// let gone = client.get_range_of("block", put, 9..15).await;
    /// assert!(matches!(gone, Err(GetError::Replaced)));
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// As [`get_range`](Self::get_range), and [`Replaced`](GetError::Replaced) when the key has
    /// the value of another put now.
    pub async fn get_range_of(
        &self,
        key: &str,
        generation: Generation,
        range: Range<u64>,
    ) -> Result<Bytes, GetError> {
        self.read_range(key, range, Some(generation)).await
    }

    pub(crate) async fn read_range(
        &self,
        key: &str,
        range: Range<u64>,
        generation: Option<Generation>,
    ) -> Result<Bytes, GetError> {
        let operation = ClientOperation::GetRange;
        let values = self.get_owned(&[key], Some(&range), generation, operation).await;
        values.into_iter().next().expect("one value for each key")
    }

    /// As [`ObjectStore::get_into`](crate::ObjectStore::get_into).
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// use mc_store::Memory;
    /// client.put("block", "keys and values").await?;
    /// let memory = Memory::allocate(4096)?;
    /// assert_eq!(client.get_into("block", &memory.whole()).await?, 15);
    /// assert_eq!(memory.slice(0, 15).ok_or("too long")?.to_vec(), b"keys and values");
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`GetError`]; what is in `target` is then undefined.
    pub async fn get_into(&self, key: &str, target: &MemorySlice) -> Result<u64, GetError> {
        let get = GetInto::new(key, target.clone());
        let lengths = self.get_given(vec![get], ClientOperation::GetInto).await;
        lengths.into_iter().next().expect("one length for each key")
    }

    /// As [`ObjectStore::get_range_into`](crate::ObjectStore::get_range_into). The bytes are
    /// verified as by [`get_range`](Self::get_range).
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// use mc_store::Memory;
    /// client.put("block", "keys and values").await?;
    /// let memory = Memory::allocate(10)?;
    /// assert_eq!(client.get_range_into("block", 9, &memory.whole()).await?, 6);
    /// assert_eq!(memory.slice(0, 6).ok_or("too long")?.to_vec(), b"values");
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// As [`get_range`](Self::get_range); what is in `target` is then undefined.
    pub async fn get_range_into(
        &self,
        key: &str,
        offset: u64,
        target: &MemorySlice,
    ) -> Result<u64, GetError> {
        let range = offset..offset.saturating_add(target.len() as u64);
        let get = GetInto::new(key, target.clone()).range(range);
        let lengths = self.get_given(vec![get], ClientOperation::GetRange).await;
        lengths.into_iter().next().expect("one length for each key")
    }

    /// As [`ObjectStore::batch_get`](crate::ObjectStore::batch_get).
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// use mc_store::GetError;
    /// client.put("a", "1").await?;
    /// let mut values = client.batch_get(&["a", "b"]).await.into_iter();
    /// assert_eq!(values.next().ok_or("two keys")??, "1");
    /// assert!(matches!(values.next(), Some(Err(GetError::NotFound))));
    /// # Ok(()) });
    /// ```
    pub async fn batch_get(&self, keys: &[&str]) -> Vec<Result<Bytes, GetError>> {
        self.get_owned(keys, None, None, ClientOperation::BatchGet).await
    }

    /// As [`ObjectStore::batch_get_into`](crate::ObjectStore::batch_get_into).
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// use mc_store::{GetInto, Memory};
    /// client.put("a", "keys").await?;
    /// client.put("b", "and values").await?;
    /// let memory = Memory::allocate(4096)?;
    /// let part = |at, len| memory.slice(at, len).ok_or("it is not that long");
    /// let gets = vec![
    ///     GetInto::scattered("a", vec![part(0, 2)?, part(100, 2)?]),
    ///     GetInto::new("b", part(200, 100)?).range(4..10),
    /// ];
    /// for read in client.batch_get_into(gets).await {
    ///     read?;
    /// }
    /// assert_eq!(part(100, 2)?.to_vec(), b"ys");
    /// assert_eq!(part(200, 6)?.to_vec(), b"values");
    /// # Ok(()) });
    /// ```
    pub async fn batch_get_into(&self, gets: Vec<GetInto<'_>>) -> Vec<Result<u64, GetError>> {
        self.get_given(gets, ClientOperation::BatchGetInto).await
    }

    /// As [`ObjectStore::get_made`](crate::ObjectStore::get_made).
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// use mc_store::Memory;
    /// client.put("block", "keys and values").await?;
    /// let made = Memory::allocate(15)?;
    /// let address = made.whole().address().addr();
    /// let room = std::sync::Mutex::new(Some(made));
    /// let make = |_: usize, len: usize| room.lock().ok()?.take().filter(|made| made.len() == len);
    /// let value = client.get_made("block", &make).await?;
    /// assert_eq!((value.as_ptr().addr(), &value[..]), (address, &b"keys and values"[..]));
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn get_made(&self, key: &str, make: &MakeMemory<'_>) -> Result<Bytes, GetError> {
        let values = self.read_made(&[key], make, ClientOperation::Get).await;
        values.into_iter().next().expect("one value for each key")
    }

    /// As [`ObjectStore::batch_get_made`](crate::ObjectStore::batch_get_made).
    pub async fn batch_get_made(
        &self,
        keys: &[&str],
        make: &MakeMemory<'_>,
    ) -> Vec<Result<Bytes, GetError>> {
        self.read_made(keys, make, ClientOperation::BatchGet).await
    }

    fn read_made<'a>(
        &'a self,
        keys: &'a [&'a str],
        make: &'a MakeMemory<'a>,
        operation: ClientOperation,
    ) -> BoxFuture<'a, Vec<Result<Bytes, GetError>>> {
        let item = |(at, key): (usize, &&'a str)| {
            Item::new(key, None, None, Target::OWNED).made_by(at, make)
        };
        self.get_items(keys.iter().enumerate().map(item).collect(), operation)
    }

    /// [`batch_get`](Self::batch_get) of values that have at most so many bytes.
    pub(crate) async fn get_at_most(&self, gets: &[(&str, u64)]) -> Vec<Result<Bytes, GetError>> {
        let items =
            gets.iter().map(|&(key, most)| Item::new(key, None, None, Target::Owned(None, most)));
        self.get_items(items.collect(), ClientOperation::BatchGet).await
    }

    fn get_owned<'a>(
        &'a self,
        keys: &'a [&'a str],
        range: Option<&Range<u64>>,
        generation: Option<Generation>,
        operation: ClientOperation,
    ) -> BoxFuture<'a, Vec<Result<Bytes, GetError>>> {
        let item = |key| Item::new(key, range.cloned(), generation, Target::OWNED);
        self.get_items(keys.iter().copied().map(item).collect(), operation)
    }

    fn get_items<'a>(
        &'a self,
        mut items: Vec<Item<'a>>,
        operation: ClientOperation,
    ) -> BoxFuture<'a, Vec<Result<Bytes, GetError>>> {
        Box::pin(async move {
            let timed = self.core.metrics.start(operation);
            timed.within(self.core.reader().get_all(&mut items)).await;
            timed.ended(items.iter().map(Item::tally));
            items.into_iter().map(Item::into_bytes).collect()
        })
    }

    fn get_given<'a>(
        &'a self,
        gets: Vec<GetInto<'a>>,
        operation: ClientOperation,
    ) -> BoxFuture<'a, Vec<Result<u64, GetError>>> {
        Box::pin(async move {
            let timed = self.core.metrics.start(operation);
            let item = |GetInto { key, into, range, generation }| {
                Item::new(key, range, generation, Target::Given(into))
            };
            let mut items: Vec<Item<'_>> = gets.into_iter().map(item).collect();
            timed.within(self.core.reader().get_all(&mut items)).await;
            timed.ended(items.iter().map(Item::tally));
            items.into_iter().map(Item::into_len).collect()
        })
    }
}
