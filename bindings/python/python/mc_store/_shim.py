"""``import mooncake.store``, and imports by older names, give this package's modules."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import CodeType, ModuleType

#: Mooncake's top-level names, and the modules of this package that they stand for.
_MODULES = {
    "mooncake": "mc_store.mooncake",
    # Older releases.
    "distributed_object_store": "mc_store.mooncake.distributed_object_store",
    "mooncake_vllm_adaptor": "mc_store.mooncake.mooncake_vllm_adaptor",
}

# The transfer engine. A real one does not replace the store, so that a program may use both: it is
# not hidden. Its classes cannot be made twice in a process.
_ENGINE = "mooncake.engine"

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
    folders = _folders_of("mooncake") if "mooncake" in names else []
    for loaded in list(sys.modules):
        if loaded.partition(".")[0] in names and not _is_engine(loaded):
            del sys.modules[loaded]
    finder = _add_to_finder(names)
    finder.engine_folders += folders
    package = importlib.import_module("mooncake")
    if _ENGINE in sys.modules:
        # As the import of a submodule does.
        package.engine = sys.modules[_ENGINE]  # type: ignore[attr-defined]


def provide(name: str) -> None:
    """Entry point of the distribution ``mc-store-mooncake``, when its package is imported."""
    _add_to_finder([name])


class _Finder(importlib.abc.MetaPathFinder):
    """Finds ``mooncake.x`` where ``mc_store.mooncake.x`` is, and the older names likewise.

    It stands before the finder of files, which would load every module a second time.
    """

    def __init__(self) -> None:
        #: The top-level names that it finds. It leaves the others to the next finder.
        self.names: set[str] = set()
        #: The folders of a hidden package `mooncake`, whose engine is not hidden.
        self.engine_folders: list[str] = []

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        top, dot, rest = fullname.partition(".")
        if top not in self.names:
            return None
        if fullname == _ENGINE and self.engine_folders:
            engine = PathFinder.find_spec(fullname, self.engine_folders)
            if engine is not None:
                return engine
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


def _add_to_finder(names: Iterable[str]) -> _Finder:
    finder = _finder()
    if finder is None:
        finder = _Finder()
        sys.meta_path.insert(0, finder)
    finder.names.update(names)
    return finder


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


def _is_engine(module: str) -> bool:
    return module == _ENGINE or module.startswith(_ENGINE + ".")


def _folders_of(name: str) -> list[str]:
    """The folders of the package ``name``, imported or installed."""
    loaded = sys.modules.get(name)
    if loaded is not None:
        return list(getattr(loaded, "__path__", []))
    spec = importlib.util.find_spec(name)
    return list(spec.submodule_search_locations or []) if spec else []


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
    if folders and spec.origin is None:
        # The remains of two distributions with the same package when one of them is uninstalled.
        return f"{', '.join(folders)} (incomplete: there is no __init__.py)"
    return ", ".join(folders) or spec.origin or "an unknown place"
