"""Whether our packages are installed whole and unmixed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder, all_suffixes
from types import ModuleType
from typing import NoReturn

OURS = "mc-store-mooncake"

# The files that the distribution has in the folder of each of its packages. No other distribution
# has the second one: it shows that ours is installed.
_MARK = "_provided_by_mc_store.py"
_FILES = {"__init__.py", _MARK}


def refusal(name: str) -> ModuleSpec | None:
    """The spec of a package that raises ``ImportError`` when imported; ``None`` if the package
    `name` of the import path is undamaged, or another's, or if there is none."""
    spec = PathFinder.find_spec(name)
    if spec is None or spec.submodule_search_locations is None:
        return None
    folders = list(spec.submodule_search_locations)
    found = fault(name, folders)
    if found is None:
        return None
    refused = ModuleSpec(name, _Refusal(found), origin=spec.origin)
    refused.submodule_search_locations = folders
    return refused


def check(name: str, folders: Iterable[str]) -> None:
    """Raises ``ImportError`` if the package `name` is damaged.

    For import paths whose ``.pth`` files no interpreter reads, such as those of ``PYTHONPATH``.
    """
    found = fault(name, folders)
    if found is not None:
        raise ImportError(found, name=name)


def fault(name: str, folders: Iterable[str]) -> str | None:
    """The fault of the package `name`, and its remedy; ``None`` if nothing is."""
    for folder in folders:
        try:
            there = set(os.listdir(folder))
        except OSError:  # of an archive, or gone
            continue
        if _MARK not in there:
            continue
        site = os.path.dirname(folder)
        beside = [name + suffix for suffix in all_suffixes()]
        strangers = there - _FILES - {"__pycache__"}
        strangers.update(file for file in beside if os.path.exists(os.path.join(site, file)))
        if strangers:
            return _mixed(name, folder, strangers, _owners(site, {name, *beside}))
        if missing := _FILES - there:
            return (
                f"the package {name!r} of {OURS} lacks {', '.join(missing)} in {folder}, as after "
                "uninstalling another distribution that has the same package; install ours again: "
                f"pip install --force-reinstall --no-deps {OURS}"
            )
    return None


def _mixed(name: str, folder: str, strangers: set[str], owners: list[str]) -> str:
    some = sorted(strangers)[:3] + ["…"] * (len(strangers) > 3)
    other = ", ".join(owners) or f"an unknown one (with {', '.join(some)})"
    return (
        f"the package {name!r} in {folder} is that of two distributions, {OURS} and {other}, which "
        "overwrite each other's files; uninstall both, then install the one that you want: "
        f"pip uninstall {' '.join([OURS, *owners])}"
    )


def _owners(site: str, tops: set[str]) -> list[str]:
    """The other distributions in the folder `site` that have files below one of `tops`."""
    from importlib.metadata import distributions

    found = set()
    for distribution in distributions(path=[site]):
        owner = distribution.metadata["Name"]
        if owner != OURS and any(file.parts[0] in tops for file in distribution.files or ()):
            found.add(str(owner))
    return sorted(found)


class _Refusal(Loader):
    """A loader whose module cannot be loaded."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def create_module(self, spec: ModuleSpec) -> NoReturn:
        raise ImportError(self._reason, name=spec.name)

    def exec_module(self, module: ModuleType) -> None:
        raise ImportError(self._reason, name=module.__name__)
