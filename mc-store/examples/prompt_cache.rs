//! An application that is written against [`ObjectStore`]: it computes the blocks of a prompt that
//! nobody has computed yet. Here it runs in memory, as its tests would, and in a cluster.
//!
//! `cargo run -p mc-store --example prompt_cache`

use std::error::Error;

use mc_store::{ByteSize, Client, Master, MemoryStore, ObjectStore, Put, PutMode, ReplicateConfig};

/// Tokens in a block.
const BLOCK: usize = 16;

/// The blocks of prompts, shared by all that compute them.
struct PromptCache<'a> {
    store: &'a dyn ObjectStore,
}

impl PromptCache<'_> {
    /// Returns the keys and values of all blocks of `prompt`, and how many of them were computed.
    async fn blocks(&self, prompt: &[u32]) -> Result<(Vec<Vec<u8>>, usize), Box<dyn Error>> {
        let keys: Vec<String> =
            (1..=prompt.len() / BLOCK).map(|n| key(&prompt[..n * BLOCK])).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let found = self.store.longest_prefix(&keys).await?;
        let (known, new) = keys.split_at(found);
        let mut blocks = Vec::with_capacity(keys.len());
        for value in self.store.batch_get(known).await {
            blocks.push(value?.to_vec());
        }
        let computed: Vec<Vec<u8>> =
            (found..keys.len()).map(|n| compute(block(prompt, n))).collect();
        let puts = new.iter().zip(&computed).map(|(key, value)| {
            let value: bytes::Bytes = value.clone().into();
            Put::new(key, value)
        });
        let config = ReplicateConfig::default().soft_pin();
        // Another worker that computed the same meanwhile has stored the same.
        for stored in self.store.batch_store(puts.collect(), &config, PutMode::Put).await {
            stored?;
        }
        blocks.extend(computed);
        Ok((blocks, keys.len() - found))
    }
}

/// The key of the block that ends `prefix`: two prompts share it when they begin alike.
fn key(prefix: &[u32]) -> String {
    let hash = |hash: u64, token: &u32| (hash ^ u64::from(*token)).wrapping_mul(0x100_0000_01b3);
    format!("prompt/{:016x}", prefix.iter().fold(0xcbf2_9ce4_8422_2325, hash))
}

fn block(prompt: &[u32], n: usize) -> &[u32] {
    &prompt[n * BLOCK..][..BLOCK]
}

/// Stands for the model.
fn compute(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
}

/// Checks the cache with any store.
async fn try_out(store: &dyn ObjectStore) -> Result<(), Box<dyn Error>> {
    let cache = PromptCache { store };
    let prompt: Vec<u32> = (0..64).collect();
    let (first, computed) = cache.blocks(&prompt).await?;
    assert_eq!((first.len(), computed), (4, 4));
    let (again, computed) = cache.blocks(&prompt).await?;
    assert_eq!((again, computed), (first, 0), "all of it is known");
    let other: Vec<u32> = (0..32).chain(100..132).collect();
    let (blocks, computed) = cache.blocks(&other).await?;
    assert_eq!((blocks.len(), computed), (4, 2), "the first half is known");
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<(), Box<dyn Error>> {
    try_out(&MemoryStore::new()).await?;

    let master = Master::builder().start().await?;
    let builder = Client::builder().master(master.local_addr().to_string());
    let builder = builder.listen("127.0.0.1:0".parse()?).segment_size(ByteSize::mib(1));
    let client = builder.connect().await?;
    try_out(&client).await?;
    println!("the same blocks in memory and in a cluster");
    client.shutdown().await;
    master.shutdown().await;
    Ok(())
}
