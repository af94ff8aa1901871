"""The documentation of the clients: it is there, and its examples do what they say."""

from __future__ import annotations

import asyncio
import doctest
import inspect
from collections.abc import Iterator

import mc_store
import mc_store.exceptions
import mc_store.reports
import pytest

CLASSES = [mc_store.Client, mc_store.AsyncClient, mc_store.Buffer]


def documented() -> Iterator[tuple[str, object]]:
    yield "mc_store", mc_store
    yield "mc_store.local", mc_store.local
    for owner in CLASSES:
        yield owner.__name__, owner
        # The order of properties is another one in each process.
        for name, member in sorted(vars(owner).items()):
            if not name.startswith("_"):
                yield f"{owner.__name__}.{name}", member


@pytest.mark.parametrize(("name", "thing"), [pytest.param(*it, id=it[0]) for it in documented()])
def test_examples_do_what_they_say(name: str, thing: object) -> None:
    text = inspect.getdoc(thing)
    assert text, f"{name} has no documentation"
    with mc_store.local(segment_size="64MB") as store:
        names = {"store": store, "mc_store": mc_store, "asyncio": asyncio}
        example = doctest.DocTestParser().get_doctest(text, names, name, None, None)
        said: list[str] = []
        doctest.DocTestRunner().run(example, out=said.append)
        assert said == []


@pytest.mark.parametrize("owner", CLASSES)
def test_every_method_tells_its_arguments(owner: type) -> None:
    for name, member in vars(owner).items():
        if callable(member) and not name.startswith("_"):
            inspect.signature(getattr(owner, name))


def test_every_exception_and_report_is_documented() -> None:
    for module in (mc_store.exceptions, mc_store.reports):
        for name in module.__all__:
            text = getattr(module, name).__doc__
            # The default docstring of a data class begins with its name.
            assert text, name
            assert not text.startswith(name), name
