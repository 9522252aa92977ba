"""Prevent pyarrow from importing pandas until a query or the user's function needs it.

The import takes time and memory, and loses an interrupt. Only the command line, which has no DataFrame, blocks it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType


_PANDAS = "pandas"


class _PandasBlocker:
    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        if name == _PANDAS:
            message = f"No module named {_PANDAS!r}"
            raise ModuleNotFoundError(message, name=_PANDAS)


def block_pandas() -> None:
    """Make imports of pandas fail until `allow_pandas`."""
    sys.meta_path.insert(0, _PandasBlocker())


def allow_pandas() -> None:
    """Allow imports of pandas again."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _PandasBlocker)]


def import_pandas() -> ModuleType:
    """Import and return pandas."""
    allow_pandas()
    import pandas as pd

    return pd
