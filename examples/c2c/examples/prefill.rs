//! A prefill node of a made-up model, `toy/Big`: puts the KV cache of some blocks. It knows nothing
//! of the model that will decode; its client converts what it puts because the master says so.
//!
//! ```sh
//! cargo run -p mc-c2c-tool --example prefill -- MASTER BLOCKS
//! ```

use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use mc_store::{Client, Put, ReplicateConfig};

/// Tokens of a block.
const TOKENS: usize = 16;
/// Bytes of a token: 3 layers of 2 heads with 4 elements of bf16.
const TOKEN_BYTES: usize = 3 * 2 * 4 * 2;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let master = arguments.next().ok_or("usage: prefill MASTER BLOCKS")?;
    let blocks: usize = arguments.next().map_or(Ok(8), |blocks| blocks.parse())?;
    let client = Client::builder().master(master).connect().await?;
    for block in 0..blocks {
        let keys = ["k", "v"].map(|part| format!("toy/Big_{block:04x}_0_{part}"));
        let values = [0, 1].map(|part| cache(block * 2 + part));
        let puts = keys.iter().zip(values).map(|(key, value)| Put::new(key, value));
        for outcome in client.batch_put(puts.collect(), &ReplicateConfig::default()).await {
            outcome?;
        }
    }
    println!("put {blocks} blocks of toy/Big");
    // Only to see the end of it: an engine would go on.
    let c2c = loop {
        let c2c = client.metrics().c2c.ok_or("the master has no rules; see --enable_c2c")?;
        if c2c.queued == 0 {
            break c2c;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    let skipped: Vec<_> = c2c.skipped.iter().filter(|(_, count)| *count > 0).collect();
    println!("converted {} objects, skipped {skipped:?}", c2c.converted);
    client.shutdown().await;
    Ok(())
}

/// A stand-in for the cache that a model computes: bf16 numbers between -1 and 1.
fn cache(seed: usize) -> Bytes {
    let number = |at: usize| ((at * 31 + seed * 17) % 200) as f32 / 100.0 - 1.0;
    let bytes = |at| ((number(at).to_bits() >> 16) as u16).to_le_bytes();
    (0..TOKENS * TOKEN_BYTES / 2).flat_map(bytes).collect()
}
