"""Files of releases: a changed one is told, a missing index as well, and a document lists them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from _cluster import REPOSITORY, free_port

from connectors import _releases, _sources

RELEASE = _releases.OMNI


def test_a_changed_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(RELEASE.fetch(), tmp_path / "copy")
    monkeypatch.setattr(_sources, "FETCHED", tmp_path)
    (tmp_path / "copy").rename(tmp_path / f"{RELEASE.project}-{RELEASE.version}")
    root = RELEASE.fetch()
    assert root.parent == tmp_path
    changed = next(iter(RELEASE.files()))
    with (root / changed).open("a") as file:
        file.write("# more\n")
    with pytest.raises(AssertionError, match=rf"{changed} of vllm-omni .* not the file"):
        RELEASE.fetch()


def test_without_an_index_the_test_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sources, "FETCHED", tmp_path)
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{free_port()}/simple")
    with pytest.raises(pytest.skip.Exception, match=r"no package index gives vllm-omni .*refused"):
        RELEASE.fetch()
    assert not list(tmp_path.rglob("*.py"))


@pytest.mark.parametrize(
    "release",
    [value for value in vars(_releases).values() if isinstance(value, _sources.Release)],
    ids=lambda release: release.project,
)
def test_the_document_lists_every_file(release: _sources.Release) -> None:
    document = REPOSITORY / "bindings" / "python" / "docs" / "connectors.md"
    version = f"| {release.version} |"
    rows = [line for line in document.read_text().splitlines() if version in line]
    listed = set(re.findall(r"`(\w+\.py)`", "".join(rows)))
    assert listed == {path.rpartition("/")[2] for path in release.files()}
