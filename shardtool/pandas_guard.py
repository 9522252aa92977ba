"""Prevent pyarrow from importing pandas, unless the user's function needs it.

`pyarrow.array` imports pandas to recognise a Series. This takes 0.3 s and 40 MB, and may lose a Ctrl-C. Only the
command line, which has no DataFrames, blocks the import.
"""

from __future__ import annotations

import sys

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
