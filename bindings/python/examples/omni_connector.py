"""A connector that was written for Mooncake, unchanged, over this package.

    python omni_connector.py 127.0.0.1:50051

The connector is that of vllm-omni, shortened: a stage of a pipeline puts an object of Python,
the next one gets it. Its own lines do not name this package; the first cell makes that possible.
So does the distribution `mc-store-mooncake`, without that cell.
"""

# %% From here on `mooncake` is this package. Before anything imports it!
import mc_store

mc_store.install_as_mooncake()

# %% What follows is as it would be with Mooncake.
import pickle  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402

from mooncake.store import MooncakeDistributedStore, ReplicateConfig  # noqa: E402


class StageConnector:
    """Puts what one stage made, gets it in the other."""

    def __init__(self, master: str) -> None:
        self.store = MooncakeDistributedStore()
        code = self.store.setup(
            "127.0.0.1",
            "P2PHANDSHAKE",
            64 << 20,  # of memory for the cluster
            64 << 20,  # for values on their way
            "tcp",
            "",
            master,
        )
        if code != 0:
            raise RuntimeError(f"setup failed: {code}")
        self.pin = ReplicateConfig()
        self.pin.with_soft_pin = True

    def put(self, request: str, stages: str, value: object) -> int:
        data = pickle.dumps(value)
        code = self.store.put(f"{request}@{stages}", data, self.pin)
        if code != 0:
            raise RuntimeError(f"put failed: {code}")
        return len(data)

    def get(self, request: str, stages: str) -> object:
        for _ in range(20):
            data = self.store.get(f"{request}@{stages}")
            if data:
                return pickle.loads(data)
            time.sleep(0.05)
        raise TimeoutError(f"{request} did not come")


# %% Two stages; in a deployment they are processes of their own.
thinker = StageConnector(sys.argv[1])
talker = StageConnector(sys.argv[1])

payload = {"tokens": list(range(1000)), "hidden": bytes(1 << 20), "final": True}
size = thinker.put("request-17", "0_1", payload)
assert talker.get("request-17", "0_1") == payload
print(f"{size} bytes from stage 0 to stage 1")

# %%
talker.store.close()
thinker.store.close()
