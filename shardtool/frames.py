"""pandas, imported only where a query or the user's own function wants it.

pyarrow imports pandas to ask whether a value is one of its own, which takes a while and a lot of memory, and an
interrupt that falls into that import is lost there. A command line gets no DataFrame: so it withholds pandas, and who
does want it says so first. In a program of the user's, nothing is withheld.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

_PANDAS = "pandas"


class _Withheld:
    """Finds no pandas: an import of it fails, as where it is not installed."""

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        """Let other modules be found by others.

        Raises:
            ModuleNotFoundError: It is pandas.
        """
        if name == _PANDAS:
            message = f"No module named {_PANDAS!r}"
            raise ModuleNotFoundError(message, name=_PANDAS)


def withhold_pandas() -> None:
    """Let an import of pandas fail from now on, until `allow_pandas`."""
    sys.meta_path.insert(0, _Withheld())


def allow_pandas() -> None:
    """Let pandas be imported."""
    sys.meta_path[:] = [one for one in sys.meta_path if not isinstance(one, _Withheld)]


def pandas() -> ModuleType:
    """Return the module pandas."""
    allow_pandas()
    import pandas as pd

    return pd
