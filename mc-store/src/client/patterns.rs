//! Calls about every object whose key matches a regular expression.

use mc_meta::ListCursor;
use mc_rpc::ReplicaPage;
use mc_types::{BoxFuture, ObjectKey};

use super::{Client, ClientOperation};
use crate::error::CallError;

/// Objects asked for at a time.
const PAGE: usize = 1024;

impl Client {
    /// As [`ObjectStore::find`](crate::ObjectStore::find). When as many as `at_most` are found
    /// there may be more. Each found object is kept from being taken away for the length of a
    /// lease, and one that stays throughout is found exactly once.
    ///
    /// # Errors
    /// [`CallError`]; its code is `InvalidParams` when the pattern is none or would cost
    /// too much.
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// for key in ["layer0/block1", "layer1/block1", "other"] {
    ///     client.put(key, "bytes").await?;
    /// }
    /// assert_eq!(client.find("^layer[0-9]+/", 100).await?.len(), 2);
    /// assert_eq!(client.find("^layer[0-9]+/", 1).await?.len(), 1);
    /// # Ok(()) });
    /// ```
    pub fn find<'a>(
        &'a self,
        pattern: &'a str,
        at_most: usize,
    ) -> BoxFuture<'a, Result<Vec<ObjectKey>, CallError>> {
        Box::pin(async move {
            let mut keys = Vec::new();
            let mut from = Some(ListCursor::default());
            while let Some(cursor) = from
                && keys.len() < at_most
            {
                let limit = PAGE.min(at_most - keys.len());
                let page = self.find_page(pattern, cursor, limit).await?;
                keys.extend(page.objects.into_iter().map(|(key, _)| key));
                from = page.next;
            }
            Ok(keys)
        })
    }

    /// Up to `limit` objects as [`find`](Self::find) finds them, with where each can be
    /// read, from `cursor` on: the default cursor to begin, then [`ReplicaPage::next`]
    /// while there is one. A page may have fewer objects, or none, although more follow.
    ///
    /// The limit 0 asks for all that follow in one answer.
    ///
    /// # Errors
    /// As [`find`](Self::find); also with `InvalidParams` when `limit` is beyond
    /// [`MAX_PAGE`](mc_rpc::MAX_PAGE), and when all in one answer would be too many.
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// use mc_store::ListCursor;
    /// for n in 0..10 {
    ///     client.put(&format!("block-{n}"), "bytes").await?;
    /// }
    /// let (mut bytes, mut next) = (0, Some(ListCursor::default()));
    /// while let Some(cursor) = next {
    ///     let page = client.find_page("^block-", cursor, 4).await?;
    ///     bytes += page.objects.iter().map(|(_, list)| list.slices.total_len()).sum::<u64>();
    ///     next = page.next;
    /// }
    /// assert_eq!(bytes, 50);
    /// # Ok(()) });
    /// ```
    pub fn find_page<'a>(
        &'a self,
        pattern: &'a str,
        cursor: ListCursor,
        limit: usize,
    ) -> BoxFuture<'a, Result<ReplicaPage, CallError>> {
        Box::pin(async move {
            let master = self.core.link.request()?;
            Ok(master.get_replica_list_by_regex(pattern, cursor, limit).await?)
        })
    }

    /// As [`ObjectStore::remove_by_regex`](crate::ObjectStore::remove_by_regex).
    ///
    /// # Errors
    /// As [`find`](Self::find); the empty pattern, which would match everything, is
    /// refused with `InvalidParams` as well.
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// for key in ["prompt-1/a", "prompt-1/b", "prompt-2/a"] {
    ///     client.put(key, "bytes").await?;
    /// }
    /// assert_eq!(client.remove_by_regex("^prompt-1/", false).await?, 2);
    /// assert!(client.exist("prompt-2/a").await?);
    /// # Ok(()) });
    /// ```
    pub fn remove_by_regex<'a>(
        &'a self,
        pattern: &'a str,
        force: bool,
    ) -> BoxFuture<'a, Result<u64, CallError>> {
        Box::pin(async move {
            let timed = self.core.metrics.start(ClientOperation::RemoveAll);
            let removed = async {
                let removed = self.core.link.request()?.remove_by_regex(pattern, force).await?;
                self.core.tiers.remove_all_unlisted(Some(pattern)).await;
                Ok(removed)
            };
            let removed = timed.within(removed).await;
            timed.answered(removed)
        })
    }
}
