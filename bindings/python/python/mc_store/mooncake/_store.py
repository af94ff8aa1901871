"""The class ``MooncakeDistributedStore``, put together."""

from __future__ import annotations

from mc_store import _native


class MooncakeDistributedStore(_native.Store):
    __doc__ = _native.Store.__doc__

    # Older programs spell them so.
    initAll = _native.Store.init_all
    tearDownAll = _native.Store.close
    isExist = _native.Store.is_exist
    batchIsExist = _native.Store.batch_is_exist
    getSize = _native.Store.get_size
    getHostname = _native.Store.get_hostname
    removeByRegex = _native.Store.remove_by_regex
    removeAll = _native.Store.remove_all


MooncakeDistributedStore.__module__ = "mc_store.mooncake.store"
