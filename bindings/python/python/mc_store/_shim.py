"""``import mooncake.store`` gives this package's modules."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType

_ALIAS = "mooncake"
_REAL = "mc_store.mooncake"

# What the distribution that provides a package `mooncake` for good has in its folder. The second
# file tells that the folder is ours.
_MARK = "_provided_by_mc_store.py"
_PROVIDED_FILES = {"__init__.py", _MARK, "__pycache__"}


def install(*, force: bool) -> None:
    """What :func:`mc_store.install_as_mooncake` does."""
    loaded = sys.modules.get(_ALIAS)
    if _has_finder():
        pass
    elif loaded is None:
        stranger = _installed_stranger()
        if stranger is not None and not force:
            raise ImportError(
                f"another package {_ALIAS!r} is installed in {stranger}; uninstall it, or call "
                "install_as_mooncake(force=True) to hide it from this process",
                name=_ALIAS,
            )
    else:
        if not force:
            place = getattr(loaded, "__file__", None) or list(getattr(loaded, "__path__", []))
            raise ImportError(
                f"another package {_ALIAS!r} is imported from {place}; call install_as_mooncake "
                "before it is, or with force=True to replace it",
                name=_ALIAS,
            )
        for name in [name for name in sys.modules if name.partition(".")[0] == _ALIAS]:
            del sys.modules[name]
    _add_finder()
    importlib.import_module(_ALIAS)


def provide(name: str, folders: Iterable[str]) -> None:
    """What the distribution ``mc-store-mooncake`` calls when its package is imported.

    Raises ``ImportError`` if another distribution has put its files into the same ``folders``:
    which of the two would be imported is decided file by file, by the order of installation.
    """
    if any(_has_strangers(folder) for folder in folders):
        from importlib.metadata import packages_distributions

        owners = packages_distributions().get(name, [])
        others = sorted(set(owners) - {"mc-store-mooncake"}) or ["of an unknown distribution"]
        raise ImportError(
            f"the package {name!r} of mc-store-mooncake is mixed with that of {', '.join(others)}; "
            "uninstall both, then install the one that you want",
            name=name,
        )
    _add_finder()


class _Finder(importlib.abc.MetaPathFinder):
    """Finds ``mooncake.x`` where ``mc_store.mooncake.x`` is.

    It stands before the finder of files, which would load every module a second time.
    """

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        package, _, rest = fullname.partition(".")
        if package != _ALIAS:
            return None
        try:
            real = importlib.util.find_spec(f"{_REAL}.{rest}" if rest else _REAL)
        except ModuleNotFoundError:
            return None
        if real is None:
            return None
        spec = ModuleSpec(fullname, _Loader(real), origin=real.origin)
        spec.submodule_search_locations = real.submodule_search_locations
        spec.has_location = real.has_location
        return spec


class _Loader(importlib.abc.InspectLoader):
    """Gives the module that has another name, as it is."""

    def __init__(self, real: ModuleSpec) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return importlib.import_module(self._real.name)

    def exec_module(self, module: ModuleType) -> None:
        # The import system has just made the other name's spec the module's.
        module.__spec__ = self._real

    # These are for `python -m mooncake.x`.

    def get_code(self, fullname: str) -> CodeType | None:
        return self._of_real().get_code(self._real.name)

    def get_source(self, fullname: str) -> str | None:
        return self._of_real().get_source(self._real.name)

    def is_package(self, fullname: str) -> bool:
        return self._of_real().is_package(self._real.name)

    def _of_real(self) -> importlib.abc.InspectLoader:
        loader = self._real.loader
        if not isinstance(loader, importlib.abc.InspectLoader):
            raise ImportError(f"{self._real.name} has no code to show", name=self._real.name)
        return loader


def _has_finder() -> bool:
    return any(isinstance(finder, _Finder) for finder in sys.meta_path)


def _add_finder() -> None:
    if not _has_finder():
        sys.meta_path.insert(0, _Finder())


def _has_strangers(folder: str) -> bool:
    return not _PROVIDED_FILES.issuperset(os.listdir(folder))


def _installed_stranger() -> str | None:
    """Where a package ``mooncake`` is installed that is not wholly ours."""
    spec = importlib.util.find_spec(_ALIAS)
    if spec is None:
        return None
    folders = list(spec.submodule_search_locations or [])
    if folders and all(
        os.path.isfile(os.path.join(f, _MARK)) and not _has_strangers(f) for f in folders
    ):
        return None
    return ", ".join(folders) or spec.origin or "an unknown place"
