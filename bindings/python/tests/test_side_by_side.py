"""Our distribution of `mooncake` beside another one in the same environment, in both orders: with
Mooncake's own wheel, and with files that stand for other distributions."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest
from _cluster import REPOSITORY
from _environments import Environment, fetch_wheel, pip

SOURCE = REPOSITORY / "bindings" / "python" / "mooncake-shim"

OURS = "mc-store-mooncake"
THEIRS = "mooncake-transfer-engine-non-cuda"
THEIR_RELEASE = "0.3.13.post1"

#: Top-level modules of older releases.
OLDER = ["distributed_object_store", "mooncake_vllm_adaptor"]

FORCE = "import mc_store; mc_store.install_as_mooncake(force=True)"

#: With `mooncake` ours, and the transfer engine that of the wheel.
STORE_IS_OURS_ENGINE_IS_THEIRS = """
import mooncake, mooncake.store, mooncake.engine
from mooncake.engine import TransferEngine
assert mooncake.__name__ == "mc_store.mooncake", mooncake
assert mooncake.store.__name__ == "mc_store.mooncake.store", mooncake.store
assert mooncake.engine.__file__.endswith("/mooncake/engine.so"), mooncake.engine
assert mooncake.engine.TransferEngine is TransferEngine and TransferEngine()
"""


@pytest.fixture(scope="module")
def theirs() -> Path:
    return fetch_wheel(THEIRS, THEIR_RELEASE)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ours")
    pip("wheel", "--no-deps", "--no-build-isolation", f"--wheel-dir={folder}", SOURCE)
    (wheel,) = folder.iterdir()
    return wheel


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path / "environment")


def assert_ours(environment: Environment) -> None:
    environment.run("import mooncake.store as s; assert s.__name__ == 'mc_store.mooncake.store'")


def refusals(environment: Environment) -> list[str]:
    """The errors of imports of `mooncake` and of its modules, and of making ours `mooncake`."""
    statements = [
        *("import mooncake", "import mooncake.store", "from mooncake.engine import TransferEngine"),
        "import mc_store; mc_store.install_as_mooncake()",
    ]
    code = f"""
for statement in {statements}:
    try:
        exec(statement)
    except ImportError as error:
        print(error)
"""
    return environment.run(code).stdout.splitlines()


def assert_mixture_is_told(environment: Environment) -> None:
    *imports, install = refusals(environment)
    for told in imports:
        assert told.startswith("the package 'mooncake' in /")
        assert f"two distributions, {OURS} and {THEIRS}," in told
        assert told.endswith(f"pip uninstall {OURS} {THEIRS}")
    assert len(imports) == 3
    assert install.startswith("another package 'mooncake' is installed in /")
    # The question alone raises nothing, and a program that insists gets each from where it is.
    environment.run(
        "import importlib.util; assert importlib.util.find_spec('mooncake')\n"
        + FORCE
        + STORE_IS_OURS_ENGINE_IS_THEIRS
    )


def test_theirs_after_ours(environment: Environment, ours: Path, theirs: Path) -> None:
    environment.install(ours)
    environment.install(theirs)
    assert_mixture_is_told(environment)
    # With theirs, pip removes the files that both have.
    environment.uninstall(THEIRS)
    imports = refusals(environment)
    for told in imports:
        assert told.startswith(f"the package 'mooncake' of {OURS} lacks __init__.py in /")
        assert told.endswith(f"pip install --force-reinstall --no-deps {OURS}")
    assert len(imports) == 3, "ours can be made `mooncake`"
    environment.install(ours, "--force-reinstall")
    assert_ours(environment)


def test_ours_after_theirs(environment: Environment, ours: Path, theirs: Path) -> None:
    environment.install(theirs)
    environment.run(FORCE + STORE_IS_OURS_ENGINE_IS_THEIRS)
    environment.run(
        "import mooncake.engine; before = mooncake.engine\n"
        + FORCE
        + STORE_IS_OURS_ENGINE_IS_THEIRS
        + "assert mooncake.engine is before"
    )
    environment.install(ours)
    assert_mixture_is_told(environment)
    # With ours, pip removes the files that both have. Nothing of ours is left that could tell it
    # at an import, or would disturb one.
    environment.uninstall(OURS)
    left = environment.run("import mooncake.engine, sys; print(mooncake.__file__, sys.meta_path)")
    assert left.stdout.startswith("None ")
    assert "mc_store" not in left.stdout
    assert not left.stderr
    (refused,) = refusals(environment)
    assert refused.startswith("another package 'mooncake' is")
    environment.uninstall(THEIRS)
    environment.run("import importlib.util; assert importlib.util.find_spec('mooncake') is None")
    environment.install(ours)
    assert_ours(environment)


# ---- without pip and its wheels


@pytest.fixture
def provided(environment: Environment) -> Environment:
    """An environment with the files of our distribution."""
    shutil.copytree(SOURCE / "src", environment.packages, dirs_exist_ok=True)
    return environment


def test_wheel_has_every_file(ours: Path) -> None:
    with zipfile.ZipFile(ours) as wheel:
        files = {name for name in wheel.namelist() if ".dist-info/" not in name}
    source = SOURCE / "src"
    assert files == {
        str(path.relative_to(source))
        for path in source.rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }


def test_interpreters_start_as_before(environment: Environment) -> None:
    code = "import sys; print(*sorted(sys.modules))"
    before = environment.run(code).stdout.split()
    shutil.copytree(SOURCE / "src", environment.packages, dirs_exist_ok=True)
    after = environment.run(code).stdout.split()
    assert set(after) - set(before) == {"_mc_store_mooncake"}
    # The file that the interpreter reads first is left alone.
    shutil.rmtree(environment.packages / "_mc_store_mooncake")
    without = environment.run(code)
    assert without.stdout.split() == before
    assert not without.stderr


@pytest.mark.parametrize("name", ["mooncake", *OLDER])
def test_files_of_an_unknown_distribution_are_told(provided: Environment, name: str) -> None:
    provided.run(f"import {name}")
    package = provided.packages / name
    (package / "__init__.py").write_text("origin = 'stranger'\n")
    (package / "store.so").touch()
    told = provided.run(f"import {name}", check=False).stderr
    assert f"ImportError: the package {name!r} in {package} is that of two" in told
    assert f"{OURS} and an unknown one (with store.so)" in told
    (package / "store.so").unlink()
    (package / "__init__.py").unlink()
    told = provided.run(f"import {name}", check=False).stderr
    assert f"ImportError: the package {name!r} of {OURS} lacks __init__.py in {package}" in told


@pytest.mark.parametrize("name", OLDER)
def test_module_beside_the_package_is_told(provided: Environment, name: str) -> None:
    # As older releases have it: the package would hide it.
    (provided.packages / f"{name}.so").touch()
    told = provided.run(f"import {name}", check=False).stderr
    assert f"ImportError: the package {name!r} in" in told
    assert f"(with {name}.so)" in told
    provided.run("import mooncake.store")


def test_another_package_that_comes_first_is_left_alone(
    provided: Environment, tmp_path: Path
) -> None:
    other = tmp_path / "other" / "mooncake"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("origin = 'stranger'\n")
    provided.run(
        f"import sys; sys.path.insert(0, {str(other.parent)!r})\n"
        "import mooncake; assert mooncake.origin == 'stranger'"
    )
