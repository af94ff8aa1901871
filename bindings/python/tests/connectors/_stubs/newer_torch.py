"""Names of PyTorch that the connectors use and releases that are older, or without CUDA, lack."""

from __future__ import annotations

from typing import Any

import torch


class Event:
    """An event of a stream on which everything has happened."""

    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        pass


def complete() -> None:
    """Adds what is missing."""
    module: Any = torch
    if not torch.cuda.is_available():
        module.cuda.Event = Event
        module.Tensor.pin_memory = lambda tensor: tensor
    for name in ("float8_e4m3fn", "float8_e5m2"):
        if not hasattr(module, name):
            setattr(module, name, name)
    if not hasattr(module.cuda, "MemPool"):
        module.cuda.MemPool = type("MemPool", (), {})
    if not hasattr(module.Tensor, "nbytes"):
        module.Tensor.nbytes = property(lambda tensor: tensor.nelement() * tensor.element_size())
    if not hasattr(module.Tensor, "untyped_storage"):
        module.Tensor.untyped_storage = module.Tensor._storage
