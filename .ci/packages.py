#!/usr/bin/env python3
"""Checks that each published crate can be packaged and says what a registry shows of it.

    .ci/packages.py            what every change must keep
    .ci/packages.py --publish  also what stands open until the first release: the address of the repository

A crate is published unless its manifest has `publish = false`. Prints one line for each fault and
ends with 1 if there was one.
"""

import json
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LICENCES = ("LICENSE-MIT", "LICENSE-APACHE")
FILES = {"Cargo.toml", "README.md", "CHANGELOG.md", *LICENCES}
FIELDS = ("description", "license", "readme", "rust_version")
# The registry's limits.
KEYWORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+-]{0,19}")
LARGEST = 10 << 20
# Features that docs.rs cannot build. For `rdma`, rdma-sys makes its bindings with libclang, and panics with those newer
# than 15, as the one of docs.rs is.
NOT_ON_DOCS_RS = {"rdma"}


def output(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def faults(package: dict, files: set[str], unpublished: set[str]) -> list[str]:
    found = [f"`{field}` is missing" for field in FIELDS if not package[field]]
    if not 1 <= len(package["keywords"]) <= 5 or not all(map(KEYWORD.fullmatch, package["keywords"])):
        found.append("`keywords` must be one to five words of at most 20 letters, digits, `-`, `_` and `+`")
    if not 1 <= len(package["categories"]) <= 5:
        found.append("`categories` must be one to five of the registry's")
    manifest = tomllib.loads(Path(package["manifest_path"]).read_text())["package"]
    for field in ("repository", "license"):
        if manifest.get(field) != {"workspace": True}:
            found.append(f"it lacks `{field}.workspace = true`; the value stands in the Cargo.toml of the workspace alone")
    if fault := docs_fault(package):
        found.append(fault)
    for dependency in package["dependencies"]:
        if dependency.get("path") and dependency["req"] == "*" and dependency["kind"] != "dev":
            found.append(f"its dependency {dependency['name']} has a path and no version")
        # One without a version is left out of what is published.
        if dependency.get("path") and dependency["req"] != "*" and dependency["name"] in unpublished:
            found.append(f"it depends on {dependency['name']}, which has `publish = false`")
    found += [f"its package lacks {file}" for file in sorted(FILES - files)]
    return found


def docs_fault(package: dict) -> str | None:
    """The documentation must have every feature that docs.rs can build."""
    settings = ((package["metadata"] or {}).get("docs") or {}).get("rs", {})
    features = set(package["features"]) - {"default"}
    if not features & NOT_ON_DOCS_RS:
        return None if settings.get("all-features") else "`[package.metadata.docs.rs]` lacks `all-features = true`"
    wanted = sorted(features - NOT_ON_DOCS_RS)
    if settings.get("all-features") or settings.get("features") != wanted:
        return f"`[package.metadata.docs.rs]` must have `features = {json.dumps(wanted)}`: docs.rs builds no others"
    return None


def archive_faults(package: dict, folder: Path) -> list[str]:
    """Faults of the file that the registry would get."""
    name = f"{package['name']}-{package['version']}"
    archive = folder / f"{name}.crate"
    found = []
    if archive.stat().st_size > LARGEST:
        found.append(f"its package has {archive.stat().st_size} bytes, and the registry takes {LARGEST}")
    with tarfile.open(archive) as tar:
        for licence in LICENCES:
            # Links in the tree, and texts in the package.
            text = tar.extractfile(f"{name}/{licence}")
            if text is None or text.read() != (ROOT / licence).read_bytes():
                found.append(f"{licence} of its package is not that of the repository")
    return found


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--publish"]):
        sys.exit(__doc__)
    metadata = json.loads(output("cargo", "metadata", "--no-deps", "--format-version=1", "--locked"))
    published = [package for package in metadata["packages"] if package["publish"] != []]
    unpublished = {package["name"] for package in metadata["packages"]} - {package["name"] for package in published}
    bad = 0
    repository = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["repository"]
    if arguments and not repository.startswith("https://"):
        print("error: Cargo.toml: `repository` is no address; write the one of the repository", file=sys.stderr)
        bad += 1
    for package in published:
        name = package["name"]
        files = output("cargo", "package", "--quiet", "--list", "--allow-dirty", "--package", name)
        for fault in faults(package, set(files.split()), unpublished):
            print(f"error: {name}/Cargo.toml: {fault}", file=sys.stderr)
            bad += 1
    if bad:
        return 1
    # Together: each is found by the others as if it were in the registry already. They are not
    # compiled a second time.
    command = ["cargo", "package", "--quiet", "--no-verify", "--allow-dirty", "--locked"]
    for package in published:
        command += ["--package", package["name"]]
    packaged = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
    if packaged.returncode != 0:
        print(f"error: cargo package fails:\n{packaged.stderr}", file=sys.stderr)
        return 1
    for package in published:
        for fault in archive_faults(package, Path(metadata["target_directory"]) / "package"):
            print(f"error: {package['name']}: {fault}", file=sys.stderr)
            bad += 1
    if bad:
        return 1
    print(f"{len(published)} crates can be packaged")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
