"""The tensor methods of `MooncakeDistributedStore`, over its byte methods."""

from __future__ import annotations

from ._tensor.files import FileTensorMethods


class TensorMethods(FileTensorMethods):
    """Tensors as objects, as shards of ranks, as parts along several axes, and in files.

    A mixin for a class with the byte methods. A method returns an error code or `None` for a
    rejected argument, as in Mooncake, and logs the reason in `mc_store.tensor`.
    """
