from mc_store.mooncake.engine import TransferEngine as TransferEngine
from mc_store.mooncake.engine import TransferNotify as TransferNotify
from mc_store.mooncake.engine import TransferOpcode as TransferOpcode
