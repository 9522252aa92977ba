"""Prevent pyarrow from importing pandas until a query or the user's function needs it.

pyarrow imports pandas to check the type of a value. That takes time and memory, and an interrupt during the import
is
lost. The command line never receives a DataFrame, so it blocks pandas. In the user's own program nothing is
blocked.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType


_PANDAS = "pandas"


class _PandasBlocker:
    """Finds no pandas: an import of it fails, as where it is not installed."""

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        """Let other modules be found by others.

        Raises:
            ModuleNotFoundError: It is pandas.
        """
        if name == _PANDAS:
            message = f"No module named {_PANDAS!r}"
            raise ModuleNotFoundError(message, name=_PANDAS)


def block_pandas() -> None:
    """Let an import of pandas fail from now on, until `allow_pandas`."""
    sys.meta_path.insert(0, _PandasBlocker())


def allow_pandas() -> None:
    """Let pandas be imported."""
    sys.meta_path[:] = [one for one in sys.meta_path if not isinstance(one, _PandasBlocker)]


def import_pandas() -> ModuleType:
    """Return the module pandas."""
    allow_pandas()
    import pandas as pd

    return pd
