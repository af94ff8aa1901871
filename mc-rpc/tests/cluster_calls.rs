//! The calls about the cluster, through a real connection, against a real master.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{ME, connect, key, master, segment, serve};
use mc_meta::{PutEnd, PutStart, ReplicateConfig, TaskKind, TaskStatus, TenantId};
use mc_rpc::{MasterClient, ServerConfig, TenantKey};
use mc_types::{ClientId, ErrorCode, KeyRef};

const MIB: u64 = 1 << 20;

/// Puts an object into the segment `node-1`.
async fn put(client: &MasterClient, key: KeyRef<'_>) {
    let config = ReplicateConfig::default().prefer("node-1");
    let start = PutStart { key, slice_lengths: &[4096, 100], config: &config };
    let grant = client.put_start(ME, &start).await.unwrap();
    let end = PutEnd { key, generation: Some(grant.generation), checksums: &[] };
    client.put_end(ME, &end).await.unwrap();
}

async fn holders(client: &MasterClient, key: KeyRef<'_>) -> Vec<String> {
    let list = client.get_replica_list(key).await.unwrap();
    let mut names: Vec<String> =
        list.replicas.iter().map(|replica| replica.segment.name.to_string()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_copy_adds_replicas_and_a_move_takes_the_old_one_away() {
    let master = master();
    let server = serve(&master, ServerConfig::default()).await;
    let client = connect(&server).await;
    for number in 1..=3 {
        client.mount_segment(ME, &segment(number, MIB)).await.unwrap();
    }
    let block = key("block");
    let object = TenantKey::from(block);
    put(&client, block).await;

    let grant = client.copy_start(ME, &object, "node-1", &["node-2"]).await.unwrap();
    assert_eq!(&*grant.source.segment.name, "node-1");
    assert_eq!(&*grant.targets[0].segment.name, "node-2");
    assert_eq!(grant.targets[0].extent.len(), 4196);
    let busy = client.copy_start(ME, &object, "node-1", &["node-3"]).await.unwrap_err();
    assert_eq!(busy.code(), ErrorCode::ObjectHasReplicationTask);
    assert!(busy.is_retryable());
    let stranger = client.copy_end(ClientId::from_u128(9), &object, None).await.unwrap_err();
    assert_eq!(stranger.code(), ErrorCode::IllegalClient);
    client.copy_revoke(ME, &object, Some(grant.transfer)).await.unwrap();
    assert_eq!(holders(&client, block).await, ["node-1"]);
    let grant = client.copy_start(ME, &object, "node-1", &["node-2"]).await.unwrap();
    client.copy_end(ME, &object, Some(grant.transfer)).await.unwrap();
    assert_eq!(holders(&client, block).await, ["node-1", "node-2"]);

    let grant = client.move_start(ME, &object, "node-1", "node-3").await.unwrap();
    client.move_revoke(ME, &object, Some(grant.transfer)).await.unwrap();
    client.move_start(ME, &object, "node-1", "node-3").await.unwrap();
    client.move_end(ME, &object, None).await.unwrap();
    assert_eq!(holders(&client, block).await, ["node-2", "node-3"]);
    server.shutdown().await;
}

#[tokio::test]
async fn tasks_are_created_fetched_and_reported_on() {
    let master = master();
    let server = serve(&master, ServerConfig::default()).await;
    let client = connect(&server).await;
    for number in 1..=2 {
        client.mount_segment(ME, &segment(number, MIB)).await.unwrap();
    }
    let object = TenantKey::from(key("block"));
    put(&client, key("block")).await;
    assert_eq!(client.ping(ME).await.unwrap().tasks, 0);

    let copy = client.create_copy_task(&object, &["node-2"]).await.unwrap();
    let move_ = client.create_move_task(&object, "node-1", "node-2").await.unwrap();
    assert_eq!(client.ping(ME).await.unwrap().tasks, 2);
    let waiting = client.query_task(copy).await.unwrap();
    assert_eq!((waiting.status, waiting.client), (TaskStatus::Pending, ME));
    assert_eq!(waiting.task.tenant, TenantId::DEFAULT);

    let fetched = client.fetch_tasks(ME, 1).await.unwrap();
    assert_eq!((fetched.tasks.len(), fetched.tasks[0].id), (1, copy));
    assert_eq!(fetched.max_retry_attempts, 10);
    let task = &fetched.tasks[0];
    let TaskKind::Copy { source, targets } = &task.kind else { panic!("{task:?}") };
    let targets: Vec<&str> = targets.iter().map(|name| &**name).collect();
    let grant = client.copy_start(ME, &task.object(), source, &targets).await.unwrap();
    client.copy_end(ME, &task.object(), Some(grant.transfer)).await.unwrap();
    let ended = client.mark_task_to_complete(ME, copy, TaskStatus::Success, "").await.unwrap();
    assert_eq!(ended, TaskStatus::Success);
    let again = client.mark_task_to_complete(ME, copy, TaskStatus::Failed, "late").await.unwrap();
    assert_eq!(again, TaskStatus::Success);

    let rest = client.fetch_tasks(ME, 0).await.unwrap();
    assert_eq!(rest.tasks.iter().map(|task| task.id).collect::<Vec<_>>(), [move_]);
    client.mark_task_to_complete(ME, move_, TaskStatus::Failed, "no room").await.unwrap();
    let report = client.query_task(move_).await.unwrap();
    assert_eq!((report.status, &*report.outcome), (TaskStatus::Failed, "no room"));
    let none = client.create_copy_task(&object, &[]).await.unwrap_err();
    assert_eq!(none.code(), ErrorCode::InvalidParams);
    server.shutdown().await;
}
