"""The rest of each engine, as far as its connector asks for it.

A module here belongs to one engine. Its `provide(root)` puts stand-ins for the engine's other
modules into `sys.modules`; the connector's own files are imported from the folder `root`,
unmodified. Its classes make the connector and call it as the engine does.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

from connectors.engines import install_as_mooncake


def prepare(engine: str, root: str, environment: dict[str, str]) -> None:
    """Makes an interpreter one of `engine`, with this package as `mooncake` and some variables of
    its environment."""
    install_as_mooncake()
    os.environ.update(environment)
    importlib.import_module(f"connectors._stubs.{engine}").provide(Path(root))


def stand_in(name: str, **contents: object) -> ModuleType:
    """Puts a module in place of the engine's module `name`."""
    module = ModuleType(name, "Stands for a module of an engine.")
    vars(module).update(contents)
    sys.modules[name] = module
    return module


def package(root: Path, name: str, **contents: object) -> ModuleType:
    """As `stand_in`, for a package whose modules are the files in `root`."""
    module = stand_in(name, **contents)
    module.__path__ = [str(root.joinpath(*name.split(".")))]
    return module
