"""The class ``MooncakeDistributedStore``, put together."""

from __future__ import annotations

from mc_store import _native
from mc_store.mooncake._conventions import ConventionMethods
from mc_store.mooncake._sessions import SessionMethods
from mc_store.mooncake._structured import TensorMethods


class MooncakeDistributedStore(SessionMethods, ConventionMethods, TensorMethods, _native.Store):
    __doc__ = _native.Store.__doc__

    # Older programs spell them so.
    initAll = _native.Store.init_all
    isExist = _native.Store.is_exist
    batchIsExist = _native.Store.batch_is_exist
    getSize = _native.Store.get_size
    getHostname = _native.Store.get_hostname
    removeByRegex = ConventionMethods.remove_by_regex
    removeAll = _native.Store.remove_all

    def tearDownAll(self) -> int:
        """The same as ``close``."""
        return self.close()


# Where programs find it, and pickles of it name it.
MooncakeDistributedStore.__module__ = "mc_store.mooncake.store"
