#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod keys;
mod metadata;
mod protocol;
mod store;

use std::error::Error;

type Done = Result<(), Box<dyn Error>>;

/// An operation that callers wait for.
struct Path {
    name: &'static str,
    /// The operations of a run. A batch is as many as it has keys.
    operations: u64,
    run: fn(u64) -> Done,
}

const fn path(name: &'static str, operations: u64, run: fn(u64) -> Done) -> Path {
    Path { name, operations, run }
}

const PATHS: [Path; 20] = [
    path("alloc_pair", 20_000, metadata::alloc_pair),
    path("put_pair", 20_000, metadata::put_pair),
    path("batch_put_128", 200 * 128, |operations| metadata::batch_put(operations, 128)),
    path("get", 20_000, metadata::get),
    path("batch_get_128", 200 * 128, |operations| metadata::batch_get(operations, 128)),
    path("exist", 20_000, metadata::exist),
    path("batch_exist_1000", 30_000, |operations| metadata::batch_exist(operations, 1_000)),
    path("remove", 20_000, metadata::remove),
    path("evict", 20_000, metadata::evict),
    path("rpc_exist", 2_000, protocol::exist),
    path("rpc_get", 2_000, protocol::get),
    path("rpc_batch_exist_1000", 30_000, |operations| protocol::batch_exist(operations, 1_000)),
    path("rpc_batch_get_128", 100 * 128, |operations| protocol::batch_get(operations, 128)),
    path("rpc_batch_put_128", 100 * 128, |operations| protocol::batch_put(operations, 128)),
    path("store_put_4k", 1_000, |operations| store::put(operations, 4 << 10)),
    path("store_put_1m", 100, |operations| store::put(operations, 1 << 20)),
    path("store_get_into_4k", 1_000, |operations| store::get_into(operations, 4 << 10)),
    path("store_get_into_1m", 100, |operations| store::get_into(operations, 1 << 20)),
    path("store_batch_put_100", 40 * 100, |operations| store::batch_put(operations, 4 << 10)),
    path("store_batch_get_100", 40 * 100, |operations| store::batch_get(operations, 4 << 10)),
];

/// A profiler counts what this function executes and nothing else, so that preparations do not matter.
#[inline(never)]
fn profiled_path(work: &mut dyn FnMut() -> Done) -> Done {
    work()
}

fn main() -> Done {
    let Some(name) = std::env::args().nth(1) else {
        PATHS.iter().for_each(|path| println!("{} {}", path.name, path.operations));
        return Ok(());
    };
    let path = PATHS.iter().find(|path| path.name == name);
    let path =
        path.ok_or_else(|| format!("there is no path {name}; without arguments all are listed"))?;
    let operations = match std::env::args().nth(2) {
        None => path.operations,
        Some(text) => text.parse().map_err(|_| format!("{text} is no number of operations"))?,
    };
    (path.run)(operations)
}
