"""pandas, imported only where a query or the user's own function wants it.

pyarrow imports pandas to ask whether a value is one of its own, which takes a while and a lot of memory, and an
interrupt that falls into that import is lost there. A command line gets no DataFrame: so it withholds pandas, and who
does want it says so first. In a program of the user's, nothing is withheld.
"""

from __future__ import annotations

import sys
from typing import Any

_PANDAS = "pandas"


def withhold_pandas() -> None:
    """Let an import of pandas fail from now on, as where it is not installed, until `allow_pandas`."""
    sys.modules.setdefault(_PANDAS, None)  # type: ignore[arg-type]  # documented: such an import fails


def allow_pandas() -> None:
    """Let pandas be imported."""
    if _PANDAS in sys.modules and sys.modules[_PANDAS] is None:
        del sys.modules[_PANDAS]


def pandas() -> Any:
    """Return the module pandas."""
    allow_pandas()
    import pandas as pd

    return pd
