#!/usr/bin/env python3
"""Measures the structure of crates, and fails where it is worse than `.ci/structure.json` allows.

    .ci/circles.py                    all crates of the file
    .ci/circles.py mc-meta mc-rpc     these
    .ci/circles.py --write            writes the numbers of today: they may only fall
    .ci/circles.py --show mc-meta     what is behind the numbers of a crate

For each crate:

* `files`: the files of the largest circle in which files import each other;
* `rooms`: the same for rooms, the modules at the top of the crate, and those of a module that is itself a
  house (`houses`);
* `up`: imports of a room that stands above, where the crate has an order of rooms (`floors`, from below);
* `long`: functions of more than 80 lines;
* `spread`: types whose own `impl` blocks are in more than eight files, and the number of these.

An import is a `use` or a path in the code. A file that only re-exports a name is not an import of
it: the path leads to the file that defines it. Tests are left out.
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CEILINGS = ROOT / ".ci/structure.json"
LONG = 80
SPREAD = 8


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
    """The re-exports of a file, by name."""
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
    """The circles of more than one, largest first."""
    reach = {module: reachable(edges, module) for module in edges}
    left, found = {module for module in edges if module in reach[module]}, []
    while left:
        module = left.pop()
        circle = {module} | {other for other in left if other in reach[module] and module in reach[other]}
        left -= circle
        found.append(sorted("/".join(part) or "lib" for part in circle))
    return sorted((circle for circle in found if len(circle) > 1), key=len, reverse=True)


def folded(edges, houses):
    """The imports between rooms. The file of the crate itself is in none, and so is the front of a house."""

    def room(module):
        return module[: 2 if module[:1] and module[0] in houses else 1]

    def is_in_none(module):
        return not module or module[0] in houses and len(module) == 1

    rooms = {room(module): set() for module in edges if not is_in_none(module)}
    for module, targets in edges.items():
        if not is_in_none(module):
            rooms[room(module)] |= {room(target) for target in targets if not is_in_none(target)} - {room(module)}
    return rooms


def arrows_up(edges, floors):
    """Imports against the order of rooms, and rooms that the order lacks."""
    height = {room: number for number, room in enumerate(floors)}
    found = [f"{module[0]} has no floor" for module in edges if module and module[0] not in height]
    for module, targets in edges.items():
        for target in targets:
            if module and target and height.get(module[0], 0) < height.get(target[0], 0):
                found.append(f"{'/'.join(module)} imports {'/'.join(target)}")
    return sorted(set(found))


def long_functions(code):
    """Functions of more than `LONG` lines, each as `file::name (lines)`."""
    found = []
    for module, text in code.items():
        lines = text.split("\n")
        for start, line in enumerate(lines):
            match = re.match(r"( *)(?:pub(?:\([^)]*\))? )?(?:const |async |unsafe )*fn (\w+)", line)
            if not match:
                continue
            end = f"{match[1]}}}"
            for at in range(start, len(lines)):
                if lines[at].startswith(end) or (at == start and line.rstrip().endswith(";")):
                    if at - start + 1 > LONG:
                        found.append(f"{'/'.join(module) or 'lib'}::{match[2]} ({at - start + 1})")
                    break
    return sorted(found)


def spread_types(code):
    """Types whose own `impl` blocks are in more than `SPREAD` files, with the number of these."""
    files_of = {}
    for module, text in code.items():
        for name in re.findall(r"(?m)^impl(?:<[^{]*?>)? (\w+)(?:<[^{]*?>)? \{", text):
            files_of.setdefault(name, set()).add(module)
    return {name: len(files) for name, files in sorted(files_of.items()) if len(files) > SPREAD}


def measure(crate, floors, houses):
    """The numbers of a crate, and what is behind each."""
    code = files(ROOT / crate / "src")
    edges = imports(code)
    behind = {
        "files": [", ".join(circle) for circle in circles(edges)],
        "rooms": [", ".join(circle) for circle in circles(folded(edges, houses))],
        "long": long_functions(code),
        "spread": spread_types(code),
    }
    numbers = {kind: len(behind[kind][0].split(", ")) if behind[kind] else 0 for kind in ("files", "rooms")}
    if floors:
        behind["up"] = arrows_up(edges, floors)
        numbers["up"] = len(behind["up"])
    numbers["long"] = len(behind["long"])
    if behind["spread"]:
        numbers["spread"] = behind["spread"]
    return numbers, behind


def worse(now, allowed):
    """Where the numbers are above what is allowed, one line each."""
    for kind, number in now.items():
        if kind == "spread":
            before = allowed.get(kind, {})
            yield from (
                f"the impl blocks of {name} are in {count} files, and {before.get(name, SPREAD)} are allowed"
                for name, count in number.items()
                if count > before.get(name, SPREAD)
            )
        elif number > allowed.get(kind, 0):
            yield f"{kind}: {number}, and {allowed.get(kind, 0)} are allowed"


def main(arguments):
    ceilings = json.loads(CEILINGS.read_text())
    crates = [argument for argument in arguments if not argument.startswith("--")] or list(ceilings)
    failed = False
    for crate in crates:
        allowed = ceilings.setdefault(crate, {})
        now, behind = measure(crate, allowed.get("floors"), allowed.get("houses", []))
        if "--show" in arguments:
            print(json.dumps({crate: behind}, indent=1))
        if "--write" in arguments:
            ceilings[crate] = {kind: allowed[kind] for kind in ("floors", "houses") if kind in allowed} | now
            continue
        for line in worse(now, allowed):
            failed = True
            print(f"{crate}: {line} (.ci/circles.py --show {crate})")
        better = [kind for kind in now if kind != "spread" and now[kind] < allowed.get(kind, 0)]
        if better:
            print(f"{crate}: better than allowed: {', '.join(better)}; note it with .ci/circles.py --write")
    if "--write" in arguments:
        lines = (f" {json.dumps(crate)}: {json.dumps(ceilings[crate])}" for crate in ceilings)
        CEILINGS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
