"""Tensors with their types and shapes, whole or in shards of tensor parallelism.

python tensors.py 127.0.0.1:50051
"""

# %%
import sys

import torch
from mc_store.mooncake.store import MooncakeDistributedStore

trainer = MooncakeDistributedStore()
server = MooncakeDistributedStore()
for store in (trainer, server):
    code = store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 64 << 20, "tcp", "", sys.argv[1])
    assert code == 0, f"setup failed: {code}"

# %% A tensor is put with a header that says what it is.
weight = torch.arange(1024 * 256, dtype=torch.float32).reshape(1024, 256).to(torch.bfloat16)
assert trainer.put_tensor("model/weight", weight) == 0
received = server.get_tensor("model/weight")
assert received.dtype == torch.bfloat16
assert torch.equal(received, weight)

# %% What is missing is None.
assert server.get_tensor("model/bias") is None

# %% Many in one call.
names = [f"model/layer-{layer}" for layer in range(4)]
layers = [torch.full((64, 64), float(layer)) for layer in range(4)]
assert trainer.batch_put_tensor(names, layers) == [0] * 4
for layer, expected in zip(server.batch_get_tensor(names), layers, strict=True):
    assert torch.equal(layer, expected)

# %% Split for tensor parallelism as it is put: each rank gets its shard.
assert trainer.put_tensor_with_tp("model/mlp", weight, tp_rank=0, tp_size=4, split_dim=0) == 0
shards = [
    server.get_tensor_with_tp("model/mlp", tp_rank=rank, tp_size=4, split_dim=0)
    for rank in range(4)
]
assert torch.equal(torch.cat(shards), weight)
print(f"{len(names) + 1} tensors, and one in {len(shards)} shards")

# %%
server.close()
trainer.close()
