"""``import mooncake.store``, and imports by older names, give this package's modules."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType

#: Mooncake's top-level names, and the modules of this package that they stand for.
_MODULES = {
    "mooncake": "mc_store.mooncake",
    # Older releases.
    "distributed_object_store": "mc_store.mooncake.distributed_object_store",
    "mooncake_vllm_adaptor": "mc_store.mooncake.mooncake_vllm_adaptor",
}

# The files that the distribution mc-store-mooncake has in the folder of each top-level name. The
# second one marks the folder as ours.
_MARK = "_provided_by_mc_store.py"
_PROVIDED_FILES = {"__init__.py", _MARK, "__pycache__"}


def install(*, force: bool) -> None:
    """Does what :func:`mc_store.install_as_mooncake` describes."""
    names = [name for name in _MODULES if name not in _installed_names()]
    if not force:
        for name in names:
            _refuse_stranger(name)
    for loaded in list(sys.modules):
        if loaded.partition(".")[0] in names:
            del sys.modules[loaded]
    _add_to_finder(names)
    importlib.import_module("mooncake")


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
    _add_to_finder([name])


class _Finder(importlib.abc.MetaPathFinder):
    """Finds ``mooncake.x`` where ``mc_store.mooncake.x`` is, and the older names likewise.

    It stands before the finder of files, which would load every module a second time.
    """

    def __init__(self) -> None:
        #: The top-level names that it finds. It leaves the others to the next finder.
        self.names: set[str] = set()

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        top, dot, rest = fullname.partition(".")
        if top not in self.names:
            return None
        try:
            real = importlib.util.find_spec(_MODULES[top] + dot + rest)
        except ModuleNotFoundError:
            return None
        if real is None:
            return None
        spec = ModuleSpec(fullname, _Loader(real), origin=real.origin)
        spec.submodule_search_locations = real.submodule_search_locations
        spec.has_location = real.has_location
        return spec


class _Loader(importlib.abc.InspectLoader):
    """Loads a module under a second name by returning the module object itself."""

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


def _finder() -> _Finder | None:
    return next((finder for finder in sys.meta_path if isinstance(finder, _Finder)), None)


def _installed_names() -> set[str]:
    """The top-level names that are ours in this process already."""
    finder = _finder()
    return finder.names if finder else set()


def _add_to_finder(names: Iterable[str]) -> None:
    finder = _finder()
    if finder is None:
        finder = _Finder()
        sys.meta_path.insert(0, finder)
    finder.names.update(names)


def _refuse_stranger(name: str) -> None:
    """Raises ``ImportError`` if a package ``name`` is imported or installed that is not ours."""
    loaded = sys.modules.get(name)
    if loaded is not None:
        place = getattr(loaded, "__file__", None) or list(getattr(loaded, "__path__", []))
        raise ImportError(
            f"another package {name!r} is imported from {place}; call install_as_mooncake "
            "before it is, or with force=True to replace it",
            name=name,
        )
    stranger = _installed_stranger(name)
    if stranger is not None:
        raise ImportError(
            f"another package {name!r} is installed in {stranger}; uninstall it, or call "
            "install_as_mooncake(force=True) to hide it from this process",
            name=name,
        )


def _has_strangers(folder: str) -> bool:
    return not _PROVIDED_FILES.issuperset(os.listdir(folder))


def _installed_stranger(name: str) -> str | None:
    """The place of an installed package ``name`` that is not wholly ours."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        return None
    folders = list(spec.submodule_search_locations or [])
    if folders and all(
        os.path.isfile(os.path.join(f, _MARK)) and not _has_strangers(f) for f in folders
    ):
        return None
    return ", ".join(folders) or spec.origin or "an unknown place"
