#!/usr/bin/env python3
"""A preprocessor of mdBook: gives the pages of other folders a place in the site, and their links a target.

docs/SUMMARY.md names pages of the whole repository. A page below docs/ keeps its path there, another one has that of
the repository, and a README.md is the index of its folder. Links between pages lead to these places. A link to a file
that is no page leads to the file where docs/ has it and mdBook copies it; otherwise to the repository, at the address
that `repository` in Cargo.toml gives; and while that is empty the link becomes its text, with the path behind it.

mdBook starts it, as docs/book.toml says; .ci/book tests it without mdBook, too.
"""

import json
import os
import re
import sys
import tomllib
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
DOCS = "docs"
# A link or a picture: `[text](target)`. Its text may have code, and brackets one level deep.
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")
FENCE = re.compile(r" *(```+|~~~+)")


def normal(path):
    """The path without `..`, seen from the top of the repository."""
    return os.path.normpath(path)


def place(page):
    """Where a page of the repository is in the site."""
    path = PurePosixPath(page)
    if path.name == "README.md":
        path = path.with_name("index.md")
    return str(path.relative_to(DOCS) if path.is_relative_to(DOCS) else path)


def stays(link):
    """Whether a link has no path in the repository: it has a scheme, or is an anchor of its own page."""
    return link.startswith("#") or re.match(r"[a-z][a-z0-9+.-]*:", link) is not None


def repository():
    manifest = tomllib.loads((ROOT / "Cargo.toml").read_text())
    return manifest["workspace"]["package"].get("repository", "").rstrip("/")


class Links:
    """Rewrites the links of the pages that the site has."""

    def __init__(self, pages, address):
        self.pages, self.address = set(pages), address

    def target(self, link, page):
        """Where a link of a page leads to in the site; None when that is nowhere."""
        if stays(link):
            return link
        path, _, anchor = link.partition("#")
        behind = f"#{anchor}" if anchor else ""
        wanted = normal(PurePosixPath(page).parent / path)
        here = PurePosixPath(place(page)).parent
        for candidate in (wanted, normal(PurePosixPath(wanted) / "README.md")):
            if candidate in self.pages:
                return os.path.relpath(place(candidate), here) + behind
        there = ROOT / wanted
        if there.is_file() and wanted.startswith(f"{DOCS}/") and there.suffix != ".md":
            return os.path.relpath(PurePosixPath(wanted).relative_to(DOCS), here)
        if self.address and there.exists():
            kind = "tree" if there.is_dir() else "blob"
            return f"{self.address}/{kind}/HEAD/{wanted}{behind}"
        return None

    def prose(self, text, page):
        def rewrite(match):
            picture, text, link = match.groups()
            target = self.target(link, page)
            if target is not None:
                return f"{picture}[{text}]({target})"
            wanted = normal(PurePosixPath(page).parent / link.partition("#")[0])
            # Another name than a path is an item, as rustdoc links it.
            shown = wanted if (ROOT / wanted).exists() else None
            return text if shown is None or shown in text else f"{text} (`{shown}`)"

        return LINK.sub(rewrite, text)

    def page(self, content, page):
        """The text of a page with its links rewritten; code blocks stay as they are."""
        made, prose, fence = [], [], None
        for line in content.splitlines(keepends=True):
            mark = FENCE.match(line)
            if fence is None and mark is None:
                # Links may go over the end of a line.
                prose.append(line)
                continue
            made += [self.prose("".join(prose), page), line]
            prose = []
            if mark and fence is None:
                fence = mark[1]
            elif mark and mark[1].startswith(fence):
                fence = None
        return "".join([*made, self.prose("".join(prose), page)])


def chapters(items):
    """All chapters of a book that have a page, those below others included."""
    for item in items:
        # A separator is a text, and a title of a part has another key.
        if isinstance(item, dict) and "Chapter" in item:
            chapter = item["Chapter"]
            if chapter.get("source_path"):
                yield chapter
            yield from chapters(chapter["sub_items"])


def process(book):
    # The name of the list differs between versions of mdBook.
    items = book["items"] if "items" in book else book["sections"]
    found = [(chapter, normal(PurePosixPath(DOCS) / chapter["source_path"])) for chapter in chapters(items)]
    links = Links([page for _, page in found], repository())
    for chapter, page in found:
        chapter["content"] = links.page(chapter["content"], page)
        chapter["path"] = place(page)
    return book


def main():
    if sys.argv[1:2] == ["supports"]:
        return 0
    _, book = json.load(sys.stdin)
    json.dump(process(book), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
