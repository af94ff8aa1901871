//! Files that the master does not know of, in a directory that clients are given.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use mc_cluster_testkit::Cluster;
use mc_store::{
    ByteSize, CallError, Client, ErrorCode, Generation, GetError, Master, ReplicateConfig,
    StorageSettings,
};

use crate::common::content;

/// Long enough for a loaded machine; a test that needs it has failed.
const DEADLINE: Duration = Duration::from_secs(20);

async fn client(cluster: &Cluster, root: &Path) -> Client {
    cluster.client().storage_root(root).connect().await.unwrap()
}

async fn put(client: &Client, keys: &[&str]) {
    for key in keys {
        client.put(key, content(key, 70_000)).await.unwrap();
    }
    assert!(client.flush_files(DEADLINE).await, "files are written in time");
}

/// Takes the memory of all objects away.
async fn lose_memory(cluster: &mut Cluster) {
    cluster.nodes.remove(0).shutdown().await;
}

fn missing<T>(outcome: Result<T, CallError>) -> bool {
    outcome.is_err_and(|error| error.code() == ErrorCode::ObjectNotFound)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_that_the_master_does_not_have_are_read_from_files() {
    let root = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(&[ByteSize::mib(32)]).await;
    let (writer, reader) =
        (client(&cluster, root.path()).await, client(&cluster, root.path()).await);
    let other = cluster.app().await;
    put(&writer, &["a", "b", "c/../d"]).await;
    let parts = [10, 100_000, 7].map(|len| content("parts", len)).to_vec();
    writer.put_parts("parts", parts.clone(), &ReplicateConfig::default()).await.unwrap();
    assert!(writer.flush_files(DEADLINE).await);
    assert_eq!(cluster.master.report().totals.files_written, 0, "the master knows of no file");
    assert!(root.path().join("mooncake_cluster").is_dir());
    let generation = reader.stat("a").await.unwrap().generation;
    lose_memory(&mut cluster).await;

    for key in ["a", "b", "c/../d"] {
        assert_eq!(reader.get(key).await.unwrap(), content(key, 70_000));
    }
    let whole: Bytes = parts.concat().into();
    assert_eq!(reader.get("parts").await.unwrap(), whole);
    assert_eq!(reader.get_range("parts", 5..100_012).await.unwrap(), whole.slice(5..100_012));
    let found = reader.batch_get(&["a", "absent", "b"]).await;
    assert_eq!(*found[0].as_ref().unwrap(), content("a", 70_000));
    assert!(matches!(found[1], Err(GetError::NotFound)));
    assert_eq!(*found[2].as_ref().unwrap(), content("b", 70_000));

    assert!(reader.exist("a").await.unwrap() && !reader.exist("absent").await.unwrap());
    assert_eq!(reader.batch_exist(&["absent", "b"]).await.unwrap(), [false, true]);
    assert_eq!(reader.longest_prefix(&["a", "b", "absent", "parts"]).await.unwrap(), 2);
    assert_eq!(reader.size("parts").await.unwrap(), 100_017);
    assert_ne!(reader.stat("a").await.unwrap().generation, generation, "of any put");
    // Without the directory there is nothing.
    assert!(!other.exist("a").await.unwrap());
    assert!(matches!(other.get("a").await, Err(GetError::NotFound)));
    assert!(missing(other.stat("a").await));
    let metrics = reader.metrics().shared_tier.unwrap();
    assert_eq!((metrics.failed_reads, metrics.missing), (0, 0));
    assert!(metrics.reads.count() >= 7);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_put_of_a_key_has_the_file_and_a_removal_deletes_it() {
    let root = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(&[ByteSize::mib(32)]).await;
    let app = client(&cluster, root.path()).await;
    // Written behind the back of puts and removals, but in their order.
    for n in 0..50 {
        app.upsert("again", format!("version {n}")).await.unwrap();
    }
    put(&app, &["kept", "removed", "batch", "layer/1", "layer/2"]).await;
    app.remove("removed", true).await.unwrap();
    app.put("removed at once", "value").await.unwrap();
    app.remove("removed at once", true).await.unwrap();
    assert_eq!(app.remove_by_regex("^layer/", true).await.unwrap(), 2);
    lose_memory(&mut cluster).await;
    assert_eq!(app.get("again").await.unwrap(), "version 49");
    assert_eq!(app.get("kept").await.unwrap(), content("kept", 70_000));
    // Objects in files only are removed as others are.
    let removed = app.batch_remove(&["batch", "absent"], false).await.unwrap();
    assert!(removed[0].is_ok());
    assert_eq!(removed[1].as_ref().unwrap_err().code, ErrorCode::ObjectNotFound);
    let gone = ["removed", "removed at once", "batch", "layer/1", "layer/2"];
    assert_eq!(app.batch_exist(&gone).await.unwrap(), [false; 5]);
    assert!(missing(app.remove("removed", true).await));
    app.remove_all(true).await.unwrap();
    assert_eq!(app.batch_exist(&["again", "kept"]).await.unwrap(), [false; 2]);
    // Those that were removed, and one at each upsert but the first; fewer, where an object was deleted before
    // its file was written.
    let deleted = app.metrics().shared_tier.unwrap().deleted;
    assert!((6..=7 + 49).contains(&deleted), "{deleted}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_older_value_is_read_when_a_file_could_not_be_written() {
    let root = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(&[ByteSize::mib(32)]).await;
    let app = client(&cluster, root.path()).await;
    put(&app, &["upserted", "put again"]).await;
    // Memory has given it up.
    cluster.app().await.remove("put again", true).await.unwrap();
    assert_eq!(app.get("put again").await.unwrap(), content("put again", 70_000));
    // A put makes its file here first.
    let unfinished = root.path().join("mooncake_cluster/tmp");
    fs::remove_dir(&unfinished).unwrap();
    fs::write(&unfinished, "in the way").unwrap();
    app.upsert("upserted", "new").await.unwrap();
    app.put("put again", "new").await.unwrap();
    assert!(app.flush_files(DEADLINE).await);
    assert_eq!(app.metrics().shared_tier.unwrap().failed_writes, 2);
    assert_eq!(app.get("upserted").await.unwrap(), "new");
    lose_memory(&mut cluster).await;
    assert_eq!(app.batch_exist(&["upserted", "put again"]).await.unwrap(), [false; 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_and_strange_files_are_no_values() {
    let root = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(&[ByteSize::mib(32)]).await;
    let app = client(&cluster, root.path()).await;
    put(&app, &["flipped", "cut", "empty", "strange"]).await;
    type Damage = fn(&mut Vec<u8>);
    let damages: [(&str, Damage); 4] = [
        ("flipped", |bytes| *bytes.last_mut().unwrap() ^= 1),
        ("cut", |bytes| bytes.truncate(bytes.len() / 2)),
        ("empty", Vec::clear),
        ("strange", |bytes| bytes.fill(b'x')),
    ];
    for (key, damage) in damages {
        let path = app.file_path(key, Generation::new(1)).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        damage(&mut bytes);
        fs::write(&path, bytes).unwrap();
    }
    // Memory has them still.
    assert_eq!(app.get("flipped").await.unwrap(), content("flipped", 70_000));
    lose_memory(&mut cluster).await;
    for key in ["flipped", "cut", "empty", "strange"] {
        let error = app.get(key).await.unwrap_err();
        assert!(matches!(error, GetError::NotFound | GetError::Tier(_)), "{key}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_is_missing_costs_files_and_nothing_else() {
    let root = tempfile::tempdir().unwrap();
    let absent = root.path().join("absent");
    let cluster = Cluster::start(&[ByteSize::mib(32)]).await;
    let app = client(&cluster, &absent).await;
    app.put("a", "value").await.unwrap();
    assert_eq!(app.get("a").await.unwrap(), "value");
    assert!(!absent.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_system_may_be_mounted_elsewhere_than_the_master_says() {
    let root = tempfile::tempdir().unwrap();
    let settings = StorageSettings::in_directory("/not/mounted/here").cluster_id("cluster");
    let mut cluster = Cluster::of(Master::builder().storage(settings), &[ByteSize::mib(32)]).await;
    let (writer, reader) =
        (client(&cluster, root.path()).await, client(&cluster, root.path()).await);
    put(&writer, &["a"]).await;
    assert_eq!(cluster.master.report().totals.files_written, 1, "the master knows of the file");
    let generation = writer.stat("a").await.unwrap().generation;
    let path = writer.file_path("a", generation).unwrap();
    assert!(path.starts_with(root.path().join("cluster")) && path.is_file());
    lose_memory(&mut cluster).await;
    assert_eq!(reader.get("a").await.unwrap(), content("a", 70_000));
    assert!(!reader.exist("absent").await.unwrap());
}
