"""The transfer engine under the names of Mooncake: what ``import mooncake.engine`` gives there."""

from __future__ import annotations

from mc_store._native import TransferEngine, TransferNotify, TransferOpcode

Read = TransferOpcode.Read
Write = TransferOpcode.Write

#: What Mooncake's package was compiled with. This one transfers memory of the host.
SUPPORT_CUDA = False
SUPPORT_EFA = False
SUPPORT_HIP = False
SUPPORT_INTRA_NVLINK = False
SUPPORT_MNNVL = False
SUPPORT_MUSA = False

__all__ = [
    "SUPPORT_CUDA",
    "SUPPORT_EFA",
    "SUPPORT_HIP",
    "SUPPORT_INTRA_NVLINK",
    "SUPPORT_MNNVL",
    "SUPPORT_MUSA",
    "Read",
    "TransferEngine",
    "TransferNotify",
    "TransferOpcode",
    "Write",
]
