"""A client for programs that run on asyncio: every call is a coroutine, none takes a thread.

python async_client.py [MASTER]
"""

# %%
import asyncio
import sys

import mc_store


# %% A request gets its blocks while others get theirs.
async def serve(client: mc_store.AsyncClient, request: int) -> int:
    keys = [f"prompt-{request}/block-{block}" for block in range(8)]
    await asyncio.gather(*(client.put(key, key.encode() * 1000) for key in keys))

    cached = await client.longest_prefix(keys)
    values = await client.get_many(keys[:cached])
    return sum(len(value) for value in values if value is not None)


# %% A call that takes too long is cancelled like any other.
async def get_soon(client: mc_store.AsyncClient, key: str) -> bytes | None:
    try:
        async with asyncio.timeout(1):
            return bytes(await client.get(key))
    except (KeyError, TimeoutError):
        return None


# %%
async def main(master: str) -> None:
    async with mc_store.AsyncClient(master) as client:
        sizes = await asyncio.gather(*(serve(client, request) for request in range(16)))
        print(f"{len(sizes)} requests, {sum(sizes)} bytes")
        assert await get_soon(client, "prompt-0/block-0") == b"prompt-0/block-0" * 1000
        assert await get_soon(client, "prompt-0/block-99") is None


# %% Without a master to join, one inside this process.
if len(sys.argv) > 1:
    asyncio.run(main(sys.argv[1]))
else:
    with mc_store.local() as cluster:
        asyncio.run(main(cluster.master_addr))
