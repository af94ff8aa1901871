"""The tensor methods of `MooncakeDistributedStore`, over its byte methods."""

from __future__ import annotations

from ._tensor.files import FileTensorMethods


class TensorMethods(FileTensorMethods):
    """Tensors as objects, as shards of ranks, as parts along several axes, and in files.

    To be mixed into a class that has the byte methods. What a method refuses is a code or `None`,
    as in Mooncake, and a line in the log `mc_store.tensor`.
    """
