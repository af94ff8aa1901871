#!/usr/bin/env python3
"""Checks the dependencies: licences, versions and sources against deny.toml, and their oldest Rust.

The same rules as `cargo deny check licenses bans sources` for the tables that deny.toml uses. It is
here because cargo-deny takes two to three minutes to compile on two CPUs, and this takes a second. Of the
oldest Rust: no dependency may need a newer one than the workspace says that it needs itself. Prints
one line for each fault and ends with 1 if there was one.
"""

import json
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# How cargo names the registry of deny.toml's default.
REGISTRY = re.compile(r"registry\+.*/crates\.io-index")


def metadata(target):
    command = ["cargo", "metadata", "--format-version=1", "--locked", "--all-features", "--filter-platform", target]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)


def shipped(graph):
    """The packages that the members of the workspace need when nothing is tested."""
    nodes = {node["id"]: node for node in graph["resolve"]["nodes"]}
    wanted, found = list(graph["workspace_members"]), set()
    while wanted:
        package = wanted.pop()
        if package not in found:
            found.add(package)
            for dependency in nodes[package]["deps"]:
                if any(kind["kind"] != "dev" for kind in dependency["dep_kinds"]):
                    wanted.append(dependency["pkg"])
    return [package for package in graph["packages"] if package["id"] in found]


def allowed(expression, licences):
    """Whether an SPDX expression can be satisfied; `/` is an old way to write OR."""
    tokens = re.findall(r"[()]|[^\s()]+", expression.replace("/", " OR "))

    def either():
        value = both()
        while tokens and tokens[0] == "OR":
            tokens.pop(0)
            value = both() or value
        return value

    def both():
        value = one()
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            value = one() and value
        return value

    def one():
        token = tokens.pop(0)
        if token == "(":
            value = either()
            tokens.pop(0)
            return value
        if tokens[:1] == ["WITH"]:
            tokens.pop(0)
            token += f" WITH {tokens.pop(0)}"
        return token in licences

    return either()


def release(version):
    """1.89 and 1.89.0 are one release."""
    return tuple(int(number) for number in version.split(".")[:2])


def faults(packages, policy, oldest):
    licences = set(policy["licenses"]["allow"])
    clarified = {entry["crate"]: entry["expression"] for entry in policy["licenses"]["clarify"]}
    skipped = {entry["crate"] for entry in policy["bans"]["skip"]}
    versions = defaultdict(set)
    for package in packages:
        name = f"{package['name']}@{package['version']}"
        if package["source"] and not REGISTRY.fullmatch(package["source"]):
            yield f"{name} comes from {package['source']}, which deny.toml does not allow"
        licence = clarified.get(name, package["license"])
        if not licence or not allowed(licence, licences):
            yield f"{name} has the licence {licence}, which deny.toml does not allow"
        if package["rust_version"] and release(package["rust_version"]) > release(oldest):
            yield f"{name} needs Rust {package['rust_version']}, and the workspace promises {oldest}"
        if name not in skipped:
            versions[package["name"]].add(package["version"])
    for name, several in versions.items():
        if len(several) > 1:
            yield f"{name} is there in the versions {', '.join(sorted(several))}; see [bans] in deny.toml"
    names = {f"{package['name']}@{package['version']}" for package in packages}
    for name in sorted(skipped - names):
        yield f"deny.toml skips {name}, which nothing needs any more"


def main():
    policy = tomllib.loads((ROOT / "deny.toml").read_text())
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]
    packages = {}
    for target in policy["graph"]["targets"]:
        packages |= {package["id"]: package for package in shipped(metadata(target))}
    found = list(faults(packages.values(), policy, workspace["package"]["rust-version"]))
    for fault in found:
        print(f"error: {fault}", file=sys.stderr)
    if found:
        return 1
    print(f"{len(packages)} dependencies are as deny.toml allows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
