#!/usr/bin/env python3
"""Fails when more than three files of a crate import each other in a circle.

    .ci/circles.py mc-meta mc-rpc

An import is a `use` or a path in the code. A file that only re-exports a name is not an import of
it: the path leads to the file that defines it. Tests are left out.
"""

import re
import sys
from pathlib import Path

LIMIT = 3


def source(path):
    """The code of a file without comments and its tests."""
    text = re.sub(r"//[^\n]*", "", path.read_text())
    text = re.sub(r"pub\(in [^)]*\)", "pub", text)
    return re.sub(r"#\[cfg\(test\)\]\s*mod \w+ \{.*", "", text, flags=re.S)


def files(root):
    """The files of a crate by their module paths."""
    found = {}
    for path in root.rglob("*.rs"):
        parts = path.relative_to(root).with_suffix("").parts
        if parts[-1] in ("mod", "lib"):
            parts = parts[:-1]
        if not {"tests", "contract", "interleavings"} & set(parts):
            found[parts] = source(path)
    return found


def expand(tree):
    """The paths of a `use` tree."""
    match = re.match(r"(.*?)\{(.*)\}$", tree.strip(), re.S)
    if not match:
        return [re.sub(r"\s+as .*|\s", "", tree)]
    prefix, inner = match.groups()
    parts, depth, part = [], 0, ""
    for char in inner:
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += char
    return [
        re.sub(r"\s", "", prefix) + path
        for part in [*parts, part]
        if part.strip()
        for path in expand(part)
    ]


def exports(module, code):
    """What a file re-exports, by name."""
    trees = re.findall(r"\bpub(?:\([^)]*\))? use ([^;]+);", code)
    return {path.split("::")[-1]: path for tree in trees for path in expand(tree)}


def resolve(modules, exported, here, path, depth=0):
    """The file that a path in the file `here` leads to; None outside of the crate."""
    steps = path.split("::")
    base = here
    if steps[0] in ("crate", "self"):
        base = () if steps[0] == "crate" else here
        steps = steps[1:]
    elif steps[0] != "super" and (*here, steps[0]) not in modules:
        return None
    while steps and steps[0] == "super":
        base, steps = base[:-1], steps[1:]
    while steps and (*base, steps[0]) in modules:
        base, steps = (*base, steps[0]), steps[1:]
    if steps and depth < 8 and steps[0] in exported[base]:
        onward = "::".join([exported[base][steps[0]], *steps[1:]])
        return resolve(modules, exported, base, onward, depth + 1) or base
    return base


def imports(modules):
    exported = {module: exports(module, code) for module, code in modules.items()}
    edges = {}
    for here, code in modules.items():
        trees = re.findall(r"(?<!pub )(?<!\) )\buse ([^;]+);", code)
        paths = [path for tree in trees for path in expand(tree)]
        body = re.sub(r"\buse [^;]+;", "", code)
        paths += re.findall(r"\b(?:crate|super|self)(?:::\w+)+", body)
        paths += re.findall(r"(?<![:\w])[a-z_]+::\w+(?:::\w+)*", body)
        targets = {resolve(modules, exported, here, path) for path in paths}
        edges[here] = targets - {None, here}
    return edges


def reachable(edges, start):
    seen, waiting = set(), [start]
    while waiting:
        for target in edges[waiting.pop()] - seen:
            seen.add(target)
            waiting.append(target)
    return seen


def circles(edges):
    reach = {module: reachable(edges, module) for module in edges}
    left = {module for module in edges if module in reach[module]}
    while left:
        module = left.pop()
        circle = {module} | {other for other in left if other in reach[module] and module in reach[other]}
        left -= circle
        yield sorted("/".join(part) or "lib" for part in circle)


def main(crates):
    failed = False
    for crate in crates:
        for circle in circles(imports(files(Path(crate) / "src"))):
            if len(circle) > LIMIT:
                failed = True
                print(f"{crate}: {len(circle)} files import each other: {', '.join(circle)}")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
