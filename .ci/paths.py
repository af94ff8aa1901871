#!/usr/bin/env python3
"""Checks that the files and tests which the documents name exist.

In every tracked .md file, and in the comments of every tracked .rs file:

* a relative link leads to a file or folder, and its #anchor to a heading of it: of a folder, to one of its
  README.md, which is what is shown of a folder;
* a path in backticks (`mc-meta/src/commands/put.rs`, `docs/security.md`) exists, seen from the top of the
  repository, from the document, from its crate or from its crate's `src`;
* a test in backticks (`mc-meta/tests/it/rules/puts.rs::a_name`, or `::a_name` after such a path) is a
  function in that file.

Changelogs may name what is gone, in backticks. Prints `file:line: fault` for each fault and ends
with 1 if there was one.
"""

import functools
import itertools
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENDINGS = r"(?:rs|md|py|pyi|toml|proto|lock)"
LINK = re.compile(r"\]\(([^()\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(rf"(?P<path>[\w.][\w./-]*/(?:[\w.-]+\.{ENDINGS})?)(?:::(?P<test>\w+))?")
TEST = re.compile(r"::(?P<test>[a-z]\w*)")
OURS = ("mc-", "docs/", "examples/", "bindings/")
HEADING = re.compile(r" {0,3}#{1,6} +(.*?)(?: +#+)? *")
COMMENT = re.compile(r"\s*//[/!]?")


def tracked(ending):
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", f"*.{ending}"]
    listed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    if listed.returncode != 0:
        # No clone: every file but what was built.
        return [path for path in ROOT.rglob(f"*.{ending}") if "target" not in path.relative_to(ROOT).parts]
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


@functools.cache
def crate(folder):
    """The folder of the package that a folder is in."""
    while folder != ROOT and not (folder / "Cargo.toml").exists():
        folder = folder.parent
    return folder


def resolve(path, document):
    home = crate(document.parent)
    for base in (ROOT, document.parent, home, home / "src"):
        if (base / path).exists():
            return base / path
    return None


@functools.cache
def functions(path):
    """The names of functions in a file, or in all files of a folder."""
    paths = [*path.rglob("*.rs"), *path.rglob("*.py")] if path.is_dir() else [path]
    return {name for each in paths for name in re.findall(r"\b(?:fn|def) (\w+)", each.read_text())}


@functools.cache
def anchors(path):
    """The anchors of a page's headings; of several that are alike, the second ends in -1, and so on."""
    found = set()
    for _, line in lines(path):
        if match := HEADING.fullmatch(line):
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match[1]).lower()
            anchor = re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")
            alike = itertools.count(1)
            name = anchor
            while name in found:
                name = f"{anchor}-{next(alike)}"
            found.add(name)
    return found


def link_fault(link, document):
    if "::" in link or re.match(r"[a-z]+:|\w+\.[\w.]+\.html|<", link):
        return None
    path, _, anchor = link.partition("#")
    target = document.parent / path if path else document
    if not target.exists():
        # An item, as rustdoc links it.
        return None if re.fullmatch(r"[A-Za-z_]\w*!?", path) else f"no file `{path}`"
    if anchor and target.is_dir():
        target /= "README.md"
        if not target.exists():
            return f"no README.md in {path}, which could have a heading `#{anchor}`"
    if anchor and target.suffix == ".md" and anchor not in anchors(target):
        return f"no heading `#{anchor}` in {path or document.name}"
    return None


def lines(document):
    """Its numbered lines of prose: what is not code."""
    fenced = False
    for number, line in enumerate(document.read_text().splitlines(), 1):
        if document.suffix == ".rs":
            if not COMMENT.match(line):
                continue
            line = COMMENT.sub("", line)
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def faults(document):
    last = None
    for number, line in lines(document):
        if document.suffix == ".md":
            for link in LINK.findall(line):
                if fault := link_fault(link, document):
                    yield number, fault
        if document.name == "CHANGELOG.md":
            continue
        for code in CODE.findall(line):
            test = None
            if match := PATH.fullmatch(code):
                if re.match(r"\.\.?/|/", code):
                    continue
                last = resolve(match["path"], document)
                test = match["test"]
                if last is None and match["path"].endswith("/") and not match["path"].startswith(OURS):
                    # A folder that a program makes, or a part of a URL.
                    continue
                if last is None:
                    yield number, f"no file `{match['path']}`"
                    continue
            elif match := TEST.fullmatch(code):
                test = match["test"]
            if test and last and test not in functions(last):
                yield number, f"no function `{test}` in {last.relative_to(ROOT)}"


def main():
    bad = 0
    documents = tracked("md") + tracked("rs")
    for document in documents:
        for number, fault in faults(document):
            print(f"{document.relative_to(ROOT)}:{number}: {fault}", file=sys.stderr)
            bad += 1
    if bad:
        print(f"error: {bad} names in documents and comments lead nowhere", file=sys.stderr)
        return 1
    print(f"the paths in {len(documents)} documents exist")
    return 0


if __name__ == "__main__":
    sys.exit(main())
