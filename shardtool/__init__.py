"""shardtool: training samples into size-bounded shards, with proof that nothing was lost.

The public names are imported on first use, so that `import shardtool` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardtool.errors import (
        CorruptShard,
        InvalidRequest,
        OutputExists,
        OutputFailed,
        SampleFailed,
        ShardError,
        WorkerDied,
    )
    from shardtool.verbs.create import CreateOptions, CreateResult, DryRun, create, dry_run
    from shardtool.verbs.observer import Observer

__version__ = "0.1.0"

__all__ = [
    "CorruptShard",
    "CreateOptions",
    "CreateResult",
    "DryRun",
    "InvalidRequest",
    "Observer",
    "OutputExists",
    "OutputFailed",
    "SampleFailed",
    "ShardError",
    "WorkerDied",
    "__version__",
    "create",
    "dry_run",
]

_CREATE = {"CreateOptions", "CreateResult", "DryRun", "Observer", "create", "dry_run"}


def __getattr__(name: str) -> object:
    """Import a public name where it is first used (PEP 562)."""
    if name not in __all__:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    from importlib import import_module

    names = _CREATE if name in _CREATE else set(__all__) - _CREATE - {"__version__"}
    module = import_module(f"{__name__}.{'verbs.create' if name in _CREATE else 'errors'}")
    globals().update({one: getattr(module, one) for one in names})
    return globals()[name]


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
