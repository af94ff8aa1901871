"""Tensors, and objects of many members, in the KV-cache store mc-store.

* :mod:`mc_store_structured.tensors`: the functions and requests of tensors;
* :mod:`mc_store_structured.tensor_methods`: the tensor methods of ``MooncakeDistributedStore``,
  which has them when this package is installed;
* :mod:`mc_store_structured.structured_object_store`: objects of many members, batches of fields;
* :mod:`mc_store_structured.dataproto_catalog`: keys that lead to rows and fields of batches.

Programs for Mooncake import them as ``mooncake.store``, ``mooncake.structured_object_store`` and
``mooncake.dataproto_catalog``. All of it is made of calls of the store that put, get, remove and
look for bytes: any object with these methods will do.
"""
