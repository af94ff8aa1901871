"""The releases whose connectors run here: the newest that do. To try another one, change its
version here and in `sources.sha256`; the failures name the new sums."""

from __future__ import annotations

from connectors._sources import Release

OMNI = Release("vllm-omni", "0.30.0", "py3-none-any")
LMCACHE = Release("lmcache", "0.5.6", "cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64")
LMDEPLOY = Release("lmdeploy", "0.18.0", "cp311-cp311-manylinux_2_28_x86_64")
VLLM = Release("vllm", "0.33.0", "cp38-abi3-manylinux_2_28_x86_64")
SGLANG = Release("sglang", "0.5.23", "cp311-cp311-manylinux_2_34_x86_64")
