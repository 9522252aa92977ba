"""Prevent pyarrow from importing pandas on the command line.

`pyarrow.array` and `to_numpy` import pandas. This import takes 0.3 s and 40 MB, and may ignore a Ctrl-C. The command
line blocks the import until it loads a user's function, which may need pandas.
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
    """Make imports of pandas fail until `allow_pandas` is called."""
    sys.meta_path.insert(0, _PandasBlocker())


def allow_pandas() -> None:
    """Allow imports of pandas again."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _PandasBlocker)]
