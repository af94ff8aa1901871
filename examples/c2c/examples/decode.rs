//! A decode node of another made-up model, `toy/Small`: gets the KV cache of blocks under its own
//! model's name, as if it had computed them itself.
//!
//! ```sh
//! cargo run -p mc-c2c-tool --example decode -- MASTER BLOCKS
//! ```

use std::error::Error;

use mc_store::Client;

/// Bytes of a token: 2 layers of 3 heads with 2 elements of bf16.
const TOKEN_BYTES: usize = 2 * 3 * 2 * 2;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let master = arguments.next().ok_or("usage: decode MASTER BLOCKS")?;
    let blocks: usize = arguments.next().map_or(Ok(8), |blocks| blocks.parse())?;
    let client = Client::builder().master(master).connect().await?;
    let mut tokens = 0;
    for block in 0..blocks {
        let keys = ["k", "v"].map(|part| format!("toy/Small_{block:04x}_0_{part}"));
        for value in client.batch_get(&keys.each_ref().map(|key| &**key)).await {
            let value = value?;
            let is_finite = |pair: &[u8]| pair[1] & 0x7f != 0x7f || pair[0] & 0x80 == 0;
            if !value.len().is_multiple_of(TOKEN_BYTES) || !value.chunks(2).all(is_finite) {
                return Err("this is no KV cache of toy/Small".into());
            }
            tokens += value.len() / TOKEN_BYTES;
        }
    }
    println!("got {blocks} blocks of toy/Small: keys and values of {} tokens", tokens / 2);
    client.shutdown().await;
    Ok(())
}
