#!/usr/bin/env python3
"""Prints the pairs of features of crates that must compile together, as `crate:one,two`.

    .ci/feature_pairs.py mc-transport mc-store

Without `default`, and without pairs of which one feature turns on the other.
"""

import sys
import tomllib
from itertools import combinations
from pathlib import Path


def closure(feature, features):
    """The feature and all of the crate's that it turns on."""
    found, wanted = set(), [feature]
    while wanted:
        name = wanted.pop()
        if name in features and name not in found:
            found.add(name)
            wanted += features[name]
    return found


for crate in sys.argv[1:]:
    features = tomllib.loads((Path(crate) / "Cargo.toml").read_text()).get("features", {})
    on = {name: closure(name, features) for name in features if name != "default"}
    seen = [set()] + list(on.values())
    for one, two in combinations(on, 2):
        if on[one] | on[two] not in seen:
            seen.append(on[one] | on[two])
            print(f"{crate}:{one},{two}")
