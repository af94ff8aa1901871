#!/usr/bin/env python3
"""Checks that each published crate can be packaged and says what a registry shows of it.

A crate is published unless its manifest has `publish = false`. Prints one line for each fault and
ends with 1 if there was one.
"""

import json
import subprocess
import sys

FILES = {"Cargo.toml", "README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"}
FIELDS = ("description", "license", "readme", "rust_version")


def output(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def faults(package: dict, files: set[str]) -> list[str]:
    found = [f"`{field}` is missing" for field in FIELDS if not package[field]]
    # The registry's limits.
    if not 1 <= len(package["keywords"]) <= 5 or any(len(word) > 20 for word in package["keywords"]):
        found.append("`keywords` must be one to five words of at most 20 characters")
    if not 1 <= len(package["categories"]) <= 5:
        found.append("`categories` must be one to five of the registry's")
    if not ((package["metadata"] or {}).get("docs") or {}).get("rs", {}).get("all-features"):
        found.append("`[package.metadata.docs.rs]` lacks `all-features = true`")
    for dependency in package["dependencies"]:
        if dependency.get("path") and dependency["req"] == "*" and dependency["kind"] != "dev":
            found.append(f"its dependency {dependency['name']} has a path and no version")
    found += [f"its package lacks {file}" for file in sorted(FILES - files)]
    return found


def main() -> int:
    metadata = json.loads(output("cargo", "metadata", "--no-deps", "--format-version=1", "--locked"))
    published = [package for package in metadata["packages"] if package["publish"] != []]
    bad = 0
    for package in published:
        name = package["name"]
        files = output("cargo", "package", "--quiet", "--list", "--allow-dirty", "--package", name)
        for fault in faults(package, set(files.split())):
            print(f"error: {name}/Cargo.toml: {fault}", file=sys.stderr)
            bad += 1
    if bad:
        return 1
    # Together: each is found by the others as if it were in the registry already. They are not
    # compiled a second time.
    command = ["cargo", "package", "--quiet", "--no-verify", "--allow-dirty", "--locked"]
    for package in published:
        command += ["--package", package["name"]]
    packaged = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if packaged.returncode != 0:
        print(f"error: cargo package fails:\n{packaged.stderr}", file=sys.stderr)
        return 1
    print(f"{len(published)} crates can be packaged")
    return 0


if __name__ == "__main__":
    sys.exit(main())
