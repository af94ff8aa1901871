"""Objects of many members, over the byte methods of a store.

``mc_store_structured.structured_object_store`` is the front. From the bottom to the top:

* ``names``, ``manifest``: the keys of an object, and the list of its payloads;
* ``writes``, ``reads``: bytes to and from the store, in chunks;
* ``bundle``: a manifest with named payloads, written or not at all;
* ``members``, ``structured``: payloads as arrays, tensors and bytes, whole or in part;
* ``columns`` and its neighbours: one value for each row of a batch, in few payloads;
* ``batches``, ``handles``, ``dataproto``: batches of named fields in stages;
* ``transfer``: the public class.

Everything that is read from a store is checked before memory is allocated for it. Nothing is
unpickled.
"""
