"""A pytest plugin that runs tests of the core without optional modules and packages: `pytest -p tests.core_plugin`."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder

from tests.core_jobs import CORE_PACKAGES, OPTIONAL_MODULES, CoreFinder

_TEST_PACKAGES = frozenset({
    "_hypothesis_pytestplugin", "_pytest", "execnet", "hypothesis", "iniconfig", "packaging", "pluggy", "py",
    "pygments", "pytest", "sortedcontainers", "typing_extensions", "xdist",
})  # fmt: skip

sys.meta_path[:] = [
    CoreFinder(OPTIONAL_MODULES, CORE_PACKAGES | _TEST_PACKAGES) if finder is PathFinder else finder
    for finder in sys.meta_path
]
