"""Watches over the packages of ``mc-store-mooncake``, which other distributions provide, too.

Installers let the later of two distributions overwrite the files of the earlier one, and let the
one that is uninstalled take the shared files with it. What is imported then may be neither.
``mc_store_mooncake.pth`` has every interpreter call :func:`install` when it starts; so this module
imports nothing but ``sys``, which is there already.
"""

import sys

#: The top-level packages of the distribution.
NAMES = frozenset({"mooncake", "distributed_object_store", "mooncake_vllm_adaptor"})


class Guard:
    """A finder that leaves all modules to the finders after it. Only if one of our packages is
    damaged does it find that one, with a loader that raises ``ImportError``."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if name not in NAMES:
            return None
        from _mc_store_mooncake import installed

        return installed.refusal(name)


def install() -> None:
    """Puts a guard before the finders of this interpreter, unless there is one."""
    if not any(isinstance(finder, Guard) for finder in sys.meta_path):
        sys.meta_path.insert(0, Guard())  # type: ignore[arg-type]  # it would import the types
